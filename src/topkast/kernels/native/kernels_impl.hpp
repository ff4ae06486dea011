// The backward pass of a linear layer, for one instruction set: both gradients from one packing of dy.
#pragma once

#include "samples_impl.hpp"
#include "sweep_impl.hpp"

namespace topkast {
namespace TOPKAST_ISA_NAMESPACE {

// Packs the given panels of `left` and `right`; called by all threads of a parallel region.
template <typename T>
void pack_panels(const Operand<T>& a, const Operand<T>& b, int64_t first_panel, int64_t count, int64_t tokens) {
  constexpr int64_t chunk = 256;
  const int64_t a_chunks = (a.columns + chunk - 1) / chunk;
  const int64_t per_panel = a_chunks + (b.columns + chunk - 1) / chunk;
#pragma omp for schedule(static)
  for (int64_t job = 0; job < count * per_panel; ++job) {
    const int64_t i = job / per_panel, c = job % per_panel;
    const Operand<T>& operand = c < a_chunks ? a : b;
    const int64_t c0 = (c < a_chunks ? c : c - a_chunks) * chunk;
    pack(operand.data, operand.columns, panel_at<T>(first_panel + i, tokens), c0,
         smaller(operand.columns, c0 + chunk), operand.panel(i));
  }
}

// The sum of each column of a packed panel.
template <typename T>
void column_sums(const T* packed, int64_t columns, int64_t width, T* sums) {
  using vec = typename Vector<T>::type;
  for (int64_t c = 0; c < columns; ++c) {
    const vec* row = reinterpret_cast<const vec*>(packed + c * width);
    vec acc = row[0];
    for (int64_t v = 1; v < width / Vector<T>::lanes; ++v) acc += row[v];
    T sum = acc[0];
    for (int lane = 1; lane < Vector<T>::lanes; ++lane) sum += acc[lane];
    sums[c] = sum;
  }
}

// total[c] += parts[0][c] + parts[1][c] + ..., in this order; called by all threads of a parallel region.
template <typename T>
void add_parts(const T* parts, int64_t count, int64_t columns, T* total) {
#pragma omp for schedule(static) nowait
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t i = 0; i < count; ++i) total[c] += parts[i * columns + c];
}

template <typename T>
void backward(const Sweep& s, const Samples& m, bool rows_are_outputs, const T* values, const T* x, const T* dy,
              int64_t tokens, T* dx, T* dvalues, T* dbias, int num_threads) {
  if (dbias) fill(dbias, dbias + s.num_columns, T(0));
  if (dbias && tokens == 0) dbias = nullptr;
  if (dx && tokens == 0) dx = nullptr;
  if (dvalues && (tokens == 0 || m.num_elements == 0)) {
    fill(dvalues, dvalues + m.num_elements, T(0));
    dvalues = nullptr;
  }
  if (!dx && !dvalues && !dbias) return;
  const int64_t panels = num_panels<T>(tokens);
  const int64_t together = panels_together<T>(panels, s.num_columns + s.num_rows, num_threads);
  thread_local Scratch<T> value_scratch, dy_scratch, x_scratch, sums_scratch, parts_scratch;
  Operand<T> packed_dy(dy, s.num_columns, together, dy_scratch);
  Operand<T> packed_x(x, dvalues ? s.num_rows : 0, together, x_scratch);
  T* value = dx ? value_scratch.get(s.num_elements()) : nullptr;
  T* sums = dvalues ? sums_scratch.get(m.num_groups() * Samples::group) : nullptr;
  T* parts = dbias ? parts_scratch.get(together * s.num_columns) : nullptr;
  // The weight's rows are the outputs (y = x A^T) or the inputs (y = x A).
  const Operand<T>& left = rows_are_outputs ? packed_dy : packed_x;
  const Operand<T>& right = rows_are_outputs ? packed_x : packed_dy;
#pragma omp parallel num_threads(num_threads)
  {
    thread_local Scratch<T> tile_scratch;
    T* tile_dx = dx ? tile_scratch.get(s.tile_rows * Vector<T>::panel) : nullptr;
    if (dx) gather_values(s, values, value);
    if (dvalues) start_sums(m, sums);
    for (int64_t p0 = 0; p0 < panels; p0 += together) {
      const int64_t count = smaller(together, panels - p0);
      auto finish_dx = [&](int64_t i, int64_t tile) {
        finish_tile(s, tile, value, packed_dy.panel(i), panel_at<T>(p0 + i, tokens), static_cast<const T*>(nullptr),
                    tile_dx, dx);
      };
      if (count >= num_threads) {
        // A whole panel per thread: what it has packed it also sweeps, from its own L2.
#pragma omp for schedule(static)
        for (int64_t i = 0; i < count; ++i) {
          const Panel p = panel_at<T>(p0 + i, tokens);
          pack(dy, s.num_columns, p, 0, s.num_columns, packed_dy.panel(i));
          if (dbias) column_sums(packed_dy.panel(i), s.num_columns, p.width, parts + i * s.num_columns);
          for (int64_t tile = 0; dx && tile < s.num_tiles; ++tile) finish_dx(i, tile);
          if (dvalues) pack(x, s.num_rows, p, 0, s.num_rows, packed_x.panel(i));
        }
      } else {
        pack_panels(packed_dy, packed_x, p0, count, tokens);
        if (dbias) {
#pragma omp for schedule(static)
          for (int64_t i = 0; i < count; ++i)
            column_sums(packed_dy.panel(i), s.num_columns, panel_at<T>(p0 + i, tokens).width, parts + i * s.num_columns);
        }
        if (dx) {
#pragma omp for schedule(dynamic) collapse(2) nowait
          for (int64_t i = 0; i < count; ++i)
            for (int64_t tile = 0; tile < s.num_tiles; ++tile) finish_dx(i, tile);
        }
      }
      if (dbias) add_parts(parts, count, s.num_columns, dbias);
      if (dvalues)
        sample_panels(m, count, [&](int64_t i) {
          return Pair<T>{left.panel(i), right.panel(i), panel_at<T>(p0 + i, tokens).width};
        }, sums);
#pragma omp barrier
    }
    if (dvalues) collect_sums(m, sums, dvalues);
  }
}

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
