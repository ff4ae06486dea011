// What is done with all |B| numbers by flag, one pass each: the exploration penalty, its gradient, shorter steps,
// decay.
#pragma once

#include <cstdint>

namespace topkast {

// Sum over slots of scale * |value|^power / power, where scale is 1 in A and `outside` elsewhere; power is 1 or 2. Sums
// of fixed chunks are added in order: the result does not depend on the number of threads.
template <typename T>
double penalty(const T* values, const uint8_t* active, int64_t n, double outside, int power, int num_threads);

// out[i] = factor * scale * value, or the sign of value where power is 1.
template <typename T>
void penalty_grad(const T* values, const uint8_t* active, int64_t n, double outside, int power, double factor, T* out,
                  int num_threads);

// value = before + factor * (value - before) outside of A.
template <typename T>
void shorten_step(T* values, const T* before, const uint8_t* active, int64_t n, double factor, int num_threads);

// value *= inside in A, *= outside elsewhere.
template <typename T>
void decay(T* values, const uint8_t* active, int64_t n, double inside, double outside, int num_threads);

}  // namespace topkast
