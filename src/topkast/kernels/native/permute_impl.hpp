// One pass of the Feistel network of a Permutation over many numbers at once, for one instruction set.
#pragma once

#include <cstdint>

#include "stream.hpp"

namespace topkast {
namespace TOPKAST_ISA_NAMESPACE {

// Numbers that are in flight together. Loops over them are for the compiler to make vectors of.
constexpr int kTogether = 128;

inline uint64_t mixed_lane(uint64_t h) {
  h ^= h >> 32;
  h *= 0xd6e8feb86659fd93u;
  h ^= h >> 32;
  h *= 0xd6e8feb86659fd93u;
  return h ^ (h >> 32);
}

// floor(bits * size / 2^64) for a size below 2^32, from halves: vectors have no product of 128 bits.
inline int64_t below_lane(uint64_t bits, uint64_t size) {
  const uint64_t high = bits >> 32, low = bits & 0xffffffffu;
  return static_cast<int64_t>((high * size + ((low * size) >> 32)) >> 32);
}

// x + y, which is below 2 size, brought below size.
inline int64_t wrapped(int64_t sum, int64_t size) {
  const int64_t over = sum - size;
  return over + (over < 0 ? size : 0);
}

// x = quotient * b + rest for x below 2^52 in floating point, which vectors have; the rounding is mended.
inline void divide_lanes(const int64_t* x, int64_t b, int64_t* quotient, int64_t* rest) {
  constexpr uint64_t bits_of_2_52 = 0x4330000000000000u;
  constexpr double two_52 = 4503599627370496.0;
  const double inverse = 1.0 / static_cast<double>(b);
  for (int i = 0; i < kTogether; ++i) {
    const uint64_t bits = static_cast<uint64_t>(x[i]) | bits_of_2_52;
    double number;
    __builtin_memcpy(&number, &bits, sizeof number);
    const double shifted = (number - two_52) * inverse + two_52;  // rounds to a whole number
    uint64_t whole;
    __builtin_memcpy(&whole, &shifted, sizeof whole);
    int64_t q = static_cast<int64_t>(whole & 0xfffffffffffffu);
    int64_t r = x[i] - q * b;
    const int64_t less = r < 0 ? 1 : 0;
    q -= less;
    r += less * b;
    const int64_t more = r >= b ? 1 : 0;
    quotient[i] = q + more;
    rest[i] = r - more * b;
  }
}

template <bool Inverse>
void network(const Rounds& rounds, int64_t* x) {
  const int64_t a = static_cast<int64_t>(rounds.a), b = static_cast<int64_t>(rounds.b);
  int64_t left[kTogether], right[kTogether];
  divide_lanes(x, b, left, right);
  for (int pair = 0; pair < Rounds::count; pair += 2) {
    const int k = Inverse ? Rounds::count - 2 - pair : pair;
    const uint64_t first = rounds.keys[k], second = rounds.keys[k + 1];
    for (int i = 0; i < kTogether; ++i) {
      int64_t l = left[i], r = right[i];
      if (Inverse) {
        r = wrapped(r + b - below_lane(mixed_lane(static_cast<uint64_t>(l) ^ second), rounds.b), b);
        l = wrapped(l + a - below_lane(mixed_lane(static_cast<uint64_t>(r) ^ first), rounds.a), a);
      } else {
        l = wrapped(l + below_lane(mixed_lane(static_cast<uint64_t>(r) ^ first), rounds.a), a);
        r = wrapped(r + below_lane(mixed_lane(static_cast<uint64_t>(l) ^ second), rounds.b), b);
      }
      left[i] = l;
      right[i] = r;
    }
  }
  for (int i = 0; i < kTogether; ++i) x[i] = left[i] * b + right[i];
}

// See `Kernels::permute`. No function of the standard library: the linker may keep this file's copy of a template for
// all others, and with it instructions that not every CPU has.
inline void permute(const Rounds& rounds, bool inverse, int64_t* x, int64_t count) {
  for (int64_t first = 0; first < count; first += kTogether) {
    const int64_t num = count - first < kTogether ? count - first : kTogether;
    int64_t lanes[kTogether] = {};
    for (int64_t i = 0; i < num; ++i) lanes[i] = x[first + i];
    inverse ? network<true>(rounds, lanes) : network<false>(rounds, lanes);
    for (int64_t i = 0; i < num; ++i) x[first + i] = lanes[i];
  }
}

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
