#include "stream.hpp"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

namespace topkast {
namespace {

// A bijection of 64 bits in which every bit of the input reaches every bit of the output.
inline uint64_t mixed(uint64_t h) {
  h ^= h >> 32;
  h *= 0xd6e8feb86659fd93u;
  h ^= h >> 32;
  h *= 0xd6e8feb86659fd93u;
  return h ^ (h >> 32);
}

// A number below `size` from 64 bits, without dividing.
inline uint64_t below(uint64_t bits, uint64_t size) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * size) >> 64);
}

inline uint64_t add_below(uint64_t x, uint64_t y, uint64_t size) {
  const uint64_t sum = x + y;
  return sum >= size ? sum - size : sum;
}

// [0, count) cut into one consecutive piece per thread.
template <typename F>
void in_pieces(int64_t count, int num_threads, F&& work) {
#pragma omp parallel num_threads(num_threads)
  {
    const int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
    work(me, count * me / threads, count * (me + 1) / threads);
  }
}

}  // namespace

Permutation::Permutation(int64_t n, uint64_t key) : n_(n) {
  a_ = static_cast<uint64_t>(std::sqrt(static_cast<double>(n)));
  while (a_ * a_ < static_cast<uint64_t>(n)) ++a_;  // whatever the rounding of the root
  b_ = (static_cast<uint64_t>(n) + a_ - 1) / a_;
  uint64_t state = key;
  for (uint64_t& k : keys_) k = mixed(state += 0x9e3779b97f4a7c15u);
  sign_key_ = mixed(state += 0x9e3779b97f4a7c15u);
}

int64_t Permutation::position(int64_t rank) const {
  uint64_t x = static_cast<uint64_t>(rank);
  do {
    uint64_t left = x / b_, right = x % b_;
    for (int i = 0; i < kRounds; i += 2) {
      left = add_below(left, below(mixed(right ^ keys_[i]), a_), a_);
      right = add_below(right, below(mixed(left ^ keys_[i + 1]), b_), b_);
    }
    x = left * b_ + right;
  } while (x >= static_cast<uint64_t>(n_));
  return static_cast<int64_t>(x);
}

int64_t Permutation::rank(int64_t position) const {
  uint64_t x = static_cast<uint64_t>(position);
  do {
    uint64_t left = x / b_, right = x % b_;
    for (int i = kRounds - 2; i >= 0; i -= 2) {
      right = add_below(right, b_ - below(mixed(left ^ keys_[i + 1]), b_), b_);
      left = add_below(left, a_ - below(mixed(right ^ keys_[i]), a_), a_);
    }
    x = left * b_ + right;
  } while (x >= static_cast<uint64_t>(n_));
  return static_cast<int64_t>(x);
}

bool Permutation::negative(int64_t rank) const { return mixed(static_cast<uint64_t>(rank) ^ sign_key_) >> 63; }

Stream::Stream(int64_t n, uint64_t key, int kind, double scale, double mass)
    : permutation_(std::clamp<int64_t>(n, 1, kLargest), key), magnitudes_{static_cast<Kind>(kind), scale, mass} {
  if (n < 1 || n > kLargest)
    throw std::invalid_argument("an implicit weight must have 1 to 2^48 elements, got " + std::to_string(n));
  if (kind != 0 && kind != 1) throw std::invalid_argument("kind must be 0 (uniform) or 1 (normal)");
  if (!(scale > 0) || !std::isfinite(scale)) throw std::invalid_argument("scale must be positive and finite");
  if (!(mass > 0) || mass > 1) throw std::invalid_argument("mass must lie in (0, 1]");
}

template <typename T>
T Stream::value(int64_t rank) const {
  const T magnitude = static_cast<T>(magnitudes_.at(rank, size()));
  return permutation_.negative(rank) ? -magnitude : magnitude;
}

template <typename T>
int64_t Stream::count_at_least(T threshold) const {
  int64_t low = 0, high = size();
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (static_cast<T>(magnitudes_.at(middle, size())) >= threshold)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Sorting by buckets of equal range: positions are spread evenly, so the buckets come out about equally full. The
// permutation is computed twice rather than its results stored twice.
void Stream::positions(int64_t first, int64_t count, int64_t* out, int num_threads) const {
  if (first < 0 || count < 0 || first > size() - count)
    throw std::invalid_argument("ranks must lie in [0, " + std::to_string(size()) + "), got " + std::to_string(count) +
                                " from " + std::to_string(first));
  const int64_t buckets = std::clamp<int64_t>(count / 512, 1, 1 << 16);
  const int64_t width = (size() + buckets - 1) / buckets;
  std::vector<std::vector<int64_t>> place(num_threads, std::vector<int64_t>(buckets + 1, 0));
  in_pieces(count, num_threads, [&](int64_t me, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) ++place[me][permutation_.position(first + i) / width];
  });
  std::vector<int64_t> start(buckets + 1, 0);
  int64_t next = 0;
  for (int64_t b = 0; b < buckets; ++b) {
    start[b] = next;
    for (auto& mine : place) {
      const int64_t held = mine[b];
      mine[b] = next;
      next += held;
    }
  }
  start[buckets] = next;
  in_pieces(count, num_threads, [&](int64_t me, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const int64_t position = permutation_.position(first + i);
      out[place[me][position / width]++] = position;
    }
  });
#pragma omp parallel for schedule(dynamic, 16) num_threads(num_threads)
  for (int64_t b = 0; b < buckets; ++b) std::sort(out + start[b], out + start[b + 1]);
}

template <typename T>
void Stream::look_up(const int64_t* positions, int64_t count, int64_t* ranks, T* values, int num_threads) const {
  for (int64_t i = 0; i < count; ++i)
    if (positions[i] < 0 || positions[i] >= size())
      throw std::invalid_argument("positions must lie in [0, " + std::to_string(size()) + "), got " +
                                  std::to_string(positions[i]));
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t i = 0; i < count; ++i) {
    ranks[i] = permutation_.rank(positions[i]);
    if (values) values[i] = value<T>(ranks[i]);
  }
}

template <typename T>
void Stream::dense(T* out, int num_threads) const {
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t rank = 0; rank < size(); ++rank) out[permutation_.position(rank)] = value<T>(rank);
}

template <typename T>
void merge_sorted(const int64_t* a, const T* a_values, int64_t num_a, const int64_t* b, const T* b_values,
                  int64_t num_b, int64_t* out, T* out_values) {
  int64_t i = 0, j = 0;
  for (int64_t to = 0; to < num_a + num_b; ++to) {
    const bool from_a = j == num_b || (i < num_a && a[i] < b[j]);
    out[to] = from_a ? a[i] : b[j];
    out_values[to] = from_a ? a_values[i++] : b_values[j++];
  }
}

#define TOPKAST_STREAM(T)                                                          \
  template int64_t Stream::count_at_least(T) const;                                \
  template void Stream::look_up(const int64_t*, int64_t, int64_t*, T*, int) const; \
  template void Stream::dense(T*, int) const;                                      \
  template void merge_sorted(const int64_t*, const T*, int64_t, const int64_t*, const T*, int64_t, int64_t*, T*);
TOPKAST_STREAM(float)
TOPKAST_STREAM(double)
#undef TOPKAST_STREAM

}  // namespace topkast
