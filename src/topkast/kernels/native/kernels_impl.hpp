// The kernels, for one instruction set. Included by one .cpp per instruction set, each compiled with its own flags
// and with TOPKAST_ISA_NAMESPACE and TOPKAST_VECTOR_BYTES defined; everything here is in that namespace, so that no
// inline function of one instruction set is ever linked into another.
//
// How it works. Tokens are taken in panels of 8 vectors. A panel of x is packed so that the tokens of one column are
// contiguous; the output of a panel is kept the same way. One output row then lives in 8 vector registers while its
// elements go by: each costs a broadcast and 8 fused multiply-adds from L1, and no store. (Looping row -> element ->
// tokens instead stores the output row once per element: 15-50 GF/s on the machine where this gives 85-107.)
#pragma once

#include <omp.h>

#include <cstdint>
#include <cstdlib>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels.hpp"

namespace topkast {
namespace TOPKAST_ISA_NAMESPACE {

// In place of the standard library's: an inline function of its, compiled here with this instruction set, could be
// the copy that the linker keeps for all of them.
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
template <typename T>
inline void fill(T* first, T* last, T value) {
  for (; first != last; ++first) *first = value;
}

constexpr int kRegisters = 8;  // accumulators: enough to hide the latency of a multiply-add

template <typename T>
struct Vector {
  static constexpr int lanes = TOPKAST_VECTOR_BYTES / sizeof(T);
  typedef T type __attribute__((vector_size(TOPKAST_VECTOR_BYTES), aligned(TOPKAST_VECTOR_BYTES), may_alias));
  static constexpr int panel = kRegisters * lanes;  // tokens in a full panel
};

// Scratch memory that a thread keeps between calls.
template <typename T>
class Scratch {
 public:
  ~Scratch() { std::free(data_); }
  T* get(int64_t size) {
    if (size > capacity_) {
      std::free(data_);
      capacity_ = size;
      const size_t bytes = (static_cast<size_t>(size) * sizeof(T) + 63) / 64 * 64;
      data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
      if (!data_) {
        capacity_ = 0;
        std::abort();  // out of memory inside a parallel region: there is no way to report it
      }
    }
    return data_;
  }

