// Magnitudes as integers of the same order: the bits of a float without its sign.
#pragma once

#include <cstdint>
#include <cstring>

namespace topkast {

template <typename T>
struct Key;
template <>
struct Key<float> {
  using type = uint32_t;
  static constexpr int shift = 31 - 12;  // the leading 12 bits: exponent and 4 bits of mantissa
  static constexpr type infinity = 0x7f800000u;
};
template <>
struct Key<double> {
  using type = uint64_t;
  static constexpr int shift = 63 - 15;
  static constexpr type infinity = 0x7ff0000000000000u;
};

// Keys from low to high.
template <typename K>
struct Band {
  K low, high;
};

}  // namespace topkast
