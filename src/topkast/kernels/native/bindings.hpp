// What all bindings share: tensors come as addresses and lengths, and every length is checked.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "pages.hpp"

namespace topkast {

using Address = uintptr_t;

template <typename T>
T* checked(const char* name, Address address, int64_t length, int64_t expected) {
  if (length != expected)
    throw std::invalid_argument(std::string(name) + " must have " + std::to_string(expected) + " numbers, got " +
                                std::to_string(length));
  if (address == 0 && expected > 0) throw std::invalid_argument(std::string(name) + " has no memory");
  return reinterpret_cast<T*>(address);
}

// Memory that a kernel overwrites.
template <typename T>
T* output(const char* name, Address address, int64_t length, int64_t expected) {
  T* memory = checked<T>(name, address, length, expected);
  prefer_large_pages(memory, expected * static_cast<int64_t>(sizeof(T)));
  return memory;
}

inline int checked_threads(int num_threads) {
  if (num_threads < 1)
    throw std::invalid_argument("num_threads must be at least 1, got " + std::to_string(num_threads));
  return num_threads;
}

inline int64_t checked_product(int64_t a, int64_t b) {
  int64_t c;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &c)) throw std::invalid_argument("a size overflows 64 bits");
  return c;
}

// Calls `work` with a number of the integer type of so many bytes, which positions and places may have.
template <typename F>
auto with_integer(int bytes, F&& work) {
  if (bytes == 4) return work(int32_t{});
  if (bytes == 8) return work(int64_t{});
  throw std::invalid_argument("positions and places must be int32 or int64");
}

void bind_lists(nanobind::module_& m);
void bind_stream(nanobind::module_& m);

}  // namespace topkast
