// The convolution kernels, for one instruction set; included after kernels_impl.hpp.
//
// In NCHW the pixels of a channel are contiguous already: packing a panel of patches is copying rows of the input, and
// the output of a panel is written as it is. Tokens are the pixels of all images in order, so that small images fill
// their panels too.
#pragma once

#include "kernels_impl.hpp"
#include "patches_impl.hpp"

namespace topkast {
namespace TOPKAST_ISA_NAMESPACE {

template <typename T>
void conv(const Sweep& s, const Conv& g, const T* values, const T* x, const T* bias, T* y, int num_threads) {
  const int64_t pixels = g.batch * g.pixels(), panels = num_panels<T>(pixels);
  if (panels == 0 || s.num_rows == 0) return;
  thread_local Scratch<T> value_scratch;
  T* value = value_scratch.get(s.room());
#pragma omp parallel num_threads(num_threads)
  {
    thread_local Scratch<T> packed_scratch, tile_scratch;
    thread_local MapScratch x_scratch, y_scratch;
    T* packed = packed_scratch.get(s.num_columns * Vector<T>::panel);
    T* tile_y = tile_scratch.get(s.tile_rows * Vector<T>::panel);
    gather_values(s, values, value);
    // Four neighbours at a time: each has asked for the input of the next.
#pragma omp for schedule(dynamic, 4)
    for (int64_t panel = 0; panel < panels; ++panel) {
      const Panel p = panel_at<T>(panel, pixels);
      PatchMap<T>(g, p, x_scratch).pack(x, 0, s.num_columns, packed);
      const PatchMap<T> to_y(planes(g, s.num_rows), p, y_scratch);
      for (int64_t tile = 0; tile < s.num_tiles; ++tile) {
        const int64_t first_row = tile * s.tile_rows;
        const int64_t rows = smaller(s.tile_rows, s.num_rows - first_row);
        start_tile(bias ? bias + first_row : nullptr, rows, p.width, tile_y);
        sweep_tile(s, tile, value, packed, p.width, tile_y);
        to_y.unpack(tile_y, first_row, first_row + rows, y);
      }
    }
  }
}

// Input gradient by scattering, for strides above 1; others gather, which is `conv` of dy. A tile of the patch matrix
// holds whole channels (Plan sees to it), so that a task, one tile of one image, is the only one to write its channels;
// it takes the panels in order.
template <typename T>
void conv_input_grad(const Sweep& s, const Conv& g, const T* values, const T* dy, T* dx, int num_threads) {
  const int64_t image_size = g.channels * g.height * g.width;
  const int64_t per_image = num_panels<T>(g.pixels());
  thread_local Scratch<T> value_scratch, dy_scratch;
  T* value = value_scratch.get(s.room());
  const int64_t together = smaller(g.batch, num_threads);
  const int64_t packed_panel = s.num_columns * Vector<T>::panel, packed_image = per_image * packed_panel;
  T* packed = dy_scratch.get(together * packed_image);
  // Here panels do not cross images.
  auto panel_of = [&](int64_t image, int64_t panel) {
    Panel p = panel_at<T>(panel, g.pixels());
    p.first += image * g.pixels();
    return p;
  };
#pragma omp parallel num_threads(num_threads)
  {
    thread_local Scratch<T> tile_scratch;
    thread_local MapScratch map_scratch;
    T* tile_dx = tile_scratch.get(s.tile_rows * Vector<T>::panel);
    gather_values(s, values, value);
    for (int64_t first = 0; first < g.batch; first += together) {
      const int64_t count = smaller(together, g.batch - first);
#pragma omp for schedule(static) collapse(2)
      for (int64_t i = 0; i < count; ++i)
        for (int64_t panel = 0; panel < per_image; ++panel)
          PatchMap<T>(planes(g, s.num_columns), panel_of(first + i, panel), map_scratch)
              .pack(dy, 0, s.num_columns, packed + i * packed_image + panel * packed_panel);
#pragma omp for schedule(dynamic) collapse(2)
      for (int64_t i = 0; i < count; ++i)
        for (int64_t tile = 0; tile < s.num_tiles; ++tile) {
          const int64_t first_row = tile * s.tile_rows;
          const int64_t rows = smaller(s.tile_rows, s.num_rows - first_row);
          T* image = dx + (first + i) * image_size;
          const int64_t plane = g.height * g.width;
          fill(image + first_row / g.taps() * plane, image + (first_row + rows) / g.taps() * plane, T(0));
          for (int64_t panel = 0; panel < per_image; ++panel) {
            const Panel p = panel_of(first + i, panel);
            start_tile(static_cast<const T*>(nullptr), rows, p.width, tile_dx);
            sweep_tile(s, tile, value, packed + i * packed_image + panel * packed_panel, p.width, tile_dx);
            PatchMap<T>(g, p, map_scratch).add(tile_dx, first_row, first_row + rows, dx);
          }
        }
    }
  }
}

template <typename T>
void conv_weight_grad(const Samples& s, const Conv& g, const T* x, const T* dy, T* dvalues, int num_threads) {
  const int64_t pixels = g.batch * g.pixels(), panels = num_panels<T>(pixels);
  if (panels == 0 || s.num_elements == 0) return fill(dvalues, dvalues + s.num_elements, T(0));
  const Lanes lanes = lanes_for<T>(panels, s.num_rows + s.num_columns);
  const bool by_lane = lanes.suffice(num_threads);
  const int64_t together = by_lane ? 0 : panels_together<T>(panels, s.num_rows + s.num_columns, num_threads);
  const int64_t left_size = s.num_rows * Vector<T>::panel, right_size = s.num_columns * Vector<T>::panel;
  thread_local Scratch<T> left_scratch, right_scratch, sums_scratch;
  T* all_left = left_scratch.get(together * left_size);
  T* all_right = right_scratch.get(together * right_size);
  const Sums<T> sums(s, lanes, sums_scratch);
#pragma omp parallel num_threads(num_threads)
  {
    thread_local MapScratch map_scratch;
    // Packs panel i and says where it is and where its products go.
    auto packed = [&](int64_t i, T* left, T* right) {
      const Panel p = panel_at<T>(i, pixels);
      PatchMap<T>(planes(g, s.num_rows), p, map_scratch).pack(dy, 0, s.num_rows, left);
      PatchMap<T>(g, p, map_scratch).pack(x, 0, s.num_columns, right);
      return Pair<T>{left, right, p.width, sums.lane(lanes.of(i))};
    };
    if (by_lane) {
      thread_local Scratch<T> own_left_scratch, own_right_scratch;
      T* left = own_left_scratch.get(left_size);
      T* right = own_right_scratch.get(right_size);
#pragma omp for schedule(dynamic)
      for (int64_t lane = 0; lane < lanes.count; ++lane) {
        sums.start(lane);
        for (int64_t i = lanes.first(lane); i < lanes.first(lane + 1); ++i) sample_panel(s, packed(i, left, right));
      }
    } else {
      start_sums(sums, lanes);
      for (int64_t p0 = 0; p0 < panels; p0 += together) {
        const int64_t count = smaller(together, panels - p0);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < count; ++i) packed(p0 + i, all_left + i * left_size, all_right + i * right_size);
        sample_panels<T>(s, count, [&](int64_t i) {
          return Pair<T>{all_left + i * left_size, all_right + i * right_size, panel_at<T>(p0 + i, pixels).width,
                         sums.lane(lanes.of(p0 + i))};
        });
      }
    }
    collect_sums(s, sums, lanes, dvalues);
  }
}

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
