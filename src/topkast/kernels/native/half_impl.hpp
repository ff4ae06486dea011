// Products of linear layers in 16 bits, by AVX-512's pairs of products; included after kernels_impl.hpp.
//
// The instruction adds a[2i] * b[2i] + a[2i + 1] * b[2i + 1] to sum i. In the weight gradient these are two tokens of a
// column. In the forward product they are one token of two columns, which are brought together as they are loaded: a
// pair of elements of a row costs two loads, two shuffles and two instructions for 32 tokens. Sums have 32 bits.
// (Making floats of the numbers in registers instead would take two instructions more for each two multiply-adds.)
#pragma once

#include <cstring>

#include "kernels_impl.hpp"
#include "square_impl.hpp"

namespace topkast {
namespace TOPKAST_ISA_NAMESPACE {

template <>
TOPKAST_INLINE Vector<float>::type added<Half>(Vector<float>::type sum, Vector<Half>::type a, Vector<Half>::type b) {
  return (Vector<float>::type)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
template <>
TOPKAST_INLINE Vector<float>::type added<Half>(Vector<float>::type sum, Vector<Half>::type a) {
  return added<Half>(sum, a, (Vector<Half>::type)_mm512_set1_epi16(0x3F80));  // times 1
}

// Of 32 tokens, packed number 2i is token i, and 2i + 1 is token 16 + i: words of two columns are transposed as one,
// and those of both halves of the tokens put together. Shuffles then take lanes of four apart: number 4m + j of the
// lower sums is token 4m + j / 2, and 16 more where j is odd; that of the upper sums is two further.
inline int64_t token_of(int64_t lane, bool is_upper) {
  return lane / 4 * 4 + lane % 4 / 2 + (lane % 2 ? 16 : 0) + (is_upper ? 2 : 0);
}

// The first `count` of 32 numbers; the others are zero.
TOPKAST_INLINE __mmask32 halves_below(int64_t count) {
  return count >= 32 ? ~__mmask32(0) : (__mmask32(1) << (count > 0 ? count : 0)) - 1;
}

template <>
inline void pack<Half>(const Half* x, int64_t num_columns, const Panel& p, int64_t c0, int64_t c1, Half* packed) {
  constexpr int64_t ahead = 128;
  x += p.first * num_columns;
  for (int64_t c = c0; c < c1; c += 32) {
    const int64_t columns = smaller(32, c1 - c);
    const __mmask32 inside = halves_below(columns);
    for (int64_t t = 0; t < p.width; t += 32) {
      __m512i lower[16];
      Square<float> square;
      auto load = [&](int64_t first) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int64_t i = 0; i < 16; ++i) {
          const Half* row = x + (first + i) * num_columns + c;
          if (first + i < p.count) __builtin_prefetch(row + ahead, 0, 2);
          square.row[i] =
              (Vector<float>::type)_mm512_maskz_loadu_epi16(first + i < p.count ? inside : __mmask32(0), row);
        }
        square.transpose();
      };
      load(t);
#pragma GCC unroll 16
      for (int64_t k = 0; k < 16; ++k) lower[k] = (__m512i)square.row[k];
      load(t + 16);
      const __m512i low = _mm512_set1_epi32(0xFFFF);
#pragma GCC unroll 16
      for (int64_t k = 0; k < 16; ++k) {
        if (2 * k >= columns) break;
        const __m512i upper = (__m512i)square.row[k];
        Half* to = packed + (c + 2 * k) * p.width + t;
        _mm512_store_si512(to, _mm512_or_si512(_mm512_and_si512(lower[k], low), _mm512_slli_epi32(upper, 16)));
        if (2 * k + 1 >= columns) break;
        _mm512_store_si512(to + p.width,
                           _mm512_or_si512(_mm512_srli_epi32(lower[k], 16), _mm512_andnot_si512(low, upper)));
      }
    }
  }
}

template <>
inline void unpack<Half>(const float* packed, const Panel& p, int64_t columns, Half* y, int64_t num_columns) {
  y += p.first * num_columns;
  alignas(64) uint16_t order[32];  // of two rows of 16 numbers, one after the other: pairs
  for (int i = 0; i < 16; ++i)
    order[2 * i] = static_cast<uint16_t>(i), order[2 * i + 1] = static_cast<uint16_t>(16 + i);
  const __m512i pairs = _mm512_load_si512(order);
  for (int64_t c = 0; c < columns; c += 32) {
    const __mmask32 inside = halves_below(columns - c);
    for (int64_t t = 0; t < p.count; t += 32)
      for (int upper = 0; upper < 2; ++upper) {
        const float* from = packed + c * p.width + t + 16 * upper;
        Square<float> square;
#pragma GCC unroll 16
        for (int64_t k = 0; k < 16; ++k) {
          const __m512 a = 2 * k < columns - c ? _mm512_load_ps(from + 2 * k * p.width) : _mm512_setzero_ps();
          const __m512 b = 2 * k + 1 < columns - c ? _mm512_load_ps(from + (2 * k + 1) * p.width) : a;
          square.row[k] = (Vector<float>::type)_mm512_permutexvar_epi16(pairs, (__m512i)_mm512_cvtne2ps_pbh(b, a));
        }
        square.transpose();
#pragma GCC unroll 16
        for (int64_t i = 0; i < 16; ++i) {
          const int64_t token = t + token_of(i, upper);
          if (token < p.count) _mm512_mask_storeu_epi16(y + token * num_columns + c, inside, (__m512i)square.row[i]);
        }
      }
  }
}

// y[0..2V) += sum of value * x[column]; V vectors of tokens. Two elements at a time.
template <typename T, int V, bool Ahead, typename Index, typename Input>
TOPKAST_INLINE void accumulate(const Input& x, const Index* column, const Half* value, int count, float* y) {
  __m512 acc[2 * V];
#pragma GCC unroll 8
  for (int v = 0; v < 2 * V; ++v) acc[v] = _mm512_load_ps(y + 16 * v);
  auto add = [&](uint32_t pair, const Half* first, const Half* second) __attribute__((always_inline)) {
    const __m512bh both = (__m512bh)_mm512_set1_epi32(static_cast<int>(pair));
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const __m512i a = _mm512_load_si512(first + 32 * v);
      const __m512i b = second ? _mm512_load_si512(second + 32 * v) : _mm512_setzero_si512();
      acc[2 * v] = _mm512_dpbf16_ps(acc[2 * v], (__m512bh)_mm512_unpacklo_epi16(a, b), both);
      acc[2 * v + 1] = _mm512_dpbf16_ps(acc[2 * v + 1], (__m512bh)_mm512_unpackhi_epi16(a, b), both);
    }
  };
  int e = 0;
  for (; e + 2 <= count; e += 2) {
    if (Ahead) prefetch_row<T, V>(x.at(column[e + kAhead])), prefetch_row<T, V>(x.at(column[e + 1 + kAhead]));
    uint32_t pair;
    std::memcpy(&pair, value + e, sizeof pair);
    add(pair, x.at(column[e]), x.at(column[e + 1]));
  }
  if (e < count) add(value[e].bits, x.at(column[e]), nullptr);
#pragma GCC unroll 8
  for (int v = 0; v < 2 * V; ++v) _mm512_store_ps(y + 16 * v, acc[v]);
}

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
