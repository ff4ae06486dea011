// y = x A^T, for one instruction set.
//
// How it works. Tokens are taken in panels of 8 vectors. A panel of x is packed so that the tokens of one column are
// contiguous; the output of a panel is kept the same way. One output row then lives in 8 vector registers while its
// elements go by: each costs a broadcast and 8 fused multiply-adds from L1, and no store. (Looping row -> element ->
// tokens instead stores the output row once per element: 15-50 GF/s on the machine where this gives 85-107.)
#pragma once

#include "panels_impl.hpp"

namespace topkast {
namespace TOPKAST_ISA_NAMESPACE {

// y[0..V) += sum of value * x[column]; V vectors of tokens. Short panels take several elements at a time, so that
// there are always enough independent sums to hide the latency.
template <typename T, int V, bool Ahead, typename Index, typename Input>
TOPKAST_INLINE void accumulate(const Input& x, const Index* column, const T* value, int count, T* y) {
  using vec = typename Vector<T>::type;
  constexpr int chains = V > kSums / 2 ? 1 : kSums / V;
  constexpr int at_once = chains > 4 ? chains : 4;
  vec acc[chains][V];
  for (int v = 0; v < V; ++v) acc[0][v] = reinterpret_cast<const vec*>(y)[v];
  for (int c = 1; c < chains; ++c)
    for (int v = 0; v < V; ++v) acc[c][v] = vec{};
  int e = 0;
  auto add = [&](int64_t column, T value, vec* sum) TOPKAST_INLINE_LAMBDA {
    const vec* row = reinterpret_cast<const vec*>(x.at(column));
    for (int v = 0; v < V; ++v) sum[v] += value * row[v];
  };
  Four<Index> next(column);
  for (; e + at_once <= count; e += at_once)
#pragma GCC unroll 8
    for (int first = 0; first < at_once; first += 4) {
      if (Ahead) {
        const Four<Index> later(column + e + first + kAhead);
        for (int i = 0; i < 4; ++i) prefetch_row<T, V>(x.at(later[i]));
      }
      const Four<Index> four = next;
      next = Four<Index>(column + e + first + 4);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) add(four[i], value[e + first + i], acc[(first + i) % chains]);
    }
  for (; e < count; ++e) add(column[e], value[e], acc[0]);
  for (int c = 1; c < chains; ++c)
    for (int v = 0; v < V; ++v) acc[0][v] += acc[c][v];
  for (int v = 0; v < V; ++v) reinterpret_cast<vec*>(y)[v] = acc[0][v];
}

// One tile of output rows: `in` says where a column of the input is, by what `columns` has for each element; `out`
// where a row of the tile is. `meanwhile` is told now and then how many segments are done.
template <typename T, int V, bool Ahead, typename Index, typename Input, typename Output, typename Meanwhile = Nothing>
void sweep_cells(const Sweep& s, int64_t tile, const Index* columns, const T* value, const Input& in, const Output& out,
                 Meanwhile&& meanwhile = {}) {
  const Output rows = out;  // what is read through a reference is read again after each store
  const Sweep::Segment* const segments = s.segments.data();
  for (int64_t block = 0; block < s.num_blocks; ++block) {
    const int64_t at = tile * s.num_blocks + block;
    const Input x = in.from(block * s.block_columns);
    const Index* column = columns + s.first_element[at];
    const T* v = value + s.first_element[at];
    for_some(s.first_segment[at], s.end_segment[at], meanwhile, [&](int64_t first, int64_t end) TOPKAST_INLINE_LAMBDA {
      for (int64_t i = first; i < end; ++i) {
        const Sweep::Segment segment = segments[i];
        prefetch_row<Sum<T>, V* int(sizeof(Sum<T>) / sizeof(T))>(rows.at(segments[i + 1].row));
        accumulate<T, V, Ahead>(x, column, v, segment.count, rows.at(segment.row));
        column += segment.count;
        v += segment.count;
      }
    });
  }
}

// One tile of output rows for one packed panel; y is tile_rows x width.
template <typename T, int V, bool Ahead, typename Meanwhile>
void sweep_tile(const Sweep& s, int64_t tile, const T* value, const T* packed, Sum<T>* y, Meanwhile&& meanwhile) {
  constexpr int64_t width = V * Vector<T>::lanes;
  sweep_cells<T, V, Ahead>(s, tile, s.column.data(), value, Even<const T, width>{packed}, Even<Sum<T>, width>{y},
                           meanwhile);
}

template <typename T, typename Meanwhile = Nothing>
void sweep_tile(const Sweep& s, int64_t tile, const T* value, const T* packed, int64_t width, Sum<T>* y,
                Meanwhile&& meanwhile = {}) {
  const bool ahead = s.block_columns * width * int64_t(sizeof(T)) > kL1;
  with_vectors<kPanel>(width / Vector<T>::lanes, [&](auto vectors) {
    constexpr int V = decltype(vectors)::value;
    if (ahead && V == kPanel)
      sweep_tile<T, V, V == kPanel>(s, tile, value, packed, y, meanwhile);
    else
      sweep_tile<T, V, false>(s, tile, value, packed, y, meanwhile);
  });
}

// Sets each row of a tile to its bias, or to zero.
template <typename T>
void start_tile(const T* bias, int64_t rows, int64_t width, T* y) {
  for (int64_t r = 0; r < rows; ++r) fill(y + r * width, y + (r + 1) * width, bias ? bias[r] : T(0));
}

// Starts the tile at the bias, sweeps it, and writes it to y.
template <typename T>
void finish_tile(const Sweep& s, int64_t tile, const T* value, const T* packed, const Panel& p, const Sum<T>* bias,
                 Sum<T>* scratch, T* y) {
  const int64_t first_row = tile * s.tile_rows;
  const int64_t rows = smaller(s.tile_rows, s.num_rows - first_row);
  start_tile(bias ? bias + first_row : nullptr, rows, p.width, scratch);
  sweep_tile(s, tile, value, packed, p.width, scratch);
  unpack(scratch, p, rows, y + first_row, s.num_rows);
}

// The values of one (tile, block) whose rows are rows of the weight.
template <typename T>
void gather_by_row(const Sweep& s, int64_t at, const T* values, T* value) {
  const uint32_t* first_slot = s.first_slot->data() + at / s.num_blocks * s.tile_rows;
  int64_t e = s.first_element[at];
  for (int64_t i = s.first_segment[at]; i < s.end_segment[at]; ++i) {
    const T* row = values + first_slot[s.segments[i].row];
    for (const int64_t end = e + s.segments[i].count; e < end; ++e) value[e] = row[s.offset[e]];
  }
}

// The values of one (tile, block) whose columns are rows of the weight.
template <typename T>
void gather_by_column(const Sweep& s, int64_t at, const T* values, T* value) {
  const int64_t first_column = at % s.num_blocks * s.block_columns;
  const int64_t columns = smaller(s.block_columns, s.num_columns - first_column);
  uint32_t first_slot[Sweep::most_block_columns];
  for (int64_t c = 0; c < columns; ++c) first_slot[c] = (*s.first_slot)[(first_column + c) / s.taps];
  for (int64_t e = s.first_element[at]; e < s.end_element[at]; ++e)
    value[e] = values[first_slot[s.column[e]] + s.offset[e]];
}

// The values in sweep order; called by all threads of a parallel region.
template <typename T>
void gather_values(const Sweep& s, const T* values, T* value) {
  const bool is_narrow = s.slot.empty();
#pragma omp for schedule(static)
  for (int64_t at = 0; at < s.num_cells(); ++at) {
    if (!is_narrow)
      for (int64_t e = s.first_element[at]; e < s.end_element[at]; ++e) value[e] = values[s.slot[e]];
    else if (s.has_weight_rows)
      gather_by_row(s, at, values, value);
    else
      gather_by_column(s, at, values, value);
  }
}

template <typename T>
void product(const Sweep& s, const T* values, const T* x, int64_t tokens, const Sum<T>* bias, T* y, int num_threads) {
  if (tokens == 0 || s.num_rows == 0) return;
  thread_local Scratch<T> value_scratch;
  T* value = value_scratch.get(s.room());
  const int64_t panels = num_panels<T>(tokens);
  const bool few = panels < 2 * num_threads && num_threads > 1;
  thread_local Scratch<T> shared_scratch;
  const int64_t panel_size = s.num_columns * Vector<T>::panel;
  T* shared = few ? shared_scratch.get(panels * panel_size) : nullptr;
#pragma omp parallel num_threads(num_threads)
  {
    thread_local Scratch<T> packed_scratch;
    thread_local Scratch<Sum<T>> tile_scratch;
    Sum<T>* tile_y = tile_scratch.get(s.tile_rows * Vector<T>::panel);
    gather_values(s, values, value);
    if (few) {
      // Fewer panels than would keep the threads busy: share the packing, then the tiles.
      constexpr int64_t chunk = 256;
      const int64_t chunks = (s.num_columns + chunk - 1) / chunk;
#pragma omp for schedule(static) collapse(2)
      for (int64_t i = 0; i < panels; ++i)
        for (int64_t c = 0; c < chunks; ++c)
          pack(x, s.num_columns, panel_at<T>(i, tokens), c * chunk, smaller(s.num_columns, (c + 1) * chunk),
               shared + i * panel_size);
#pragma omp for schedule(dynamic) collapse(2)
      for (int64_t i = 0; i < panels; ++i)
        for (int64_t tile = 0; tile < s.num_tiles; ++tile)
          finish_tile(s, tile, value, shared + i * panel_size, panel_at<T>(i, tokens), bias, tile_y, y);
    } else {
      T* packed = packed_scratch.get(panel_size);
#pragma omp for schedule(dynamic)
      for (int64_t i = 0; i < panels; ++i) {
        const Panel p = panel_at<T>(i, tokens);
        pack(x, s.num_columns, p, 0, s.num_columns, packed);
        for (int64_t tile = 0; tile < s.num_tiles; ++tile) finish_tile(s, tile, value, packed, p, bias, tile_y, y);
      }
    }
  }
}

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
