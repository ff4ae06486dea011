// Comparing magnitudes with a band, for one instruction set.
#pragma once

#include "panels_impl.hpp"

namespace topkast {
namespace TOPKAST_ISA_NAMESPACE {

// What a few numbers are like, one bit each.
struct Bits {
  uint32_t above;
  uint32_t inside;  // of the band
  uint32_t active;

  uint32_t wrong() const { return (above ^ active) & ~inside; }
};

// `lanes` numbers at a time, those with a flag times `favour`; `most` is the largest key so far.
template <typename T>
struct Scanner {
  using K = typename Key<T>::type;
  static constexpr int lanes = 1;
  const Band<K> band;
  const T favour;
  K most = 0;
  Scanner(Band<K> band, T favour) : band(band), favour(favour) {}

  Bits look(const T* values, const uint8_t* active) {
    const T value = *active ? *values * favour : *values;
    K key;
    __builtin_memcpy(&key, &value, sizeof key);
    key &= ~(K(1) << (8 * sizeof(K) - 1));
    most = key > most ? key : most;
    const uint32_t above = key > band.high, inside = key >= band.low && key <= band.high;
    return {above, inside, *active != 0};
  }
  bool is_finite() const { return most < Key<T>::infinity; }
};

#if defined(__AVX512F__)
template <>
struct Scanner<float> {
  static constexpr int lanes = 16;
  const __m512i low, high, magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512 factor;
  __m512i most = _mm512_setzero_si512();
  Scanner(Band<uint32_t> band, float favour)
      : low(_mm512_set1_epi32(int(band.low))),
        high(_mm512_set1_epi32(int(band.high))),
        factor(_mm512_set1_ps(favour)) {}

  Bits look(const float* values, const uint8_t* active) {
    const __m512i flag = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(active)));
    const __mmask16 is_active = _mm512_test_epi32_mask(flag, flag);
    const __m512 value = _mm512_loadu_ps(values);
    const __m512 favoured = _mm512_mask_mul_ps(value, is_active, value, factor);
    const __m512i key = _mm512_and_epi32(_mm512_castps_si512(favoured), magnitude);
    most = _mm512_max_epu32(most, key);
    const uint32_t above = _mm512_cmpgt_epu32_mask(key, high), least = _mm512_cmpge_epu32_mask(key, low);
    return {above, least & ~above, is_active};
  }
  bool is_finite() const { return uint32_t(_mm512_reduce_max_epu32(most)) < Key<float>::infinity; }
};
#elif defined(__AVX2__)
template <>
struct Scanner<float> {
  static constexpr int lanes = 8;
  const __m256i low, high, magnitude = _mm256_set1_epi32(0x7fffffff);  // keys are positive as signed integers
  const __m256 factor;
  __m256i most = _mm256_setzero_si256();
  Scanner(Band<uint32_t> band, float favour)
      : low(_mm256_set1_epi32(int(band.low))),
        high(_mm256_set1_epi32(int(band.high))),
        factor(_mm256_set1_ps(favour)) {}

  static uint32_t bits(__m256i lanes) { return uint32_t(_mm256_movemask_ps(_mm256_castsi256_ps(lanes))); }
  Bits look(const float* values, const uint8_t* active) {
    const __m256i flag = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(active)));
    const __m256i is_active = _mm256_cmpgt_epi32(flag, _mm256_setzero_si256());
    const __m256 value = _mm256_loadu_ps(values);
    const __m256 favoured = _mm256_blendv_ps(value, _mm256_mul_ps(value, factor), _mm256_castsi256_ps(is_active));
    const __m256i key = _mm256_and_si256(_mm256_castps_si256(favoured), magnitude);
    most = _mm256_max_epu32(most, key);
    const uint32_t above = bits(_mm256_cmpgt_epi32(key, high)), below = bits(_mm256_cmpgt_epi32(low, key));
    return {above, ~above & ~below & 0xffu, bits(is_active)};
  }
  bool is_finite() const {
    uint32_t lane[8];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lane), most);
    uint32_t largest = 0;
    for (uint32_t key : lane) largest = key > largest ? key : largest;
    return largest < Key<float>::infinity;
  }
};
#endif

// Looks at 64 numbers; returns how many are above the band.
template <typename T>
int64_t scan_word(Scanner<T>& scanner, const T* values, const uint8_t* active, uint64_t& inside, uint64_t& wrong) {
  int64_t above = 0;
  inside = wrong = 0;
  for (int lane = 0; lane < 64; lane += Scanner<T>::lanes) {
    const Bits bits = scanner.look(values + lane, active + lane);
    above += __builtin_popcount(bits.above);
    inside |= uint64_t(bits.inside) << lane;
    wrong |= uint64_t(bits.wrong()) << lane;
  }
  return above;
}

// See `Kernels::scan`.
template <typename T>
ScanResult scan(const T* values, const uint8_t* active, int64_t n, Band<typename Key<T>::type> band, T favour,
                uint64_t* inside, uint64_t* wrong) {
  Scanner<T> scanner(band, favour);
  int64_t above = 0, i = 0;
  for (; i + 64 <= n; i += 64) above += scan_word(scanner, values + i, active + i, inside[i / 64], wrong[i / 64]);
  if (i < n) {  // the last word, from a copy that is filled up with what is neither above nor wrong
    T rest[64] = {};
    uint8_t flags[64] = {};
    for (int64_t j = i; j < n; ++j) rest[j - i] = values[j], flags[j - i] = active[j];
    above += scan_word(scanner, rest, flags, inside[i / 64], wrong[i / 64]);
    inside[i / 64] &= (uint64_t(1) << (n - i)) - 1;  // where the band begins at zero
  }
  return {above, scanner.is_finite()};
}

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
