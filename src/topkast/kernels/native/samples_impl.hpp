// dW = (left^T right) on B, for one instruction set.
#pragma once

#include "panels_impl.hpp"

namespace topkast {
namespace TOPKAST_ISA_NAMESPACE {

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

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
