#include "slots.hpp"

#include <omp.h>

#include <algorithm>

namespace topkast {
namespace {

// New positions that a thread takes at a time.
constexpr int64_t kChunk = 1 << 15;

// Positions [first, last) of a list.
struct Range {
  const int64_t* list;
  int64_t first, last;
};

// Goes through both ranges at once. Without a branch on what is found: where some per cent of the elements change, it
// would be mispredicted for each of them.
void merge(Range before, Range after, int64_t* source, std::vector<int64_t>& entering, std::vector<int64_t>& leaving) {
  constexpr int64_t step = 1024;
  int64_t entered[step], left[step];
  int64_t a = after.first, b = before.first;
  while (a < after.last && b < before.last) {
    int64_t num_entered = 0, num_left = 0;
    for (int64_t i = 0; i < step && a < after.last && b < before.last; ++i) {
      const int64_t now = after.list[a], old = before.list[b];
      source[a] = now == old ? b : 0;
      entered[num_entered] = a;
      num_entered += now < old;
      left[num_left] = b;
      num_left += old < now;
      a += now <= old;
      b += old <= now;
    }
    entering.insert(entering.end(), entered, entered + num_entered);
    leaving.insert(leaving.end(), left, left + num_left);
  }
  for (; a < after.last; ++a) {
    source[a] = 0;
    entering.push_back(a);
  }
  for (; b < before.last; ++b) leaving.push_back(b);
}

}  // namespace

Changes::Changes(const int64_t* before, int64_t num_before, const int64_t* after, int64_t num_after, int64_t* source,
                 int num_threads)
    : chunks_(std::max<int64_t>(1, (num_after + kChunk - 1) / kChunk)) {
  const int64_t num_chunks = static_cast<int64_t>(chunks_.size());
  // Where in `before` a chunk begins. The first one has what comes before all of `after` too, the last what comes
  // after.
  auto begin = [&](int64_t chunk) -> int64_t {
    if (chunk == 0) return 0;
    if (chunk == num_chunks) return num_before;
    return std::lower_bound(before, before + num_before, after[chunk * kChunk]) - before;
  };
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t c = 0; c < num_chunks; ++c)
    merge({before, begin(c), begin(c + 1)}, {after, c * kChunk, std::min(num_after, (c + 1) * kChunk)}, source,
          chunks_[c].entering, chunks_[c].leaving);
  for (const Chunk& chunk : chunks_) {
    num_entering_ += static_cast<int64_t>(chunk.entering.size());
    num_leaving_ += static_cast<int64_t>(chunk.leaving.size());
  }
}

void Changes::write(int64_t* entering, int64_t* leaving) const {
  for (const Chunk& chunk : chunks_) {
    entering = std::copy(chunk.entering.begin(), chunk.entering.end(), entering);
    leaving = std::copy(chunk.leaving.begin(), chunk.leaving.end(), leaving);
  }
}

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
