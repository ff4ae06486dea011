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
    pack(operand.data, operand.columns, panel_at<T>(first_panel + i, tokens), c0, smaller(operand.columns, c0 + chunk),
         operand.panel(i));
  }
}

// The sum of each column of a packed panel.
template <typename T>
void column_sums(const T* packed, int64_t columns, int64_t width, Sum<T>* sums) {
  using vec = typename Vector<T>::type;
  for (int64_t c = 0; c < columns; ++c) {
    const vec* row = reinterpret_cast<const vec*>(packed + c * width);
    typename Vector<Sum<T>>::type acc = {};
    for (int64_t v = 0; v < width / Vector<T>::lanes; ++v) acc = added<T>(acc, row[v]);
    Sum<T> sum = acc[0];
    for (int lane = 1; lane < Vector<Sum<T>>::lanes; ++lane) sum += acc[lane];
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

// What a backward pass is given and what it is to find: dx, dvalues and dbias, each null if it is not wanted.
template <typename T>
struct Backward {
  const Sweep& s;
  const Samples& m;
  bool rows_are_outputs;  // of the weight (y = x A^T); else they are the inputs (y = x A)
  const T* x;
  const T* dy;
  int64_t tokens;
  T* dx;
  Sum<T>* dvalues;
  Sum<T>* dbias;

  int64_t panels() const { return num_panels<T>(tokens); }
  // One panel by one thread: dx and the parts of dbias, and both operands packed. What it has packed it also
  // sweeps, from its own L2.
  void prepare(int64_t panel, const T* value, Sum<T>* tile, T* packed_dy, T* packed_x, Sum<T>* parts) const {
    const Panel p = panel_at<T>(panel, tokens);
    pack(dy, s.num_columns, p, 0, s.num_columns, packed_dy);
    if (dbias) column_sums(packed_dy, s.num_columns, p.width, parts);
    for (int64_t i = 0; dx && i < s.num_tiles; ++i) finish_dx(i, p, value, tile, packed_dy);
    if (dvalues) pack(x, s.num_rows, p, 0, s.num_rows, packed_x);
  }
  void finish_dx(int64_t i, const Panel& p, const T* value, Sum<T>* tile, const T* packed_dy) const {
    finish_tile<T>(s, i, value, packed_dy, p, nullptr, tile, dx);
  }
  Pair<T> pair(int64_t panel, const T* packed_dy, const T* packed_x, Sum<T>* sums) const {
    const int64_t width = panel_at<T>(panel, tokens).width;
    return rows_are_outputs ? Pair<T>{packed_dy, packed_x, width, sums} : Pair<T>{packed_x, packed_dy, width, sums};
  }
};

// Each thread does whole lanes; called by all threads of a parallel region.
template <typename T>
void backward_by_lane(const Backward<T>& b, const Lanes& lanes, const T* value, const Sums<T>* sums, Sum<T>* parts) {
  thread_local Scratch<Sum<T>> tile_scratch;
  thread_local Scratch<T> dy_scratch, x_scratch;
  Sum<T>* tile = tile_scratch.get(b.s.tile_rows * Vector<T>::panel);
  T* packed_dy = dy_scratch.get(b.s.num_columns * Vector<T>::panel);
  T* packed_x = x_scratch.get(b.s.num_rows * Vector<T>::panel);
#pragma omp for schedule(dynamic)
  for (int64_t lane = 0; lane < lanes.count; ++lane) {
    if (sums) sums->start(lane);
    for (int64_t i = lanes.first(lane); i < lanes.first(lane + 1); ++i) {
      b.prepare(i, value, tile, packed_dy, packed_x, parts + i * b.s.num_columns);
      if (sums) sample_panel(b.m, b.pair(i, packed_dy, packed_x, sums->lane(lane)));
    }
  }
  if (b.dbias) add_parts(parts, lanes.panels, b.s.num_columns, b.dbias);
}

// Threads take turns at the panels: first a panel each, or a piece of one, then some tiles of the weight gradient for
// all of them. Called by all threads of a parallel region.
template <typename T>
void backward_together(const Backward<T>& b, const Lanes& lanes, const T* value, const Sums<T>* sums, Sum<T>* parts,
                       const Operand<T>& dy, const Operand<T>& x, int64_t together) {
  thread_local Scratch<Sum<T>> tile_scratch;
  Sum<T>* tile = tile_scratch.get(b.s.tile_rows * Vector<T>::panel);
  if (sums) start_sums(*sums, lanes);
  for (int64_t p0 = 0; p0 < lanes.panels; p0 += together) {
    const int64_t count = smaller(together, lanes.panels - p0);
    auto part = [&](int64_t i) { return parts + i * b.s.num_columns; };
    if (count >= omp_get_num_threads()) {
#pragma omp for schedule(static)
      for (int64_t i = 0; i < count; ++i) b.prepare(p0 + i, value, tile, dy.panel(i), x.panel(i), part(i));
    } else {
      pack_panels(dy, x, p0, count, b.tokens);
      if (b.dbias) {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < count; ++i)
          column_sums(dy.panel(i), b.s.num_columns, panel_at<T>(p0 + i, b.tokens).width, part(i));
      }
      if (b.dx) {
#pragma omp for schedule(dynamic) collapse(2) nowait
        for (int64_t i = 0; i < count; ++i)
          for (int64_t t = 0; t < b.s.num_tiles; ++t)
            b.finish_dx(t, panel_at<T>(p0 + i, b.tokens), value, tile, dy.panel(i));
      }
    }
    if (b.dbias) add_parts(parts, count, b.s.num_columns, b.dbias);
    if (sums)
      sample_panels<T>(
          b.m, count, [&](int64_t i) { return b.pair(p0 + i, dy.panel(i), x.panel(i), sums->lane(lanes.of(p0 + i))); });
#pragma omp barrier
  }
}

template <typename T>
void backward(const Sweep& s, const Samples& m, bool rows_are_outputs, const T* values, const T* x, const T* dy,
              int64_t tokens, T* dx, Sum<T>* dvalues, Sum<T>* dbias, int num_threads) {
  if (dbias) fill(dbias, dbias + s.num_columns, Sum<T>(0));
  if (dbias && tokens == 0) dbias = nullptr;
  if (dx && tokens == 0) dx = nullptr;
  if (dvalues && (tokens == 0 || m.num_elements == 0)) {
    fill(dvalues, dvalues + m.num_elements, Sum<T>(0));
    dvalues = nullptr;
  }
  if (!dx && !dvalues && !dbias) return;
  const Backward<T> b{s, m, rows_are_outputs, x, dy, tokens, dx, dvalues, dbias};
  const Lanes lanes = lanes_for<T>(m, b.panels());
  const bool by_lane = lanes.suffice(num_threads);
  const int64_t together = by_lane ? 0 : panels_together<T>(b.panels(), s.num_columns + s.num_rows, num_threads);
  thread_local Scratch<T> value_scratch, dy_scratch, x_scratch;
  thread_local Scratch<Sum<T>> sums_scratch, parts_scratch;
  const Operand<T> packed_dy(dy, s.num_columns, together, dy_scratch);
  const Operand<T> packed_x(x, dvalues ? s.num_rows : 0, together, x_scratch);
  const Sums<T> all_sums(m, dvalues ? lanes : Lanes{0, 0}, sums_scratch);
  const Sums<T>* sums = dvalues ? &all_sums : nullptr;
  T* value = dx ? value_scratch.get(s.room()) : nullptr;
  Sum<T>* parts = dbias ? parts_scratch.get((by_lane ? b.panels() : together) * s.num_columns) : nullptr;
#pragma omp parallel num_threads(num_threads)
  {
    if (dx) gather_values(s, values, value);
    if (by_lane)
      backward_by_lane(b, lanes, value, sums, parts);
    else
      backward_together(b, lanes, value, sums, parts, packed_dy, packed_x, together);
    if (dvalues) collect_sums<T>(m, all_sums, lanes, dvalues);
  }
}

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
