#include "slots.hpp"

#include <omp.h>

#include <algorithm>

namespace topkast {
namespace {

// Places of a list that a thread takes at a time; 16 bits hold one.
constexpr int64_t kChunk = 1 << 15;

int64_t num_chunks(int64_t n) { return (n + kChunk - 1) / kChunk; }

// Where, in a list, the part begins that can hold what chunk c of another one has.
template <typename P, typename Q>
int64_t begin_of(const P* list, int64_t num_list, const Q* other, int64_t num_other, int64_t c) {
  if (c * kChunk >= num_other) return num_list;
  return std::lower_bound(list, list + num_list, other[c * kChunk], [](P x, Q y) { return int64_t(x) < int64_t(y); }) -
         list;
}

}  // namespace

// Without a branch on what is found: where some per cent of the elements change, it would be mispredicted for each.
template <typename P, typename Q, typename S>
void locate(const P* before, int64_t num_before, const Q* after, int64_t num_after, S* source, int num_threads) {
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t c = 0; c < num_chunks(num_after); ++c) {
    int64_t a = c * kChunk, b = begin_of(before, num_before, after, num_after, c);
    const int64_t last = std::min(num_after, a + kChunk);
    while (a < last && b < num_before) {
      const int64_t now = after[a], old = before[b];
      source[a] = static_cast<S>(now == old ? b : -1);
      a += now <= old;
      b += old <= now;
    }
    for (; a < last; ++a) source[a] = -1;
  }
}

template <typename P, typename Q>
Absent::Absent(const P* list, int64_t num_list, const Q* other, int64_t num_other, int num_threads)
    : chunks_(num_chunks(num_list)), first_(num_chunks(num_list) + 1, 0) {
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t c = 0; c < num_chunks(num_list); ++c) {
    std::vector<uint16_t> found(kChunk);
    const int64_t first = c * kChunk, last = std::min(num_list, first + kChunk);
    int64_t a = first, b = begin_of(other, num_other, list, num_list, c), num = 0;
    while (a < last && b < num_other) {
      const int64_t mine = list[a], theirs = other[b];
      found[num] = static_cast<uint16_t>(a - first);
      num += mine < theirs;
      a += mine <= theirs;
      b += theirs <= mine;
    }
    for (; a < last; ++a) found[num++] = static_cast<uint16_t>(a - first);
    chunks_[c].assign(found.begin(), found.begin() + num);
  }
  for (size_t c = 0; c < chunks_.size(); ++c) first_[c + 1] = first_[c] + static_cast<int64_t>(chunks_[c].size());
}

template <typename S>
void Absent::write(S* out, int num_threads) const {
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t c = 0; c < static_cast<int64_t>(chunks_.size()); ++c) {
    S* to = out + first_[c];
    for (uint16_t offset : chunks_[c]) *to++ = static_cast<S>(c * kChunk + offset);
  }
}

// Groups end at places of the longer list that are known without looking at the other one.
template <typename P, typename S>
Union::Union(const P* a, int64_t num_a, const S* dropped, int64_t num_dropped, const P* b, int64_t num_b,
             int num_threads)
    : dropped_(num_a / 64 + 1, 0), num_a_(num_a), num_b_(num_b) {
  for (int64_t i = 0; i < num_dropped; ++i) {
    if (dropped[i] < 0) continue;
    if (dropped[i] >= num_a) {
      is_valid_ = false;
      return;
    }
    dropped_[dropped[i] >> 6] |= uint64_t(1) << (dropped[i] & 63);
  }
  const bool by_a = num_a >= num_b;
  const int64_t chunks = num_chunks(std::max(num_a, num_b));
  groups_.resize(chunks);
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t c = 0; c < chunks; ++c) {
    Group& group = groups_[c];
    // What comes before all of the longer list belongs to the first group.
    auto edge = [&](int64_t at, bool of_a) -> int64_t {
      if (of_a == by_a) return std::min(at * kChunk, of_a ? num_a : num_b);
      if (at == 0) return 0;
      return by_a ? begin_of(b, num_b, a, num_a, at) : begin_of(a, num_a, b, num_b, at);
    };
    group.a_first = edge(c, true), group.a_last = edge(c + 1, true);
    group.b_first = edge(c, false), group.b_last = edge(c + 1, false);
    // Only lists that do not increase have ends before their beginnings.
    group.a_last = std::max(group.a_first, group.a_last), group.b_last = std::max(group.b_first, group.b_last);
    int64_t kept = 0;
    for (int64_t i = group.a_first; i < group.a_last; ++i) kept += !is_dropped(i);
    group.to = kept + group.b_last - group.b_first;  // so many, for now
  }
  int64_t next = 0;
  for (Group& group : groups_) {
    group.from = next;
    next = group.to += next;
  }
}

template <typename P>
void Union::write_positions(const P* a, const P* b, P* out, int num_threads) {
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t g = 0; g < static_cast<int64_t>(groups_.size()); ++g) {
    Group& group = groups_[g];
    group.is_from_a.assign((group.to - group.from) / 64 + 1, 0);
    int64_t i = group.a_first, j = group.b_first;
    for (int64_t to = group.from; to < group.to; ++to) {
      while (i < group.a_last && is_dropped(i)) ++i;
      const bool from_a = j == group.b_last || (i < group.a_last && a[i] < b[j]);
      out[to] = from_a ? a[i] : b[j];
      i += from_a;
      j += !from_a;
      const int64_t bit = to - group.from;
      group.is_from_a[bit >> 6] |= uint64_t(from_a) << (bit & 63);
    }
  }
}

