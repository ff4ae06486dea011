// Moving numbers to other places, whatever they mean.
#pragma once

#include <cstdint>

namespace topkast {

// out[i] = from[source[i]] for each i < count; num_from > 0 unless count is 0. False if a place is not within `from`:
// what `out` has then means nothing. For unsigned integers of 1, 2, 4 and 8 bytes.
template <typename T>
bool gather(const T* from, int64_t num_from, const int64_t* source, int64_t count, T* out, int num_threads);

}  // namespace topkast
