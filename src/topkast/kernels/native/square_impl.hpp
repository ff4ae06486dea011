// Squares of numbers whose rows become columns in registers, for one instruction set.
#pragma once

#include "panels_impl.hpp"

namespace topkast {
namespace TOPKAST_ISA_NAMESPACE {

// As many rows of as many numbers as a vector has lanes. Always inlined and unrolled, so that all stay in registers.
template <typename T>
struct Square {
  using vec = typename Vector<T>::type;
  static constexpr int64_t size = Vector<T>::lanes;
  vec row[size];

  // The first `count` numbers of a row; the others are zero.
  TOPKAST_INLINE void load(int64_t i, const T* from, int64_t count) {
    row[i] = vec{};
    for (int64_t k = 0; k < count; ++k) row[i][k] = from[k];
  }
  TOPKAST_INLINE void store(int64_t i, T* to, int64_t count) const {
    for (int64_t k = 0; k < count; ++k) to[k] = row[i][k];
  }
  TOPKAST_INLINE void transpose() {
    const Square before = *this;
    for (int64_t i = 0; i < size; ++i)
      for (int64_t k = 0; k < size; ++k) row[k][i] = before.row[i][k];
  }
};

#if TOPKAST_VECTOR_BYTES == 32
// Lanes below `count`, for loads and stores that touch no others.
TOPKAST_INLINE __m256i lanes_below(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
template <>
TOPKAST_INLINE void Square<float>::load(int64_t i, const float* from, int64_t count) {
  row[i] = (vec)(count >= size ? _mm256_loadu_ps(from) : _mm256_maskload_ps(from, lanes_below(count)));
}
template <>
TOPKAST_INLINE void Square<float>::store(int64_t i, float* to, int64_t count) const {
  if (count >= size)
    _mm256_storeu_ps(to, (__m256)row[i]);
  else
    _mm256_maskstore_ps(to, lanes_below(count), (__m256)row[i]);
}
template <>
TOPKAST_INLINE void Square<float>::transpose() {
  __m256 a[8], b[8];
#pragma GCC unroll 16
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps((__m256)row[i], (__m256)row[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps((__m256)row[i], (__m256)row[i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 16
    for (int k = 0; k < 2; ++k) {
      b[i + 2 * k] = _mm256_shuffle_ps(a[i + k], a[i + k + 2], 0x44);
      b[i + 2 * k + 1] = _mm256_shuffle_ps(a[i + k], a[i + k + 2], 0xEE);
    }
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) {
    row[i] = (vec)_mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
    row[i + 4] = (vec)_mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
  }
}
#elif TOPKAST_VECTOR_BYTES == 64
TOPKAST_INLINE __mmask16 lanes_below(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xFFFF : (1u << count) - 1);
}
template <>
TOPKAST_INLINE void Square<float>::load(int64_t i, const float* from, int64_t count) {
  row[i] = (vec)_mm512_maskz_loadu_ps(lanes_below(count), from);
}
template <>
TOPKAST_INLINE void Square<float>::store(int64_t i, float* to, int64_t count) const {
  _mm512_mask_storeu_ps(to, lanes_below(count), (__m512)row[i]);
}
template <>
TOPKAST_INLINE void Square<float>::transpose() {
  __m512 a[16], b[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps((__m512)row[i], (__m512)row[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps((__m512)row[i], (__m512)row[i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 4)  // b[i + k]: rows i to i + 3 of columns k, k + 4, k + 8 and k + 12
#pragma GCC unroll 16
    for (int k = 0; k < 2; ++k) {
      b[i + 2 * k] = _mm512_shuffle_ps(a[i + k], a[i + k + 2], 0x44);
      b[i + 2 * k + 1] = _mm512_shuffle_ps(a[i + k], a[i + k + 2], 0xEE);
    }
#pragma GCC unroll 16
  for (int k = 0; k < 4; ++k) {
    const __m512 low = _mm512_shuffle_f32x4(b[k], b[k + 4], 0x88), high = _mm512_shuffle_f32x4(b[k], b[k + 4], 0xDD);
    const __m512 low2 = _mm512_shuffle_f32x4(b[k + 8], b[k + 12], 0x88);
    const __m512 high2 = _mm512_shuffle_f32x4(b[k + 8], b[k + 12], 0xDD);
    row[k] = (vec)_mm512_shuffle_f32x4(low, low2, 0x88);
    row[k + 8] = (vec)_mm512_shuffle_f32x4(low, low2, 0xDD);
    row[k + 4] = (vec)_mm512_shuffle_f32x4(high, high2, 0x88);
    row[k + 12] = (vec)_mm512_shuffle_f32x4(high, high2, 0xDD);
  }
}
#endif

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
