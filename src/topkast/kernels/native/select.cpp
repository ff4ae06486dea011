#include "select.hpp"

#include <omp.h>

#include <algorithm>
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

}  // namespace

// A histogram of the leading bits finds the bin of the k-th largest; the keys in that bin give it exactly; a count
// per chunk says where each chunk writes.
template <typename T>
void top_k(const T* x, int64_t n, int64_t k, int64_t* out, int num_threads) {
  using K = typename Key<T>::type;
  if (k <= 0) return;
  constexpr int bins = 1 << (8 * sizeof(K) - 1 - Key<T>::shift);
  constexpr int64_t chunk = 1 << 16;
  const int64_t chunks = (n + chunk - 1) / chunk;
  std::vector<int64_t> histogram(bins, 0);
#pragma omp parallel num_threads(num_threads)
  {
    std::vector<uint32_t> mine(bins, 0);
#pragma omp for schedule(static) nowait
    for (int64_t c = 0; c < chunks; ++c)
      for (int64_t i = c * chunk, end = std::min(n, i + chunk); i < end; ++i) ++mine[key_of(x[i]) >> Key<T>::shift];
#pragma omp critical
    for (int b = 0; b < bins; ++b) histogram[b] += mine[b];
  }
  int bin = bins - 1;
  int64_t above = 0;
  while (above + histogram[bin] < k) above += histogram[bin--];

  std::vector<K> inside(histogram[bin]);
  int64_t found = 0;
#pragma omp parallel num_threads(num_threads)
  {
    std::vector<K> mine;
#pragma omp for schedule(static) nowait
    for (int64_t c = 0; c < chunks; ++c)
      for (int64_t i = c * chunk, end = std::min(n, i + chunk); i < end; ++i) {
        const K key = key_of(x[i]);
        if (int(key >> Key<T>::shift) == bin) mine.push_back(key);
      }
    int64_t at;
#pragma omp atomic capture
    {
      at = found;
      found += static_cast<int64_t>(mine.size());
    }
    std::copy(mine.begin(), mine.end(), inside.begin() + at);
  }
  // The k-th largest key; its order among equals does not matter here.
  const int64_t rank = k - above - 1;
  std::nth_element(inside.begin(), inside.begin() + rank, inside.end(), [](K a, K b) { return a > b; });
  const K threshold = inside[rank];

  std::vector<int64_t> larger(chunks + 1, 0), equal(chunks + 1, 0);
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t c = 0; c < chunks; ++c) {
    int64_t l = 0, e = 0;
    for (int64_t i = c * chunk, end = std::min(n, i + chunk); i < end; ++i) {
      const K key = key_of(x[i]);
      l += key > threshold;
      e += key == threshold;
    }
    larger[c + 1] = l;
    equal[c + 1] = e;
  }
  for (int64_t c = 0; c < chunks; ++c) {
    larger[c + 1] += larger[c];
    equal[c + 1] += equal[c];
  }
  const int64_t ties = k - larger[chunks];  // of the equal ones, the first so many
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t c = 0; c < chunks; ++c) {
    int64_t seen = equal[c];
    int64_t* to = out + larger[c] + std::min(seen, ties);
    for (int64_t i = c * chunk, end = std::min(n, i + chunk); i < end; ++i) {
      const K key = key_of(x[i]);
      if (key > threshold || (key == threshold && seen++ < ties)) *to++ = i;
    }
  }
}

template void top_k<float>(const float*, int64_t, int64_t, int64_t*, int);
template void top_k<double>(const double*, int64_t, int64_t, int64_t*, int);

}  // namespace topkast
