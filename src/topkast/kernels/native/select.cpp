#include "select.hpp"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace topkast {
namespace {

// Magnitudes as integers of the same order: the bits of a float without its sign.
template <typename T>
struct Key;
template <>
struct Key<float> {
  using type = uint32_t;
  static constexpr int shift = 31 - 12;  // the leading 12 bits: exponent and 4 bits of mantissa
};
template <>
struct Key<double> {
  using type = uint64_t;
  static constexpr int shift = 63 - 15;
};

template <typename T>
inline typename Key<T>::type key_of(T value) {
  typename Key<T>::type bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & ~(typename Key<T>::type(1) << (8 * sizeof(bits) - 1));
}

// Numbers that a thread takes at a time.
constexpr int64_t kChunk = 1 << 16;

int64_t num_chunks(int64_t n) { return (n + kChunk - 1) / kChunk; }

// How many keys there are by their leading bits.
template <typename T>
std::vector<int64_t> histogram_of(const T* x, int64_t n, int num_threads) {
  using K = typename Key<T>::type;
  constexpr int bins = 1 << (8 * sizeof(K) - 1 - Key<T>::shift);
  std::vector<int64_t> histogram(bins, 0);
#pragma omp parallel num_threads(num_threads)
  {
    // Two, in turns: neighbours often fall into the same bin, and would wait for each other.
    std::vector<uint32_t> even(bins, 0), odd(bins, 0);
#pragma omp for schedule(static) nowait
    for (int64_t c = 0; c < num_chunks(n); ++c) {
      int64_t i = c * kChunk;
      const int64_t end = std::min(n, i + kChunk);
      for (; i + 1 < end; i += 2) {
        ++even[key_of(x[i]) >> Key<T>::shift];
        ++odd[key_of(x[i + 1]) >> Key<T>::shift];
      }
      if (i < end) ++even[key_of(x[i]) >> Key<T>::shift];
    }
#pragma omp critical
    for (int b = 0; b < bins; ++b) histogram[b] += even[b] + odd[b];
  }
  return histogram;
}

// A chunk's keys in one bin, and how many of its keys are in the bins above.
template <typename K>
struct Chunk {
  std::vector<K> inside;
  int64_t above = 0;
};

template <typename T>
std::vector<Chunk<typename Key<T>::type>> split(const T* x, int64_t n, int64_t bin, int num_threads) {
  using K = typename Key<T>::type;
  std::vector<Chunk<K>> chunks(num_chunks(n));
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t c = 0; c < num_chunks(n); ++c) {
    Chunk<K> mine;
    int64_t above = 0;
    for (int64_t i = c * kChunk, end = std::min(n, i + kChunk); i < end; ++i) {
      const K key = key_of(x[i]);
      const int64_t b = key >> Key<T>::shift;
      above += b > bin;
      if (b == bin) mine.inside.push_back(key);
    }
    mine.above = above;
    chunks[c] = std::move(mine);
  }
  return chunks;
}

// Writes the positions of [first, last) whose key is at least `limit` to out. In steps, without a branch per number: at
// 10 % it would be mispredicted for most of those that are chosen.
template <typename T>
void write(const T* x, int64_t first, int64_t last, typename Key<T>::type limit, int64_t* out) {
  constexpr int64_t step = 1024;
  uint16_t found[step];
  for (int64_t base = first; base < last; base += step) {
    const int64_t count = std::min(step, last - base);
    int64_t n = 0;
    for (int64_t i = 0; i < count; ++i) {
      found[n] = static_cast<uint16_t>(i);
      n += key_of(x[base + i]) >= limit;
    }
    for (int64_t i = 0; i < n; ++i) *out++ = base + found[i];
  }
}

// The same for the one chunk in which the ties run out: of the keys that equal the threshold, the first `ties`.
template <typename T>
void write_some_ties(const T* x, int64_t first, int64_t last, typename Key<T>::type threshold, int64_t ties,
                     int64_t* out) {
  for (int64_t i = first; i < last; ++i) {
    const typename Key<T>::type key = key_of(x[i]);
    if (key > threshold || (key == threshold && ties-- > 0)) *out++ = i;
  }
}

}  // namespace

template <typename T>
int64_t count_at_least(const T* x, int64_t n, T threshold, int num_threads) {
  int64_t count = 0;
#pragma omp parallel for schedule(static) num_threads(num_threads) reduction(+ : count)
  for (int64_t c = 0; c < num_chunks(n); ++c) {
    int32_t mine = 0;
    for (int64_t i = c * kChunk, end = std::min(n, i + kChunk); i < end; ++i) mine += std::abs(x[i]) >= threshold;
    count += mine;
  }
  return count;
}

// A histogram of the leading bits finds the bin of the k-th largest; the keys in that bin give it exactly, and say where
// each chunk writes. Three passes.
template <typename T>
void top_k(const T* x, int64_t n, int64_t k, int64_t* out, int num_threads) {
  using K = typename Key<T>::type;
  if (k <= 0) return;
  const std::vector<int64_t> histogram = histogram_of(x, n, num_threads);
  int64_t bin = static_cast<int64_t>(histogram.size()) - 1, above = 0;
  while (above + histogram[bin] < k) above += histogram[bin--];

  const std::vector<Chunk<K>> chunks = split(x, n, bin, num_threads);
  std::vector<K> inside;
  inside.reserve(histogram[bin]);
  for (const Chunk<K>& c : chunks) inside.insert(inside.end(), c.inside.begin(), c.inside.end());
  const int64_t rank = k - above - 1;
  std::nth_element(inside.begin(), inside.begin() + rank, inside.end(), [](K a, K b) { return a > b; });
  const K threshold = inside[rank];

  std::vector<int64_t> larger(chunks.size() + 1, 0), equal(chunks.size() + 1, 0);
  for (size_t c = 0; c < chunks.size(); ++c) {
    larger[c + 1] = larger[c] + chunks[c].above;
    equal[c + 1] = equal[c];
    for (K key : chunks[c].inside) {
      larger[c + 1] += key > threshold;
      equal[c + 1] += key == threshold;
    }
  }
  const int64_t ties = k - larger.back();  // of the equal ones, the first so many
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t c = 0; c < num_chunks(n); ++c) {
    const int64_t first = c * kChunk, last = std::min(n, first + kChunk);
    const int64_t seen = std::min(equal[c], ties), wanted = std::min(equal[c + 1], ties) - seen;
    int64_t* to = out + larger[c] + seen;
    if (wanted == equal[c + 1] - equal[c])
      write(x, first, last, threshold, to);
    else if (wanted == 0)
      write(x, first, last, threshold + 1, to);  // no key is the largest integer: the sign bit is clear
    else
      write_some_ties(x, first, last, threshold, wanted, to);
  }
}

template int64_t count_at_least<float>(const float*, int64_t, float, int);
template int64_t count_at_least<double>(const double*, int64_t, double, int);
template void top_k<float>(const float*, int64_t, int64_t, int64_t*, int);
template void top_k<double>(const double*, int64_t, int64_t, int64_t*, int);

}  // namespace topkast
