#include "gather.hpp"

#include <omp.h>

namespace topkast {

template <typename T>
bool gather(const T* from, int64_t num_from, const int64_t* source, int64_t count, T* out, int num_threads) {
  int64_t bad = 0;
#pragma omp parallel for schedule(static) num_threads(num_threads) reduction(| : bad)
  for (int64_t i = 0; i < count; ++i) {
    const bool is_there = static_cast<uint64_t>(source[i]) < static_cast<uint64_t>(num_from);
    out[i] = from[is_there ? source[i] : 0];
    bad |= !is_there;
  }
  return !bad;
}

template bool gather<uint8_t>(const uint8_t*, int64_t, const int64_t*, int64_t, uint8_t*, int);
template bool gather<uint16_t>(const uint16_t*, int64_t, const int64_t*, int64_t, uint16_t*, int);
template bool gather<uint32_t>(const uint32_t*, int64_t, const int64_t*, int64_t, uint32_t*, int);
template bool gather<uint64_t>(const uint64_t*, int64_t, const int64_t*, int64_t, uint64_t*, int);

}  // namespace topkast
