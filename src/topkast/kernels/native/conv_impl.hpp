// The convolution kernels, for one instruction set; included after kernels_impl.hpp.
//
// In NCHW the pixels of a channel are contiguous already: packing a panel of patches is copying rows of the input, and
// the output of a panel is written as it is. Panels do not cross images.
#pragma once

#include "conv.hpp"
#include "kernels_impl.hpp"

namespace topkast {
namespace TOPKAST_ISA_NAMESPACE {

template <typename T>
int64_t panels_per_image(const Conv& g) {
  return num_panels<T>(g.pixels());
}

// Of `length` output columns from `first`, those whose tap falls inside the input: [low, high), relative to first.
struct Inside {
  int64_t low, high, start;  // start: input column of the first output column, maybe negative
  Inside(const Conv& g, int64_t first, int64_t length, int64_t tap_column)
      : start(first * g.stride_width - g.padding_width + tap_column * g.dilation_width) {
    low = start >= 0 ? 0 : (-start + g.stride_width - 1) / g.stride_width;
    high = start >= g.width ? 0 : (g.width - start + g.stride_width - 1) / g.stride_width;
    low = smaller(low, length);
    high = smaller(high, length);
    if (high < low) high = low;
  }
};

// Where the pixels of a panel come from, tap by tap: the same for all channels, so that the divisions are done once per
// panel and not once per channel.
template <typename T>
class PatchMap {
 public:
  PatchMap(const Conv& g, const Panel& p, Scratch<int64_t>& scratch)
      : stride_(g.stride_width), taps_(g.taps()), plane_(g.height * g.width) {
    const int64_t runs = 2 + p.count / g.out_width;
    first_ = scratch.get(taps_ + 1 + 3 * 3 * runs * taps_);
    pieces_ = first_ + taps_ + 1;
    int64_t n = 0;
    for (int64_t tap = 0; tap < taps_; ++tap) {
      first_[tap] = n;
      n = add_tap(g, p, tap, n);
    }
    first_[taps_] = n;
  }

  // Columns [c0, c1) of the patch matrix: packed[c * width + pixel]. Padding pixels are zero.
  void pack(const T* image, const Panel& p, int64_t c0, int64_t c1, T* packed) const {
    int64_t channel = c0 / taps_, tap = c0 - channel * taps_;
    for (int64_t c = c0; c < c1; ++c) {
      const T* plane = image + channel * plane_;
      T* to = packed + c * p.width;
      // The next panel of this plane is what will be wanted next.
      for (int64_t i = 0; tap == 0 && i < p.count; i += 64 / int64_t(sizeof(T)))
        __builtin_prefetch(plane + p.first * stride_ + Vector<T>::panel + i);
      for (int64_t i = first_[tap]; i < first_[tap + 1]; ++i) copy(plane, piece(i), to);
      fill(to + p.count, to + p.width, T(0));
      if (++tap == taps_) tap = 0, ++channel;
    }
  }

  // The transpose of `pack`: adds rows [c0, c1) of a matrix of patches, which begins at `patches`, to the image.
  void add(const T* patches, const Panel& p, int64_t c0, int64_t c1, T* image) const {
    int64_t channel = c0 / taps_, tap = c0 - channel * taps_;
    for (int64_t c = c0; c < c1; ++c, patches += p.width) {
      T* plane = image + channel * plane_;
      for (int64_t i = first_[tap]; i < first_[tap + 1]; ++i) {
        const Piece q = piece(i);
        if (q.from < 0) continue;
        T* to = plane + q.from;
        for (int64_t k = 0; k < q.length; ++k) to[k * stride_] += patches[q.to + k];
      }
      if (++tap == taps_) tap = 0, ++channel;
    }
  }

 private:
  // `length` pixels of the panel from `to` on come from the plane's `from` on, or are zero if that is negative.
  struct Piece {
    int64_t to, length, from;
  };
  Piece piece(int64_t i) const { return {pieces_[3 * i], pieces_[3 * i + 1], pieces_[3 * i + 2]}; }

  int64_t add_piece(int64_t n, int64_t to, int64_t length, int64_t from) {
    if (length <= 0) return n;
    pieces_[3 * n] = to;
    pieces_[3 * n + 1] = length;
    pieces_[3 * n + 2] = from;
    return n + 1;
  }

