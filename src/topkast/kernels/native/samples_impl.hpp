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
// Sums of pairs, interleaved, until each lane of four has all of them.
TOPKAST_INLINE __m512 pairs_added(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}
TOPKAST_INLINE __m512 fours_added(__m512 ab, __m512 cd) {
  return _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
}
template <>
inline void add_sums<float>(const Vector<float>::type* a, float* out) {
  const __m512 four = fours_added(pairs_added((__m512)a[0], (__m512)a[1]), pairs_added((__m512)a[2], (__m512)a[3]));
  const __m256 half =
      _mm256_add_ps(_mm512_castps512_ps256(four), _mm512_castps512_ps256(_mm512_shuffle_f32x4(four, four, 0x0E)));
  const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  _mm_storeu_ps(out, _mm_add_ps(_mm_loadu_ps(out), sums));
}

// The same for 8 vectors.
TOPKAST_INLINE void add_8_sums(const Vector<float>::type* a, float* out) {
  __m512 four[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
    four[i] = fours_added(pairs_added((__m512)a[4 * i], (__m512)a[4 * i + 1]),
                          pairs_added((__m512)a[4 * i + 2], (__m512)a[4 * i + 3]));
  const __m512 quarters =
      _mm512_add_ps(_mm512_shuffle_f32x4(four[0], four[1], 0x88), _mm512_shuffle_f32x4(four[0], four[1], 0xDD));
  // Lanes 0 and 1 have halves of the first four, lanes 2 and 3 of the others.
  const __m256 even = _mm512_castps512_ps256(_mm512_shuffle_f32x4(quarters, quarters, 0x08));
  const __m256 odd = _mm512_castps512_ps256(_mm512_shuffle_f32x4(quarters, quarters, 0x0D));
  _mm256_storeu_ps(out, _mm256_add_ps(_mm256_loadu_ps(out), _mm256_add_ps(even, odd)));
}
#endif
#endif

// Whether groups are taken two at a time: with as many registers as AVX-512 has, and for sums it is written for.
template <typename T>
constexpr bool kTakesPairs = TOPKAST_VECTOR_BYTES == 64 && sizeof(T) == sizeof(float);

// Rows of `right` of the columns `four`; with `Ahead` those of a later group, at `later`, are asked for.
template <typename T, int V, bool Ahead, typename Index, typename Right>
TOPKAST_INLINE void find_rows(const Right& right, const Four<Index>& four, const Index* later, int count,
                              const typename Vector<T>::type** row) {
  if (Ahead) {
    const Four<Index> asked(later);
    for (int j = 0; j < 4; ++j) prefetch_row<T, V>(right.at(asked[j]));
  }
  for (int j = 0; j < count; ++j) row[j] = reinterpret_cast<const typename Vector<T>::type*>(right.at(four[j]));
}

// sums[j] += left . right[column[j]] for the first N of a group of 4 elements of one row; `l` is the row of `left`.
template <typename T, int V, int N, bool Ahead, typename Index, typename Right>
TOPKAST_INLINE void sample_group(const typename Vector<T>::type* l, const Right& right, const Index* column,
                                 Sum<T>* sums) {
  const typename Vector<T>::type* r[N];
  find_rows<T, V, Ahead>(right, Four<Index>(column), column + kAhead, N, r);
  typename Vector<Sum<T>>::type acc[4] = {};
  for (int v = 0; v < V; ++v)
    for (int j = 0; j < N; ++j) acc[j] = added<T>(acc[j], l[v], r[j][v]);
  add_sums<Sum<T>>(acc, sums);
}

#if TOPKAST_VECTOR_BYTES == 64
// The same for the first N of two groups, more than one has.
template <typename T, int V, int N, bool Ahead, typename Index, typename Right>
TOPKAST_INLINE void sample_pair(const typename Vector<T>::type* l, const Right& right, const Four<Index>& four,
                                const Four<Index>& others, const Index* later, Sum<T>* sums) {
  const typename Vector<T>::type* r[8];
  find_rows<T, V, Ahead>(right, four, later, 4, r);
  find_rows<T, V, Ahead>(right, others, later + 4, N - 4, r + 4);
  typename Vector<Sum<T>>::type acc[8] = {};
  for (int v = 0; v < V; ++v)
    for (int j = 0; j < N; ++j) acc[j] = added<T>(acc[j], l[v], r[j][v]);
  add_8_sums(acc, sums);
}
#endif

// sums[j] += left . right[column[j]] for `count` elements of one row. The row of `left` stays in registers, so that an
// element costs one load per multiply-add and nothing else. Rows come in order of their count: the switch is foreseen.
template <typename T, int V, bool Ahead, typename Index, typename Right>
TOPKAST_INLINE void sample_segment(const T* left, const Right& right, const Index* column, int count, Sum<T>* sums) {
  using vec = typename Vector<T>::type;
  vec l[V];
  for (int v = 0; v < V; ++v) l[v] = reinterpret_cast<const vec*>(left)[v];
#if TOPKAST_VECTOR_BYTES == 64
  if constexpr (kTakesPairs<Sum<T>>) {
    Four<Index> four(column), others(column + 4);
    for (; count >= 8; count -= 8, column += 8, sums += 8) {
      const Four<Index> f = four, o = others;
      four = Four<Index>(column + 8), others = Four<Index>(column + 12);
      sample_pair<T, V, 8, Ahead>(l, right, f, o, column + kAhead, sums);
    }
    switch (count) {
      case 7:
        return sample_pair<T, V, 7, Ahead>(l, right, four, others, column + kAhead, sums);
      case 6:
        return sample_pair<T, V, 6, Ahead>(l, right, four, others, column + kAhead, sums);
      case 5:
        return sample_pair<T, V, 5, Ahead>(l, right, four, others, column + kAhead, sums);
    }
  }
#endif
  for (; count >= 4; count -= 4, column += 4, sums += 4) sample_group<T, V, 4, Ahead>(l, right, column, sums);
  switch (count) {
    case 3:
      return sample_group<T, V, 3, Ahead>(l, right, column, sums);
    case 2:
      return sample_group<T, V, 2, Ahead>(l, right, column, sums);
    case 1:
      return sample_group<T, V, 1, Ahead>(l, right, column, sums);
  }
}

// Some tiles of one block; `left` and `right` say where rows and columns are, the latter by what `columns` has for each
// element. `meanwhile` is called once for each segment.
template <typename T, int V, bool Ahead, typename Index, typename Left, typename Right, typename Meanwhile = Nothing>
void sample_cells(const Samples& s, const Index* columns, int64_t block, int64_t first_tile, int64_t last_tile,
                  const Left& left, const Right& right, Sum<T>* sums, Meanwhile&& meanwhile = {}) {
  const Right r = right.from(block * s.block_columns);
  for (int64_t tile = first_tile; tile < last_tile; ++tile) {
    const int64_t at = tile * s.num_blocks + block;
    const Left l = left.from(tile * s.tile_rows);
    const Index* column = columns + s.first_group[at] * Samples::group;
    Sum<T>* out = sums + s.first_group[at] * Samples::group;
    for (int64_t i = s.first_segment[at]; i < s.first_segment[at + 1]; ++i) {
      const Samples::Segment segment = s.segments[i];
      prefetch_row<T, V>(l.at(s.segments[i + 1].row));
      const int groups = (segment.count + Samples::group - 1) / Samples::group;
      meanwhile(1);
      sample_segment<T, V, Ahead>(l.at(segment.row), r, column, segment.count, out);
      column += groups * Samples::group;
      out += groups * Samples::group;
    }
  }
}

// Some tiles of one block, for one panel.
template <typename T, int V, bool Ahead, typename Meanwhile>
void sample_block(const Samples& s, int64_t block, int64_t first_tile, int64_t last_tile, const T* left, const T* right,
                  Sum<T>* sums, Meanwhile&& meanwhile) {
  constexpr int64_t width = V * Vector<T>::lanes;
  sample_cells<T, V, Ahead>(s, s.column.data(), block, first_tile, last_tile, Even<const T, width>{left},
                            Even<const T, width>{right}, sums, meanwhile);
}

template <typename T, typename Meanwhile>
void sample_block(const Samples& s, int64_t block, int64_t first_tile, int64_t last_tile, const T* left, const T* right,
                  int64_t width, Sum<T>* sums, Meanwhile&& meanwhile) {
  const bool ahead = s.block_columns * width * int64_t(sizeof(T)) > kL1;
  with_vectors<kPanel>(width / Vector<T>::lanes, [&](auto vectors) {
    constexpr int V = decltype(vectors)::value;
    if (ahead && V == kPanel)
      sample_block<T, V, V == kPanel>(s, block, first_tile, last_tile, left, right, sums, meanwhile);
    else
      sample_block<T, V, false>(s, block, first_tile, last_tile, left, right, sums, meanwhile);
  });
}

// A packed panel of both operands, and where its products are added.
template <typename T>
struct Pair {
  const T* left;
  const T* right;
  int64_t width;
  Sum<T>* sums;
};

// Panels to be packed before the weight gradient takes its turn: one per thread, or more if they are small and so is
// the work on them, so that threads wait for each other less often. (Where one fills L2, more are 2 to 20 % slower.)
template <typename T>
int64_t panels_together(int64_t panels, int64_t columns, int num_threads) {
  constexpr int64_t enough = 384 * 1024;
  const int64_t bytes = columns * Vector<T>::panel * int64_t(sizeof(T)) + 1;
  return smaller(panels, num_threads * (1 + enough / bytes));
}

// Consecutive panels whose products are added up apart from the others'. Where their sums do not take much memory, a
// thread does whole lanes by itself: it waits for nobody and reads nothing that another core has packed. (The backward
// pass of 1024 x 1024 is 5 to 25 % faster on two threads, the more the noisier the machine.) Each lane is shorter than
// the one before, so that threads which take the next one whenever they are free end at about the same time. Lanes
// follow from the sizes alone: sums have the same bits for every number of threads.
struct Lanes {
  int64_t count;
  int64_t panels;
  int64_t first(int64_t lane) const {
    const int64_t left = count - lane;
    return panels - panels * left * left / (count * count);
  }
  int64_t of(int64_t panel) const {
    int64_t lane = 0;
    while (first(lane + 1) <= panel) ++lane;
    return lane;
  }
  // Whether that many threads have enough to do with whole lanes.
  bool suffice(int num_threads) const { return count > 1 && 2 * num_threads <= count; }
};

template <typename T>
Lanes lanes_for(const Samples& s, int64_t panels, int64_t least_panels = 2) {
  constexpr int64_t most = 8, enough = 16 << 20;
  const int64_t bytes = s.num_groups() * Samples::group * int64_t(sizeof(Sum<T>)) + 1;
  const int64_t count = smaller(smaller(most, panels / least_panels), enough / bytes);
  return {count > 0 ? count : 1, panels};
}

// Up to four tiles (256 rows) are taken at a time. Columns and sums of a block are still near when the next panel needs
// them.
template <typename T, typename F, typename Meanwhile = Nothing>
void sample_tiles(const Samples& s, int64_t first_tile, int64_t last_tile, int64_t count, F&& pair,
                  Meanwhile&& meanwhile = {}) {
  for (int64_t block = 0; block < s.num_blocks; ++block)
    for (int64_t i = 0; i < count; ++i) {
      const Pair<T> p = pair(i);
      sample_block(s, block, first_tile, last_tile, p.left, p.right, p.width, p.sums, meanwhile);
    }
}

constexpr int64_t kTilesAtOnce = 4;

// All tiles and blocks for one panel, by the calling thread.
template <typename T, typename Meanwhile = Nothing>
void sample_panel(const Samples& s, const Pair<T>& pair, Meanwhile&& meanwhile = {}) {
  for (int64_t tile = 0; tile < s.num_tiles; tile += kTilesAtOnce)
    sample_tiles<T>(s, tile, smaller(tile + kTilesAtOnce, s.num_tiles), 1, [&](int64_t) { return pair; }, meanwhile);
}

// All tiles and blocks for some panels in order, pair(i) being a Pair; called by all threads of a parallel region. Who
// does a tile does not change its sums. Few enough tiles are taken at a time that a thread which is held up does not
// hold up all.
template <typename T, typename F>
void sample_panels(const Samples& s, int64_t count, F&& pair) {
  const int64_t share = s.num_tiles / (4 * omp_get_num_threads());
  const int64_t step = share < 1 ? 1 : smaller(kTilesAtOnce, share);
#pragma omp for schedule(dynamic)
  for (int64_t tile = 0; tile < s.num_tiles; tile += step)
    sample_tiles<T>(s, tile, smaller(tile + step, s.num_tiles), count, pair);
}

// The sums of all lanes: groups as in `Samples`, one lane after the other.
template <typename T>
struct Sums {
  Sum<T>* data;
  int64_t size;
  Sums(const Samples& s, const Lanes& lanes, Scratch<Sum<T>>& scratch)
      : data(scratch.get(lanes.count * s.num_groups() * Samples::group)), size(s.num_groups() * Samples::group) {}
  Sum<T>* lane(int64_t i) const { return data + i * size; }
  void start(int64_t i) const { fill(lane(i), lane(i) + size, Sum<T>(0)); }
};

// Sets all sums to zero; called by all threads of a parallel region.
template <typename T>
void start_sums(const Sums<T>& sums, const Lanes& lanes) {
  const int64_t groups = lanes.count * sums.size / Samples::group;
#pragma omp for schedule(static)
  for (int64_t i = 0; i < groups; ++i)
    fill(sums.data + i * Samples::group, sums.data + (i + 1) * Samples::group, Sum<T>(0));
}

// From groups to slot order, lanes added in their order; called by all threads of a parallel region.
template <typename T>
void collect_sums(const Samples& s, const Sums<T>& sums, const Lanes& lanes, Sum<T>* out) {
#pragma omp for schedule(static)
  for (int64_t tile = 0; tile < s.num_tiles; ++tile) {
    const int64_t first = tile * s.num_blocks, last = first + s.num_blocks;
    Sum<T>* from = sums.data + s.first_group[first] * Samples::group;
    Sum<T>* end = sums.data + s.first_group[last] * Samples::group;
    for (int64_t lane = 1; lane < lanes.count; ++lane)
      for (Sum<T>* to = from; to != end; ++to) *to += to[lane * sums.size];
    uint32_t next[Samples::most_tile_rows];
    const int64_t first_row = tile * s.tile_rows, rows = smaller(s.tile_rows, s.num_rows - first_row);
    for (int64_t r = 0; r < rows; ++r) next[r] = (*s.first_sample)[first_row + r];
    for (int64_t i = s.first_segment[first]; i < s.first_segment[last]; ++i) {
      const Samples::Segment segment = s.segments[i];
      Sum<T>* to = out + next[segment.row];
      next[segment.row] += segment.count;
      for (int j = 0; j < segment.count; ++j) to[j] = from[j];
      from += (segment.count + Samples::group - 1) / Samples::group * Samples::group;
    }
  }
}

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
