// Convolutions of one tap, for one instruction set: pixels are the tokens of a linear layer.
//
// In NCHW the pixels of a channel are contiguous already: packing a panel is copying pieces of rows, and the output of
// a panel is written as it is. Tokens are the pixels of all images in order, so that small images fill their panels
// too.
#pragma once

#include "kernels_impl.hpp"
#include "pixels_impl.hpp"

namespace topkast {
namespace TOPKAST_ISA_NAMESPACE {

// Where a product of pixels goes, and room for a tile of some panels.
template <typename T>
struct PixelOutput {
  const Sweep& s;
  const T* value;  // in sweep order
  const T* bias;
  const Conv& to;
  T* out;
  bool past() const { return to.batch * to.channels * to.height * to.width * int64_t(sizeof(T)) >= kPastCaches; }
  // All tiles of the panels that `inputs` has packed, by the calling thread. `meanwhile` is called now and then.
  template <typename Meanwhile>
  void finish(const PixelMaps<T>& inputs, int64_t first_panel, const T* packed, int64_t packed_size,
              Meanwhile&& meanwhile) const {
    thread_local Scratch<T> scratch;
    thread_local MapScratch maps[kMostPanels];
    const int64_t count = inputs.count(), tile_size = s.tile_rows * Vector<T>::panel;
    T* tile_y = scratch.get(count * tile_size);
    const PixelMaps<T> outputs(to, first_panel, count, maps);
    for (int64_t tile = 0; tile < s.num_tiles; ++tile) {
      const int64_t first_row = tile * s.tile_rows, rows = smaller(s.tile_rows, s.num_rows - first_row);
      for (int64_t i = 0; i < count; ++i) {
        start_tile(bias ? bias + first_row : nullptr, rows, inputs.width(i), tile_y + i * tile_size);
        sweep_tile(s, tile, value, packed + i * packed_size, inputs.width(i), tile_y + i * tile_size, meanwhile);
      }
      outputs.unpack(tile_y, tile_size, first_row, rows, past(), out);
    }
  }
};

// out = in A^T for pixels; `from` and `to` say where those of the input and of the output are.
template <typename T>
void pixel_product(const Sweep& s, const Conv& from, const Conv& to, const T* values, const T* in, const T* bias,
                   T* out, int num_threads) {
  const int64_t panels = num_panels<T>(from.batch * from.pixels());
  if (panels == 0 || s.num_rows == 0) return;
  thread_local Scratch<T> value_scratch;
  T* value = value_scratch.get(s.room());
  const PixelOutput<T> output{s, value, bias, to, out};
  const int64_t at_once = panels_at_once<T>(s.num_columns + s.tile_rows);
#pragma omp parallel num_threads(num_threads)
  {
    thread_local Scratch<T> packed_scratch;
    thread_local MapScratch maps[kMostPanels], next_maps[kMostPanels];
    const int64_t packed_size = s.num_columns * Vector<T>::panel;
    T* packed = packed_scratch.get(at_once * packed_size);
    gather_values(s, values, value);
#pragma omp for schedule(dynamic)
    for (int64_t panel = 0; panel < panels; panel += at_once) {
      const PixelMaps<T> inputs(from, panel, smaller(at_once, panels - panel), maps);
      inputs.pack(in, s.num_columns, packed, packed_size);
      // What this thread takes next, if threads keep step.
      const int64_t next = panel + at_once * num_threads;
      const PixelMaps<T> coming(from, smaller(next, panels), smaller(at_once, panels - smaller(next, panels)),
                                next_maps);
      output.finish(inputs, panel, packed, packed_size,
                    typename PixelMaps<T>::Asker(coming, in, s.num_columns, inputs.count() * s.segments.size()));
    }
    finish_writes();
  }
}

template <typename T>
void pixel_conv(const Sweep& s, const Conv& g, const T* values, const T* x, const T* bias, T* y, int num_threads) {
  pixel_product(s, g, planes(g, s.num_rows), values, x, bias, y, num_threads);
}

// Pixels of dx that no output pixel has read are zero. With a stride of 1 all are read, if the output is whole.
template <typename T>
void clear_input_grad(const Conv& g, T* dx, int num_threads) {
  const int64_t plane = g.height * g.width;
  if (g.stride_height == 1 && g.stride_width == 1 && g.out_height == g.height + 2 * g.padding_height &&
      g.out_width == g.width + 2 * g.padding_width)
    return;
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t i = 0; i < g.batch * g.channels; ++i) fill(dx + i * plane, dx + (i + 1) * plane, T(0));
}

// Both gradients; dx and dvalues may be null. `s` is the transposed matrix.
template <typename T>
void pixel_backward(const Sweep& s, const Samples& m, const Conv& g, const T* values, const T* x, const T* dy, T* dx,
                    T* dvalues, int num_threads) {
  const int64_t pixels = g.batch * g.pixels(), panels = num_panels<T>(pixels);
  if (dx) clear_input_grad(g, dx, num_threads);
  if (dvalues && (panels == 0 || m.num_elements == 0)) {
    fill(dvalues, dvalues + m.num_elements, T(0));
    dvalues = nullptr;
  }
  const Lanes lanes = lanes_for<T>(m, panels);
  const bool by_lane = lanes.suffice(num_threads);
  if (dx && !(dvalues && by_lane)) {
    pixel_product(s, planes(g, s.num_columns), g, values, dy, static_cast<const T*>(nullptr), dx, num_threads);
    dx = nullptr;
  }
  if (!dvalues) return;
  const int64_t together = by_lane ? 0 : panels_together<T>(panels, m.num_rows + m.num_columns, num_threads);
  const int64_t at_once = panels_at_once<T>(m.num_rows + m.num_columns + (dx ? s.tile_rows : 0));
  const int64_t left_size = m.num_rows * Vector<T>::panel, right_size = m.num_columns * Vector<T>::panel;
  thread_local Scratch<T> value_scratch, left_scratch, right_scratch, sums_scratch;
  T* value = dx ? value_scratch.get(s.room()) : nullptr;
  T* all_left = left_scratch.get(together * left_size);
  T* all_right = right_scratch.get(together * right_size);
  const Sums<T> sums(m, lanes, sums_scratch);
  const PixelOutput<T> input_grad{s, value, nullptr, g, dx};
#pragma omp parallel num_threads(num_threads)
  {
    thread_local MapScratch left_maps[kMostPanels], right_maps[kMostPanels], next_maps[kMostPanels];
    // Packs `count` panels from panel i on; what is found of dx on the way is written, and x asked for meanwhile.
    auto pack_both = [&](int64_t i, int64_t count, T* left, T* right) {
      const PixelMaps<T> outputs(planes(g, m.num_rows), i, count, left_maps), inputs(g, i, count, right_maps);
      outputs.pack(dy, m.num_rows, left, left_size);
      if (dx)
        input_grad.finish(outputs, i, left, left_size,
                          typename PixelMaps<T>::Asker(inputs, x, m.num_columns, count * s.segments.size()));
      inputs.pack(x, m.num_columns, right, right_size);
    };
    // What is to be multiplied for panel i, and where the products go.
    auto pair = [&](int64_t i, const T* left, const T* right) {
      return Pair<T>{left, right, panel_at<T>(i, pixels).width, sums.lane(lanes.of(i))};
    };
    if (dx) gather_values(s, values, value);
    if (by_lane) {
      thread_local Scratch<T> own_left_scratch, own_right_scratch;
      T* left = own_left_scratch.get(at_once * left_size);
      T* right = own_right_scratch.get(at_once * right_size);
#pragma omp for schedule(dynamic)
      for (int64_t lane = 0; lane < lanes.count; ++lane) {
        sums.start(lane);
        const int64_t end = lanes.first(lane + 1);
        for (int64_t i = lanes.first(lane); i < end; i += at_once) {
          const int64_t count = smaller(at_once, end - i);
          pack_both(i, count, left, right);
          const PixelMaps<T> coming(planes(g, m.num_rows), i + count, smaller(at_once, end - i - count), next_maps);
          typename PixelMaps<T>::Asker asker(coming, dy, m.num_rows, count * m.segments.size());
          for (int64_t k = 0; k < count; ++k)
            sample_panel(m, pair(i + k, left + k * left_size, right + k * right_size), asker);
        }
      }
      finish_writes();
    } else {
      start_sums(sums, lanes);
      for (int64_t p0 = 0; p0 < panels; p0 += together) {
        const int64_t count = smaller(together, panels - p0);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < count; ++i) pack_both(p0 + i, 1, all_left + i * left_size, all_right + i * right_size);
        sample_panels<T>(m, count,
                         [&](int64_t i) { return pair(p0 + i, all_left + i * left_size, all_right + i * right_size); });
      }
    }
    collect_sums(m, sums, lanes, dvalues);
  }
}

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