 private:
  T* data_ = nullptr;
  int64_t capacity_ = 0;
};

// Tokens [first, first + count) padded to `width`, a multiple of the vector length.
struct Panel {
  int64_t first;
  int64_t count;
  int64_t width;
};

template <typename T>
int64_t num_panels(int64_t tokens) {
  return (tokens + Vector<T>::panel - 1) / Vector<T>::panel;
}

template <typename T>
Panel panel_at(int64_t index, int64_t tokens) {
  const int64_t first = index * Vector<T>::panel;
  const int64_t count = smaller(Vector<T>::panel, tokens - first);
  int64_t width = Vector<T>::panel;
  while (width / 2 >= count && width / 2 >= Vector<T>::lanes) width /= 2;
  return {first, count, width};
}

// ---- packing ------------------------------------------------------------------------------------

#if defined(__AVX2__)
inline void transpose_8x8(const float* in, int64_t in_stride, float* out, int64_t out_stride) {
  __m256 r0 = _mm256_loadu_ps(in + 0 * in_stride), r1 = _mm256_loadu_ps(in + 1 * in_stride);
  __m256 r2 = _mm256_loadu_ps(in + 2 * in_stride), r3 = _mm256_loadu_ps(in + 3 * in_stride);
  __m256 r4 = _mm256_loadu_ps(in + 4 * in_stride), r5 = _mm256_loadu_ps(in + 5 * in_stride);
  __m256 r6 = _mm256_loadu_ps(in + 6 * in_stride), r7 = _mm256_loadu_ps(in + 7 * in_stride);
  __m256 a0 = _mm256_unpacklo_ps(r0, r1), a1 = _mm256_unpackhi_ps(r0, r1);
  __m256 a2 = _mm256_unpacklo_ps(r2, r3), a3 = _mm256_unpackhi_ps(r2, r3);
  __m256 a4 = _mm256_unpacklo_ps(r4, r5), a5 = _mm256_unpackhi_ps(r4, r5);
  __m256 a6 = _mm256_unpacklo_ps(r6, r7), a7 = _mm256_unpackhi_ps(r6, r7);
  __m256 b0 = _mm256_shuffle_ps(a0, a2, 0x44), b1 = _mm256_shuffle_ps(a0, a2, 0xEE);
  __m256 b2 = _mm256_shuffle_ps(a1, a3, 0x44), b3 = _mm256_shuffle_ps(a1, a3, 0xEE);
  __m256 b4 = _mm256_shuffle_ps(a4, a6, 0x44), b5 = _mm256_shuffle_ps(a4, a6, 0xEE);
  __m256 b6 = _mm256_shuffle_ps(a5, a7, 0x44), b7 = _mm256_shuffle_ps(a5, a7, 0xEE);
  _mm256_storeu_ps(out + 0 * out_stride, _mm256_permute2f128_ps(b0, b4, 0x20));
  _mm256_storeu_ps(out + 1 * out_stride, _mm256_permute2f128_ps(b1, b5, 0x20));
  _mm256_storeu_ps(out + 2 * out_stride, _mm256_permute2f128_ps(b2, b6, 0x20));
  _mm256_storeu_ps(out + 3 * out_stride, _mm256_permute2f128_ps(b3, b7, 0x20));
  _mm256_storeu_ps(out + 4 * out_stride, _mm256_permute2f128_ps(b0, b4, 0x31));
  _mm256_storeu_ps(out + 5 * out_stride, _mm256_permute2f128_ps(b1, b5, 0x31));
  _mm256_storeu_ps(out + 6 * out_stride, _mm256_permute2f128_ps(b2, b6, 0x31));
  _mm256_storeu_ps(out + 7 * out_stride, _mm256_permute2f128_ps(b3, b7, 0x31));
}
#endif

template <typename T>
inline void transpose_8x8(const T* in, int64_t in_stride, T* out, int64_t out_stride) {
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 8; ++j) out[j * out_stride + i] = in[i * in_stride + j];
}

// Columns ahead of which a row is asked for. The rows of a panel are too many streams for the hardware to foresee:
// without this, packing takes 2.5 times as long when x is not in a near cache.
constexpr int64_t kPackAhead = 64;

// out[c * out_stride + r] = in[r * in_stride + c] for a rows x columns matrix. Blocks of 16 columns, so that the
// lines of `in` are used whole while those of `out` are still in L1. `Far`: `in` is probably not in cache.
template <bool Far, typename T>
void transpose(const T* in, int64_t in_stride, int64_t rows, int64_t columns, T* out, int64_t out_stride) {
  const int64_t whole_rows = rows / 8 * 8;
  for (int64_t c0 = 0; c0 < columns; c0 += 16) {
    const int64_t c1 = smaller(columns, c0 + 16);
    for (int64_t r = 0; r < whole_rows; r += 8) {
      int64_t c = c0;
      for (int i = 0; Far && i < 8; ++i) __builtin_prefetch(in + (r + i) * in_stride + c0 + kPackAhead);
      for (; c + 8 <= c1; c += 8) transpose_8x8(in + r * in_stride + c, in_stride, out + c * out_stride + r, out_stride);
      for (; c < c1; ++c)
        for (int64_t i = r; i < r + 8; ++i) out[c * out_stride + i] = in[i * in_stride + c];
    }
    for (int64_t r = whole_rows; r < rows; ++r)
      for (int64_t c = c0; c < c1; ++c) out[c * out_stride + r] = in[r * in_stride + c];
  }
}

// Columns [c0, c1) of a panel of x: packed[c * width + t]. Padding tokens are zero.
template <typename T>
void pack(const T* x, int64_t num_columns, const Panel& p, int64_t c0, int64_t c1, T* packed) {
  transpose<true>(x + p.first * num_columns + c0, num_columns, p.count, c1 - c0, packed + c0 * p.width, p.width);
  if (p.count < p.width)
    for (int64_t c = c0; c < c1; ++c)
      fill(packed + c * p.width + p.count, packed + (c + 1) * p.width, T(0));
}

// A dense operand and room for some of its panels.
template <typename T>
struct Operand {
  const T* data;
  int64_t columns;
  T* packed;
  Operand(const T* data, int64_t columns, int64_t panels, Scratch<T>& scratch)
      : data(data), columns(columns), packed(scratch.get(panels * columns * Vector<T>::panel)) {}
  T* panel(int64_t i) const { return packed + i * columns * Vector<T>::panel; }
};

// ---- y = x A^T ------------------------------------------------------------------------------------

// Rows are visited in order of their number of elements: what comes next is not what follows in memory.
template <typename T, int V>
inline void prefetch_row(const T* row) {
  const char* line = reinterpret_cast<const char*>(row);
  for (int i = 0; i < V * TOPKAST_VECTOR_BYTES; i += 64) __builtin_prefetch(line + i);
}

// How many elements ahead a row of x is asked for when its block does not fit into L1.
constexpr int kAhead = 8;
constexpr int64_t kL1 = 32 * 1024;

// y[0..V) += sum of value * x[column]; V vectors of tokens. Short panels take several elements at a time, so that
// there are always enough independent sums to hide the latency.
template <typename T, int V, bool Ahead>
inline void accumulate(const T* x, const uint16_t* column, const T* value, int count, T* y) {
  using vec = typename Vector<T>::type;
  constexpr int chains = kRegisters / V;
  constexpr int64_t width = V * Vector<T>::lanes;
  auto fetch = [&](int e) {
    if (Ahead) prefetch_row<T, V>(x + column[e + kAhead] * width);
  };
  vec acc[chains][V];
  for (int v = 0; v < V; ++v) acc[0][v] = reinterpret_cast<const vec*>(y)[v];
  for (int c = 1; c < chains; ++c)
    for (int v = 0; v < V; ++v) acc[c][v] = vec{} ;
  int e = 0;
  for (; e + chains <= count; e += chains)
    for (int c = 0; c < chains; ++c) {
      fetch(e + c);
      const vec* row = reinterpret_cast<const vec*>(x + column[e + c] * width);
      for (int v = 0; v < V; ++v) acc[c][v] += value[e + c] * row[v];
    }
  for (; e < count; ++e) {
    fetch(e);
    const vec* row = reinterpret_cast<const vec*>(x + column[e] * width);
    for (int v = 0; v < V; ++v) acc[0][v] += value[e] * row[v];
  }
  for (int c = 1; c < chains; ++c)
    for (int v = 0; v < V; ++v) acc[0][v] += acc[c][v];
  for (int v = 0; v < V; ++v) reinterpret_cast<vec*>(y)[v] = acc[0][v];
}

// One tile of output rows for one packed panel; y is tile_rows x width.
template <typename T, int V, bool Ahead>
void sweep_tile(const Sweep& s, int64_t tile, const T* value, const T* packed, T* y) {
  constexpr int64_t width = V * Vector<T>::lanes;
  for (int64_t block = 0; block < s.num_blocks; ++block) {
    const int64_t at = tile * s.num_blocks + block;
    const T* x = packed + block * s.block_columns * width;
    const uint16_t* column = s.column.data() + s.first_element[at];
    const T* v = value + s.first_element[at];
    for (int64_t i = s.first_segment[at]; i < s.first_segment[at + 1]; ++i) {
      const Sweep::Segment segment = s.segments[i];
      prefetch_row<T, V>(y + s.segments[i + 1].row * width);
      accumulate<T, V, Ahead>(x, column, v, segment.count, y + segment.row * width);
      column += segment.count;
      v += segment.count;
    }
  }
}

template <typename T>
void sweep_tile(const Sweep& s, int64_t tile, const T* value, const T* packed, int64_t width, T* y) {
  const bool ahead = s.block_columns * width * int64_t(sizeof(T)) > kL1;
  switch (width / Vector<T>::lanes) {
    case 8:
      return ahead ? sweep_tile<T, 8, true>(s, tile, value, packed, y) : sweep_tile<T, 8, false>(s, tile, value, packed, y);
    case 4: return sweep_tile<T, 4, false>(s, tile, value, packed, y);
    case 2: return sweep_tile<T, 2, false>(s, tile, value, packed, y);
    default: return sweep_tile<T, 1, false>(s, tile, value, packed, y);
  }
}

// Sets each row of a tile to its bias, or to zero.
template <typename T>
void start_tile(const T* bias, int64_t rows, int64_t width, T* y) {
  for (int64_t r = 0; r < rows; ++r) fill(y + r * width, y + (r + 1) * width, bias ? bias[r] : T(0));
}

// Starts the tile at the bias, sweeps it, and writes it to y.
template <typename T>
void finish_tile(const Sweep& s, int64_t tile, const T* value, const T* packed, const Panel& p, const T* bias,
                 T* scratch, T* y) {
  const int64_t first_row = tile * s.tile_rows;
  const int64_t rows = smaller(s.tile_rows, s.num_rows - first_row);
  start_tile(bias ? bias + first_row : nullptr, rows, p.width, scratch);
  sweep_tile(s, tile, value, packed, p.width, scratch);
  transpose<false>(scratch, p.width, rows, p.count, y + p.first * s.num_rows + first_row, s.num_rows);
}

// The values in sweep order; called by all threads of a parallel region.
template <typename T>
void gather_values(const Sweep& s, const T* values, T* value) {
  const int64_t n = s.num_elements();
#pragma omp for schedule(static)
  for (int64_t i = 0; i < n; ++i) value[i] = values[s.slot[i]];
}

template <typename T>
void product(const Sweep& s, const T* values, const T* x, int64_t tokens, const T* bias, T* y, int num_threads) {
  if (tokens == 0 || s.num_rows == 0) return;
  thread_local Scratch<T> value_scratch;
  T* value = value_scratch.get(s.num_elements());
  const int64_t panels = num_panels<T>(tokens);
  const bool few = panels < 2 * num_threads && num_threads > 1;
  thread_local Scratch<T> shared_scratch;
  const int64_t panel_size = s.num_columns * Vector<T>::panel;
  T* shared = few ? shared_scratch.get(panels * panel_size) : nullptr;
#pragma omp parallel num_threads(num_threads)
  {
    thread_local Scratch<T> packed_scratch, tile_scratch;
    T* tile_y = tile_scratch.get(s.tile_rows * Vector<T>::panel);
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

// ---- dW = (left^T right) on B ----------------------------------------------------------------------

// Adds the sum of each of 4 vectors to out[0..4).
template <typename T>
inline void add_sums(const typename Vector<T>::type* acc, T* out) {
  for (int j = 0; j < 4; ++j) {
    T sum = acc[j][0];
    for (int i = 1; i < Vector<T>::lanes; ++i) sum += acc[j][i];
    out[j] += sum;
  }
}

#if defined(__AVX2__)
inline void add_sums_of(__m256 a0, __m256 a1, __m256 a2, __m256 a3, float* out) {
  const __m256 h = _mm256_hadd_ps(_mm256_hadd_ps(a0, a1), _mm256_hadd_ps(a2, a3));
  const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  _mm_storeu_ps(out, _mm_add_ps(_mm_loadu_ps(out), sums));
}
#if TOPKAST_VECTOR_BYTES == 32
template <>
inline void add_sums<float>(const Vector<float>::type* a, float* out) {
  add_sums_of((__m256)a[0], (__m256)a[1], (__m256)a[2], (__m256)a[3], out);
}
#elif TOPKAST_VECTOR_BYTES == 64
inline __m256 halves_added(Vector<float>::type v) {
  const __m512 w = (__m512)v;
  return _mm256_add_ps(_mm512_castps512_ps256(w), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(w), 1)));
}
template <>
inline void add_sums<float>(const Vector<float>::type* a, float* out) {
  add_sums_of(halves_added(a[0]), halves_added(a[1]), halves_added(a[2]), halves_added(a[3]), out);
}
#endif
#endif

// sums[g][j] += left . right[column[g][j]] for `groups` groups of 4 elements of one row. The row of `left` stays in
// registers, so that an element costs one load per multiply-add and nothing else.
template <typename T, int V, bool Ahead>
inline void sample_segment(const T* left, const T* right, const uint16_t* column, int groups, T* sums) {
  using vec = typename Vector<T>::type;
  constexpr int64_t width = V * Vector<T>::lanes;
  vec l[V];
  for (int v = 0; v < V; ++v) l[v] = reinterpret_cast<const vec*>(left)[v];
  for (int g = 0; g < groups; ++g, column += 4, sums += 4) {
    if (Ahead)
      for (int j = 0; j < 4; ++j) prefetch_row<T, V>(right + column[kAhead + j] * width);
    const vec* r0 = reinterpret_cast<const vec*>(right + column[0] * width);
    const vec* r1 = reinterpret_cast<const vec*>(right + column[1] * width);
    const vec* r2 = reinterpret_cast<const vec*>(right + column[2] * width);
    const vec* r3 = reinterpret_cast<const vec*>(right + column[3] * width);
    vec acc[4] = {l[0] * r0[0], l[0] * r1[0], l[0] * r2[0], l[0] * r3[0]};
    for (int v = 1; v < V; ++v) {
      acc[0] += l[v] * r0[v];
      acc[1] += l[v] * r1[v];
      acc[2] += l[v] * r2[v];
      acc[3] += l[v] * r3[v];
    }
    add_sums<T>(acc, sums);
  }
}

// Some tiles of one block, for one panel.
template <typename T, int V, bool Ahead>
void sample_block(const Samples& s, int64_t block, int64_t first_tile, int64_t last_tile, const T* left, const T* right,
                  T* sums) {
  constexpr int64_t width = V * Vector<T>::lanes;
  const T* r = right + block * s.block_columns * width;
  for (int64_t tile = first_tile; tile < last_tile; ++tile) {
    const int64_t at = tile * s.num_blocks + block;
    const T* l = left + tile * s.tile_rows * width;
    const uint16_t* column = s.column.data() + s.first_group[at] * Samples::group;
    T* out = sums + s.first_group[at] * Samples::group;
    for (int64_t i = s.first_segment[at]; i < s.first_segment[at + 1]; ++i) {
      const Samples::Segment segment = s.segments[i];
      prefetch_row<T, V>(l + s.segments[i + 1].row * width);
      const int groups = (segment.count + Samples::group - 1) / Samples::group;
      sample_segment<T, V, Ahead>(l + segment.row * width, r, column, groups, out);
      column += groups * Samples::group;
      out += groups * Samples::group;
    }
  }
}

template <typename T>
void sample_block(const Samples& s, int64_t block, int64_t first_tile, int64_t last_tile, const T* left, const T* right,
                  int64_t width, T* sums) {
  const bool ahead = s.block_columns * width * int64_t(sizeof(T)) > kL1;
  switch (width / Vector<T>::lanes) {
    case 8:
      return ahead ? sample_block<T, 8, true>(s, block, first_tile, last_tile, left, right, sums)
                   : sample_block<T, 8, false>(s, block, first_tile, last_tile, left, right, sums);
    case 4: return sample_block<T, 4, false>(s, block, first_tile, last_tile, left, right, sums);
    case 2: return sample_block<T, 2, false>(s, block, first_tile, last_tile, left, right, sums);
    default: return sample_block<T, 1, false>(s, block, first_tile, last_tile, left, right, sums);
  }
}

// A packed panel of both operands.
template <typename T>
struct Pair {
  const T* left;
  const T* right;
  int64_t width;
};

// Panels to be packed before the weight gradient takes its turn: one per thread, or more if they are small and so is the
// work on them, so that threads wait for each other less often. (Where one fills L2, more are 2 to 20 % slower.)
template <typename T>
int64_t panels_together(int64_t panels, int64_t columns, int num_threads) {
  constexpr int64_t enough = 384 * 1024;
  const int64_t bytes = columns * Vector<T>::panel * int64_t(sizeof(T)) + 1;
  return smaller(panels, num_threads * (1 + enough / bytes));
}

// All tiles and blocks for some panels in order, pair(i) being a Pair; called by all threads of a parallel region. Who
// does a tile does not change its sums. Up to four tiles (256 rows) are taken at a time, few enough that a thread which is
// held up does not hold up all. Columns and sums of a block are still near when the next panel needs them.
template <typename T, typename F>
void sample_panels(const Samples& s, int64_t count, F&& pair, T* sums) {
  const int64_t step = 1 + smaller(3, s.num_tiles / (4 * omp_get_num_threads()));
#pragma omp for schedule(dynamic)
  for (int64_t tile = 0; tile < s.num_tiles; tile += step)
    for (int64_t block = 0; block < s.num_blocks; ++block)
      for (int64_t i = 0; i < count; ++i) {
        const Pair<T> p = pair(i);
        sample_block(s, block, tile, smaller(tile + step, s.num_tiles), p.left, p.right, p.width, sums);
      }
}

// Sets all sums to zero; called by all threads of a parallel region.
template <typename T>
void start_sums(const Samples& s, T* sums) {
#pragma omp for schedule(static)
  for (int64_t i = 0; i < s.num_groups(); ++i) fill(sums + i * Samples::group, sums + (i + 1) * Samples::group, T(0));
}

// From groups to slot order; called by all threads of a parallel region.
template <typename T>
void collect_sums(const Samples& s, const T* sums, T* out) {
#pragma omp for schedule(static)
  for (int64_t tile = 0; tile < s.num_tiles; ++tile) {
    const int64_t first = tile * s.num_blocks, last = first + s.num_blocks;
    const T* from = sums + s.first_group[first] * Samples::group;
    for (int64_t i = s.first_segment[first]; i < s.first_segment[last]; ++i) {
      const Samples::Segment segment = s.segments[i];
      for (int j = 0; j < segment.count; ++j) out[segment.first + j] = from[j];
      from += (segment.count + Samples::group - 1) / Samples::group * Samples::group;
    }
  }
}

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