  // Each output row that the panel touches is a run of pixels: zeros, a piece of an input row, zeros.
  int64_t add_tap(const Conv& g, const Panel& p, int64_t tap, int64_t n) {
    const int64_t tap_row = tap / g.kernel_width, tap_column = tap - tap_row * g.kernel_width;
    int64_t row = p.first / g.out_width, column = p.first - row * g.out_width;
    for (int64_t offset = 0; offset < p.count; ++row, column = 0) {
      const int64_t length = smaller(g.out_width - column, p.count - offset);
      const int64_t in_row = row * g.stride_height - g.padding_height + tap_row * g.dilation_height;
      if (in_row < 0 || in_row >= g.height) {
        n = add_piece(n, offset, length, -1);
      } else {
        const Inside in(g, column, length, tap_column);
        n = add_piece(n, offset, in.low, -1);
        n = add_piece(n, offset + in.low, in.high - in.low, in_row * g.width + in.start + in.low * g.stride_width);
        n = add_piece(n, offset + in.high, length - in.high, -1);
      }
      offset += length;
    }
    return n;
  }

  void copy(const T* plane, const Piece& q, T* to) const {
    T* out = to + q.to;
    if (q.from < 0) return fill(out, out + q.length, T(0));
    const T* from = plane + q.from;
    if (stride_ == 1)
      for (int64_t i = 0; i < q.length; ++i) out[i] = from[i];
    else
      for (int64_t i = 0; i < q.length; ++i) out[i] = from[i * stride_];
  }