template <typename T>
void Union::write_numbers(const T* a, const T* b, T* out, int num_threads) const {
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t g = 0; g < static_cast<int64_t>(groups_.size()); ++g) {
    const Group& group = groups_[g];
    int64_t i = group.a_first, j = group.b_first;
    for (int64_t to = group.from; to < group.to; ++to) {
      const int64_t bit = to - group.from;
      const bool from_a = group.is_from_a[bit >> 6] >> (bit & 63) & 1;
      while (from_a && is_dropped(i)) ++i;
      out[to] = from_a ? a[i] : b[j];
      i += from_a;
      j += !from_a;
    }
  }
}

// Threads take ranges that end between two bytes.
template <typename P>
void mark(const P* positions, int64_t count, uint8_t* bits, int num_threads) {
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t c = 0; c < num_chunks(count); ++c) {
    auto edge = [&](int64_t i) {
      if (i >= count) return count;
      while (i > 0 && i < count && positions[i] >> 3 == positions[i - 1] >> 3) ++i;
      return i;
    };
    for (int64_t i = edge(c * kChunk), last = edge((c + 1) * kChunk); i < last; ++i)
      bits[positions[i] >> 3] = static_cast<uint8_t>(bits[positions[i] >> 3] | 1u << (positions[i] & 7));
  }
}

Marked::Marked(const uint8_t* bits, int64_t num_bytes, int num_threads)
    : num_bytes_(num_bytes), first_(num_chunks(num_bytes) + 1, 0) {
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t c = 0; c < num_chunks(num_bytes); ++c)
    for (int64_t i = c * kChunk; i < std::min(num_bytes, (c + 1) * kChunk); ++i)
      first_[c + 1] += __builtin_popcount(bits[i]);
  for (size_t c = 1; c < first_.size(); ++c) first_[c] += first_[c - 1];
}

template <typename P>
void Marked::write(const uint8_t* bits, P* out, int num_threads) const {
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t c = 0; c < num_chunks(num_bytes_); ++c) {
    P *to = out + first_[c], *end = out + first_[c + 1];
    for (int64_t i = c * kChunk; i < std::min(num_bytes_, (c + 1) * kChunk); ++i)
      for (unsigned byte = bits[i]; byte && to < end; byte &= byte - 1)
        *to++ = static_cast<P>(8 * i + __builtin_ctz(byte));
  }
}

template <typename T, typename S>
bool gather(const T* from, int64_t num_from, const S* source, int64_t count, T fill, T* out, int num_threads) {
  int64_t bad = 0;
#pragma omp parallel for schedule(static) num_threads(num_threads) reduction(| : bad)
  for (int64_t i = 0; i < count; ++i) {
    const int64_t place = source[i];
    const bool is_there = static_cast<uint64_t>(place) < static_cast<uint64_t>(num_from);
    out[i] = is_there ? from[place] : fill;
    bad |= !is_there && place != -1;
  }
  return !bad;
}

#define TOPKAST_LISTS(P, Q)                                                  \
  template void locate(const P*, int64_t, const Q*, int64_t, int32_t*, int); \
  template void locate(const P*, int64_t, const Q*, int64_t, int64_t*, int); \
  template Absent::Absent(const P*, int64_t, const Q*, int64_t, int);
TOPKAST_LISTS(int32_t, int32_t)
TOPKAST_LISTS(int32_t, int64_t)
TOPKAST_LISTS(int64_t, int32_t)
TOPKAST_LISTS(int64_t, int64_t)
template void Absent::write(int32_t*, int) const;
template void Absent::write(int64_t*, int) const;
#define TOPKAST_UNION(P)                                                                     \
  template Union::Union(const P*, int64_t, const int32_t*, int64_t, const P*, int64_t, int); \
  template Union::Union(const P*, int64_t, const int64_t*, int64_t, const P*, int64_t, int); \
  template void Union::write_positions(const P*, const P*, P*, int);
TOPKAST_UNION(int32_t)
TOPKAST_UNION(int64_t)
template void mark(const int32_t*, int64_t, uint8_t*, int);
template void mark(const int64_t*, int64_t, uint8_t*, int);
template void Marked::write(const uint8_t*, int32_t*, int) const;
template void Marked::write(const uint8_t*, int64_t*, int) const;
template void Union::write_numbers(const float*, const float*, float*, int) const;
template void Union::write_numbers(const double*, const double*, double*, int) const;
#define TOPKAST_GATHER(T)                                                       \
  template bool gather(const T*, int64_t, const int32_t*, int64_t, T, T*, int); \
  template bool gather(const T*, int64_t, const int64_t*, int64_t, T, T*, int);
TOPKAST_GATHER(uint8_t)
TOPKAST_GATHER(uint16_t)
TOPKAST_GATHER(uint32_t)
TOPKAST_GATHER(uint64_t)

}  // namespace topkast
