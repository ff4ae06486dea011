#include "stream.hpp"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.hpp"

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
  uint64_t& a = rounds_.a;
  a = static_cast<uint64_t>(std::sqrt(static_cast<double>(n)));
  while (a * a < static_cast<uint64_t>(n)) ++a;  // whatever the rounding of the root
  rounds_.b = (static_cast<uint64_t>(n) + a - 1) / a;
  uint64_t state = key;
  for (uint64_t& k : rounds_.keys) k = mixed(state += 0x9e3779b97f4a7c15u);
  sign_key_ = mixed(state += 0x9e3779b97f4a7c15u);
}

int64_t Permutation::position(int64_t rank) const {
  const auto [a, b, keys] = rounds_;
  uint64_t x = static_cast<uint64_t>(rank);
  do {
    uint64_t left = x / b, right = x % b;
    for (int i = 0; i < Rounds::count; i += 2) {
      left = add_below(left, below(mixed(right ^ keys[i]), a), a);
      right = add_below(right, below(mixed(left ^ keys[i + 1]), b), b);
    }
    x = left * b + right;
  } while (x >= static_cast<uint64_t>(n_));
  return static_cast<int64_t>(x);
}

int64_t Permutation::rank(int64_t position) const {
  const auto [a, b, keys] = rounds_;
  uint64_t x = static_cast<uint64_t>(position);
  do {
    uint64_t left = x / b, right = x % b;
    for (int i = Rounds::count - 2; i >= 0; i -= 2) {
      right = add_below(right, b - below(mixed(left ^ keys[i + 1]), b), b);
      left = add_below(left, a - below(mixed(right ^ keys[i]), a), a);
    }
    x = left * b + right;
  } while (x >= static_cast<uint64_t>(n_));
  return static_cast<int64_t>(x);
}

// Few numbers are outside after one pass: about one in sqrt(n). They walk on by themselves.
void Permutation::to_positions(int64_t* ranks, int64_t count) const {
  kernels<float>().permute(rounds_, false, ranks, count);
  for (int64_t i = 0; i < count; ++i)
    if (ranks[i] >= n_) ranks[i] = position(ranks[i]);
}

void Permutation::to_ranks(int64_t* positions, int64_t count) const {
  kernels<float>().permute(rounds_, true, positions, count);
  for (int64_t i = 0; i < count; ++i)
    if (positions[i] >= n_) positions[i] = rank(positions[i]);
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

namespace {

// Numbers that are looked up together.
constexpr int64_t kBlock = 1024;

// Sorts `count` numbers that are spread evenly over [low, low + 2^bits): each goes near its place first.
template <typename P>
void sort_spread(P* x, int64_t count, int64_t low, int bits, std::vector<P>& room, std::vector<int32_t>& start) {
  int cells = 0;
  while ((int64_t(1) << cells) < count) ++cells;
  if (count < 16 || cells > bits) return std::sort(x, x + count);
  const int shift = bits - cells;
  start.assign((size_t(1) << cells) + 1, 0);
  for (int64_t i = 0; i < count; ++i) ++start[((x[i] - low) >> shift) + 1];
  for (size_t c = 1; c < start.size(); ++c) start[c] += start[c - 1];
  room.assign(x, x + count);
  for (int64_t i = 0; i < count; ++i) x[start[(room[i] - low) >> shift]++] = room[i];
  for (int64_t i = 1; i < count; ++i) {  // a cell has about one: few are out of order, and by little
    const P key = x[i];
    int64_t j = i;
    for (; j > 0 && x[j - 1] > key; --j) x[j] = x[j - 1];
    x[j] = key;
  }
}

}  // namespace

// Sorting by buckets of equal range: positions are spread evenly, so the buckets come out about equally full. The
// permutation is computed twice rather than its results stored twice.
template <typename P>
void Stream::positions(int64_t first, int64_t count, P* out, int num_threads) const {
  if (first < 0 || count < 0 || first > size() - count)
    throw std::invalid_argument("ranks must lie in [0, " + std::to_string(size()) + "), got " + std::to_string(count) +
                                " from " + std::to_string(first));
  const int64_t wanted = std::clamp<int64_t>(count / 512, 1, 1 << 14);
  int bits = 0;
  while ((size() - 1) >> bits >= wanted) ++bits;
  const int64_t buckets = ((size() - 1) >> bits) + 1;
  auto each = [&](int64_t from, int64_t to, auto&& work) {
    int64_t block[kBlock];
    for (int64_t base = from; base < to; base += kBlock) {
      const int64_t num = std::min(kBlock, to - base);
      for (int64_t i = 0; i < num; ++i) block[i] = first + base + i;
      permutation_.to_positions(block, num);
      for (int64_t i = 0; i < num; ++i) work(block[i]);
    }
  };
  std::vector<std::vector<int64_t>> place(num_threads, std::vector<int64_t>(buckets + 1, 0));
  in_pieces(count, num_threads, [&](int64_t me, int64_t from, int64_t to) {
    each(from, to, [&](int64_t position) { ++place[me][position >> bits]; });
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
    each(from, to, [&](int64_t position) { out[place[me][position >> bits]++] = static_cast<P>(position); });
  });
#pragma omp parallel num_threads(num_threads)
  {
    std::vector<P> room;
    std::vector<int32_t> cells;
#pragma omp for schedule(dynamic, 16)
    for (int64_t b = 0; b < buckets; ++b)
      sort_spread(out + start[b], start[b + 1] - start[b], b << bits, bits, room, cells);
  }
}

template <typename T, typename P>
void Stream::look_up(const P* positions, int64_t count, int64_t* ranks, T* values, int num_threads) const {
  bool is_wrong = false;
#pragma omp parallel for schedule(static) num_threads(num_threads) reduction(|| : is_wrong)
  for (int64_t base = 0; base < count; base += kBlock) {
    const int64_t num = std::min(kBlock, count - base);
    for (int64_t i = 0; i < num; ++i) {
      const bool is_in = positions[base + i] >= 0 && positions[base + i] < size();
      is_wrong |= !is_in;
      ranks[base + i] = is_in ? positions[base + i] : 0;
    }
    permutation_.to_ranks(ranks + base, num);
    for (int64_t i = 0; values && i < num; ++i) values[base + i] = value<T>(ranks[base + i]);
  }
  if (!is_wrong) return;
  const P* bad = std::find_if(positions, positions + count, [&](P p) { return p < 0 || p >= size(); });
  throw std::invalid_argument("positions must lie in [0, " + std::to_string(size()) + "), got " + std::to_string(*bad));
}

template <typename T>
void Stream::dense(T* out, int num_threads) const {
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t base = 0; base < size(); base += kBlock) {
    const int64_t num = std::min(kBlock, size() - base);
    int64_t block[kBlock];
    for (int64_t i = 0; i < num; ++i) block[i] = base + i;
    permutation_.to_positions(block, num);
    for (int64_t i = 0; i < num; ++i) out[block[i]] = value<T>(base + i);
  }
}

#define TOPKAST_STREAM(T)                                                          \
  template int64_t Stream::count_at_least(T) const;                                \
  template void Stream::look_up(const int32_t*, int64_t, int64_t*, T*, int) const; \
  template void Stream::look_up(const int64_t*, int64_t, int64_t*, T*, int) const; \
  template void Stream::dense(T*, int) const;
TOPKAST_STREAM(float)
TOPKAST_STREAM(double)
#undef TOPKAST_STREAM
template void Stream::positions(int64_t, int64_t, int32_t*, int) const;
template void Stream::positions(int64_t, int64_t, int64_t*, int) const;

}  // namespace topkast