  int64_t stride_, taps_, plane_;
  int64_t* first_;   // first piece per tap, and the end
  int64_t* pieces_;  // three numbers each
};

// Rows [c0, c1) of a panel of y or dy: plain copies.
template <typename T>
void pack_planes(const Conv& g, const T* image, const Panel& p, int64_t c0, int64_t c1, T* packed) {
  for (int64_t c = c0; c < c1; ++c) {
    const T* from = image + c * g.pixels() + p.first;
    T* to = packed + c * p.width;
    for (int64_t i = 0; i < p.count; i += 64 / int64_t(sizeof(T))) __builtin_prefetch(from + Vector<T>::panel + i);
    for (int64_t i = 0; i < p.count; ++i) to[i] = from[i];
    fill(to + p.count, to + p.width, T(0));
  }
}

template <typename T>
void conv(const Sweep& s, const Conv& g, const T* values, const T* x, const T* bias, T* y, int num_threads) {
  const int64_t per_image = panels_per_image<T>(g), tasks = g.batch * per_image;
  if (tasks == 0 || s.num_rows == 0) return;
  thread_local Scratch<T> value_scratch;
  T* value = value_scratch.get(s.num_elements());
#pragma omp parallel num_threads(num_threads)
  {
    thread_local Scratch<T> packed_scratch, tile_scratch;
    thread_local Scratch<int64_t> map_scratch;
    T* packed = packed_scratch.get(s.num_columns * Vector<T>::panel);
    T* tile_y = tile_scratch.get(s.tile_rows * Vector<T>::panel);
    gather_values(s, values, value);
    // Four neighbours at a time: each has asked for the input of the next.
#pragma omp for schedule(dynamic, 4)
    for (int64_t task = 0; task < tasks; ++task) {
      const int64_t image = task / per_image;
      const Panel p = panel_at<T>(task % per_image, g.pixels());
      const PatchMap<T> map(g, p, map_scratch);
      map.pack(x + image * g.channels * g.height * g.width, p, 0, s.num_columns, packed);
      for (int64_t tile = 0; tile < s.num_tiles; ++tile) {
        const int64_t first_row = tile * s.tile_rows;
        const int64_t rows = smaller(s.tile_rows, s.num_rows - first_row);
        start_tile(bias ? bias + first_row : nullptr, rows, p.width, tile_y);
        sweep_tile(s, tile, value, packed, p.width, tile_y);
        for (int64_t r = 0; r < rows; ++r) {
          T* to = y + (image * s.num_rows + first_row + r) * g.pixels() + p.first;
          for (int64_t i = 0; i < p.count; ++i) to[i] = tile_y[r * p.width + i];
        }
      }
    }
  }
}

// Input gradient by scattering, for strides above 1; others gather, which is `conv` of dy. A tile of the patch matrix holds whole channels (Plan sees to it), so that a task, one tile of one
// image, is the only one to write its channels; it takes the panels in order.
template <typename T>
void conv_input_grad(const Sweep& s, const Conv& g, const T* values, const T* dy, T* dx, int num_threads) {
  const int64_t image_size = g.channels * g.height * g.width;
  const int64_t per_image = panels_per_image<T>(g);
  thread_local Scratch<T> value_scratch, dy_scratch;
  T* value = value_scratch.get(s.num_elements());
  const int64_t together = smaller(g.batch, num_threads);
  const int64_t packed_panel = s.num_columns * Vector<T>::panel, packed_image = per_image * packed_panel;
  T* packed = dy_scratch.get(together * packed_image);
#pragma omp parallel num_threads(num_threads)
  {
    thread_local Scratch<T> tile_scratch;
    thread_local Scratch<int64_t> map_scratch;
    T* tile_dx = tile_scratch.get(s.tile_rows * Vector<T>::panel);
    gather_values(s, values, value);
    for (int64_t first = 0; first < g.batch; first += together) {
      const int64_t count = smaller(together, g.batch - first);
#pragma omp for schedule(static) collapse(2)
      for (int64_t i = 0; i < count; ++i)
        for (int64_t panel = 0; panel < per_image; ++panel)
          pack_planes(g, dy + (first + i) * s.num_columns * g.pixels(), panel_at<T>(panel, g.pixels()), 0,
                      s.num_columns, packed + i * packed_image + panel * packed_panel);
#pragma omp for schedule(dynamic) collapse(2)
      for (int64_t i = 0; i < count; ++i)
        for (int64_t tile = 0; tile < s.num_tiles; ++tile) {
          const int64_t first_row = tile * s.tile_rows;
          const int64_t rows = smaller(s.tile_rows, s.num_rows - first_row);
          T* image = dx + (first + i) * image_size;
          const int64_t plane = g.height * g.width;
          fill(image + first_row / g.taps() * plane, image + (first_row + rows) / g.taps() * plane, T(0));
          for (int64_t panel = 0; panel < per_image; ++panel) {
            const Panel p = panel_at<T>(panel, g.pixels());
            start_tile(static_cast<const T*>(nullptr), rows, p.width, tile_dx);
            sweep_tile(s, tile, value, packed + i * packed_image + panel * packed_panel, p.width, tile_dx);
            PatchMap<T>(g, p, map_scratch).add(tile_dx, p, first_row, first_row + rows, image);
          }
        }
    }
  }
}

template <typename T>
void conv_weight_grad(const Samples& s, const Conv& g, const T* x, const T* dy, T* dvalues, int num_threads) {
  const int64_t per_image = panels_per_image<T>(g), panels = g.batch * per_image;
  if (panels == 0 || s.num_elements == 0) return fill(dvalues, dvalues + s.num_elements, T(0));
  const int64_t together = smaller(panels, 2 * num_threads);
  const int64_t left_size = s.num_rows * Vector<T>::panel, right_size = s.num_columns * Vector<T>::panel;
  thread_local Scratch<T> left_scratch, right_scratch, sums_scratch;
  T* left = left_scratch.get(together * left_size);
  T* right = right_scratch.get(together * right_size);
  T* sums = sums_scratch.get(s.num_groups() * Samples::group);
#pragma omp parallel num_threads(num_threads)
  {
    thread_local Scratch<int64_t> map_scratch;
    start_sums(s, sums);
    for (int64_t p0 = 0; p0 < panels; p0 += together) {
      const int64_t count = smaller(together, panels - p0);
#pragma omp for schedule(static)
      for (int64_t i = 0; i < count; ++i) {
        const int64_t image = (p0 + i) / per_image;
        const Panel p = panel_at<T>((p0 + i) % per_image, g.pixels());
        pack_planes(g, dy + image * s.num_rows * g.pixels(), p, 0, s.num_rows, left + i * left_size);
        PatchMap<T>(g, p, map_scratch)
            .pack(x + image * g.channels * g.height * g.width, p, 0, s.num_columns, right + i * right_size);
      }
      sample_panels(s, count, [&](int64_t i) {
        const Panel p = panel_at<T>((p0 + i) % per_image, g.pixels());
        return Pair<T>{left + i * left_size, right + i * right_size, p.width};
      }, sums);
    }
    collect_sums(s, sums, dvalues);
  }
}

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
