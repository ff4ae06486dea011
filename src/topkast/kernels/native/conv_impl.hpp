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

// Calls f(offset in the panel, output row, first output column, length) for each run of pixels in one output row.
template <typename F>
inline void for_each_run(const Conv& g, const Panel& p, F&& f) {
  int64_t pixel = p.first;
  const int64_t end = p.first + p.count;
  while (pixel < end) {
    const int64_t row = pixel / g.out_width, column = pixel - row * g.out_width;
    const int64_t length = smaller(g.out_width - column, end - pixel);
    f(pixel - p.first, row, column, length);
    pixel += length;
  }
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

// Patches of one panel of one image, columns [c0, c1): packed[c * width + pixel].
template <typename T>
void pack_patches(const Conv& g, const T* image, const Panel& p, int64_t c0, int64_t c1, T* packed) {
  for (int64_t c = c0; c < c1; ++c) {
    const int64_t channel = c / g.taps(), tap = c - channel * g.taps();
    const int64_t tap_row = tap / g.kernel_width, tap_column = tap - tap_row * g.kernel_width;
    const T* plane = image + channel * g.height * g.width;
    T* to = packed + c * p.width;
    for_each_run(g, p, [&](int64_t offset, int64_t row, int64_t column, int64_t length) {
      T* out = to + offset;
      const int64_t in_row = row * g.stride_height - g.padding_height + tap_row * g.dilation_height;
      if (in_row < 0 || in_row >= g.height) return fill(out, out + length, T(0));
      const Inside inside(g, column, length, tap_column);
      const T* from = plane + in_row * g.width + inside.start;
      fill(out, out + inside.low, T(0));
      if (g.stride_width == 1)
        for (int64_t i = inside.low; i < inside.high; ++i) out[i] = from[i];
      else
        for (int64_t i = inside.low; i < inside.high; ++i) out[i] = from[i * g.stride_width];
      fill(out + inside.high, out + length, T(0));
    });
    fill(to + p.count, to + p.width, T(0));
  }
}

// Adds gradients of patches, rows [first, first + count) of the patch matrix, to the image's gradient.
template <typename T>
void add_patches(const Conv& g, const T* patches, const Panel& p, int64_t first, int64_t count, T* image) {
  for (int64_t c = first; c < first + count; ++c, patches += p.width) {
    const int64_t channel = c / g.taps(), tap = c - channel * g.taps();
    const int64_t tap_row = tap / g.kernel_width, tap_column = tap - tap_row * g.kernel_width;
    T* plane = image + channel * g.height * g.width;
    for_each_run(g, p, [&](int64_t offset, int64_t row, int64_t column, int64_t length) {
      const int64_t in_row = row * g.stride_height - g.padding_height + tap_row * g.dilation_height;
      if (in_row < 0 || in_row >= g.height) return;
      const Inside inside(g, column, length, tap_column);
      T* to = plane + in_row * g.width + inside.start;
      for (int64_t i = inside.low; i < inside.high; ++i) to[i * g.stride_width] += patches[offset + i];
    });
  }
}

// Rows [c0, c1) of a panel of y or dy: plain copies.
template <typename T>
void pack_planes(const Conv& g, const T* image, const Panel& p, int64_t c0, int64_t c1, T* packed) {
  for (int64_t c = c0; c < c1; ++c) {
    const T* from = image + c * g.pixels() + p.first;
    T* to = packed + c * p.width;
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
    T* packed = packed_scratch.get(s.num_columns * Vector<T>::panel);
    T* tile_y = tile_scratch.get(s.tile_rows * Vector<T>::panel);
    gather_values(s, values, value);
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < tasks; ++task) {
      const int64_t image = task / per_image;
      const Panel p = panel_at<T>(task % per_image, g.pixels());
      pack_patches(g, x + image * g.channels * g.height * g.width, p, 0, s.num_columns, packed);
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

// Input gradient. A tile of the patch matrix holds whole channels (Plan sees to it), so that a task, one tile of one
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
            add_patches(g, tile_dx, p, first_row, rows, image);
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
    start_sums(s, sums);
    for (int64_t p0 = 0; p0 < panels; p0 += together) {
      const int64_t count = smaller(together, panels - p0);
      constexpr int64_t chunk = 64;
      const int64_t chunks = (s.num_columns + chunk - 1) / chunk;
#pragma omp for schedule(static) collapse(2)
      for (int64_t i = 0; i < count; ++i)
        for (int64_t c = 0; c <= chunks; ++c) {
          const int64_t image = (p0 + i) / per_image;
          const Panel p = panel_at<T>((p0 + i) % per_image, g.pixels());
          if (c == chunks)
            pack_planes(g, dy + image * s.num_rows * g.pixels(), p, 0, s.num_rows, left + i * left_size);
          else
            pack_patches(g, x + image * g.channels * g.height * g.width, p, c * chunk,
                         smaller(s.num_columns, (c + 1) * chunk), right + i * right_size);
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
