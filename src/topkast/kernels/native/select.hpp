// Exact Top-K by magnitude: larger first, then the smaller position.
#pragma once

#include <cstdint>

#include "keys.hpp"

namespace topkast {

// Writes the positions of the `k` largest |x|, increasing, to `out` (room for k). 0 <= k <= n. NaN ranks above
// everything, so the caller checks. O(n), threaded; the result does not depend on the number of threads.
template <typename T>
void top_k(const T* x, int64_t n, int64_t k, int64_t* out, int num_threads);

// A band of keys in which the k-th largest |x| probably is, from a sample; and one in which it is, from all of them.
// 0 < k <= n.
template <typename T>
Band<typename Key<T>::type> band_around(const T* x, int64_t n, int64_t k, int num_threads);
template <typename T>
Band<typename Key<T>::type> sure_band(const T* x, int64_t n, int64_t k, int num_threads);

}  // namespace topkast
