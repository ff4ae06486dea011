#include "select.hpp"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace topkast {
namespace {

// Numbers that a thread takes at a time.
constexpr int64_t kChunk = 1 << 16;

int64_t num_chunks(int64_t n) { return (n + kChunk - 1) / kChunk; }

// A narrow band in which the k-th largest key probably is, from a sample of the numbers: four standard deviations
// of its rank to both sides. A sample of 2^14 has 2.5 % of all keys between them, where 20 % are wanted.
template <typename T>
Band<typename Key<T>::type> guess(const T* x, int64_t n, int64_t k) {
  using K = typename Key<T>::type;
  const int64_t stride = (n >> 14) | 1;  // odd: rows of a weight often have a power of two
  std::vector<K> sample;
  for (int64_t i = 0; i < n; i += stride) sample.push_back(key_of(x[i]));
  const int64_t size = static_cast<int64_t>(sample.size());
  const double share = double(k) / double(n);
  const int64_t rank = static_cast<int64_t>(share * double(size));
  const int64_t reach = static_cast<int64_t>(4 * std::sqrt(double(size) * share * (1 - share))) + 2;
  auto larger = [](K a, K b) { return a > b; };
  Band<K> band{0, std::numeric_limits<K>::max()};
  auto first = sample.begin();
  if (rank - reach >= 0) {
    first += rank - reach;
    std::nth_element(sample.begin(), first, sample.end(), larger);
    band.high = *first;
  }
  if (rank + reach < size) {
    std::nth_element(first, sample.begin() + rank + reach, sample.end(), larger);
    band.low = sample[rank + reach];
  }
  return band;
}

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

// The same for certain, from all numbers: those that share the leading bits of the k-th largest.
template <typename T>
Band<typename Key<T>::type> find_band(const T* x, int64_t n, int64_t k, int num_threads) {
  using K = typename Key<T>::type;
  const std::vector<int64_t> histogram = histogram_of(x, n, num_threads);
  int64_t bin = static_cast<int64_t>(histogram.size()) - 1, above = 0;
  while (above + histogram[bin] < k) above += histogram[bin--];
  const K low = static_cast<K>(bin) << Key<T>::shift;
  return {low, low | ((K(1) << Key<T>::shift) - 1)};
}

// All numbers against a band: the keys within it chunk by chunk, and how many are above.
template <typename T>
struct Split {
  using K = typename Key<T>::type;
  struct Chunk {
    std::vector<K> inside;
    int64_t above = 0;
  };
  std::vector<Chunk> chunks;
  int64_t num_inside = 0, num_above = 0;

  Split(const T* x, int64_t n, Band<K> band, int num_threads) : chunks(num_chunks(n)) {
#pragma omp parallel for schedule(static) num_threads(num_threads)
    for (int64_t c = 0; c < num_chunks(n); ++c) chunks[c] = split(x, c * kChunk, std::min(n, (c + 1) * kChunk), band);
    for (const Chunk& c : chunks) {
      num_inside += static_cast<int64_t>(c.inside.size());
      num_above += c.above;
    }
  }

  // In steps, without a branch per number, like `write` below.
  static Chunk split(const T* x, int64_t first, int64_t last, Band<K> band) {
    constexpr int64_t step = 1024;
    K found[step];
    Chunk chunk;
    for (int64_t base = first; base < last; base += step) {
      int64_t num_found = 0, above = 0;
      for (int64_t i = base, end = std::min(last, base + step); i < end; ++i) {
        const K key = key_of(x[i]);
        found[num_found] = key;
        num_found += (key >= band.low) & (key <= band.high);
        above += key > band.high;
      }
      chunk.inside.insert(chunk.inside.end(), found, found + num_found);
      chunk.above += above;
    }
    return chunk;
  }

  bool has_rank(int64_t k) const { return num_above < k && k <= num_above + num_inside; }

  // The k-th largest key, which must be within.
  K threshold(int64_t k) const {
    std::vector<K> inside;
    inside.reserve(num_inside);
    for (const Chunk& c : chunks) inside.insert(inside.end(), c.inside.begin(), c.inside.end());
    const auto at = inside.begin() + (k - num_above - 1);
    std::nth_element(inside.begin(), at, inside.end(), [](K a, K b) { return a > b; });
    return *at;
  }
};

// Fewer numbers than this are counted at once: a sample of them would be nearly as large.
constexpr int64_t kFew = 1 << 16;

template <typename T>
Split<T> split_at(const T* x, int64_t n, int64_t k, int num_threads) {
  if (n >= kFew) {
    Split<T> guessed(x, n, guess(x, n, k), num_threads);
    if (guessed.has_rank(k)) return guessed;
  }
  return Split<T>(x, n, find_band(x, n, k, num_threads), num_threads);
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
Band<typename Key<T>::type> band_around(const T* x, int64_t n, int64_t k, int num_threads) {
  return n >= kFew ? guess(x, n, k) : find_band(x, n, k, num_threads);
}

template <typename T>
Band<typename Key<T>::type> sure_band(const T* x, int64_t n, int64_t k, int num_threads) {
  return find_band(x, n, k, num_threads);
}

// A sample says between which keys the k-th largest probably is; a pass over all numbers collects what is there, which
// gives it exactly and says where each chunk writes. Where the sample is wrong, a histogram is made first.
template <typename T>
void top_k(const T* x, int64_t n, int64_t k, int64_t* out, int num_threads) {
  using K = typename Key<T>::type;
  if (k <= 0) return;
  const Split<T> split = split_at(x, n, k, num_threads);
  const K threshold = split.threshold(k);
  const auto& chunks = split.chunks;

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

template Band<uint32_t> band_around(const float*, int64_t, int64_t, int);
template Band<uint64_t> band_around(const double*, int64_t, int64_t, int);
template Band<uint32_t> sure_band(const float*, int64_t, int64_t, int);
template Band<uint64_t> sure_band(const double*, int64_t, int64_t, int);
template void top_k<float>(const float*, int64_t, int64_t, int64_t*, int);
template void top_k<double>(const double*, int64_t, int64_t, int64_t*, int);

}  // namespace topkast
