// Magnitudes as integers of the same order: the bits of a float without its sign.
#pragma once

#include <cstdint>

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

template <typename T>
using KeyOf = typename Key<T>::type;

template <typename T>
inline KeyOf<T> bits_of(T value) {
  KeyOf<T> bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

template <typename T>
inline KeyOf<T> key_of(T value) {
  return bits_of(value) & ~(KeyOf<T>(1) << (8 * sizeof(T) - 1));
}

// The number with these bits, which is the magnitude with this key.
template <typename T>
inline T value_of(KeyOf<T> key) {
  T value;
  __builtin_memcpy(&value, &key, sizeof value);
  return value;
}

// Keys from low to high.
template <typename K>
struct Band {
  K low, high;
};

}  // namespace topkast
