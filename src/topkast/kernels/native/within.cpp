#include "within.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels.hpp"
#include "select.hpp"

namespace topkast {
namespace {

constexpr int64_t kChunk = 1 << 15;  // numbers that a thread takes at a time
constexpr int64_t kPiece = 1 << 12;  // numbers that are scanned at a time
// A band has at least this relative width. If it would hold more than one number in so many, it is made from a sample.
constexpr double kLeastWidth = 1.0 / 65536, kMostWidth = 0.25;
constexpr int64_t kEnough = 32;

template <typename K>
struct Candidate {
  int64_t slot;
  K key;
};

// What is to be looked at in one chunk: numbers within the band, and flags that are wrong whatever the threshold is.
template <typename T>
struct Chunk {
  using K = typename Key<T>::type;
  std::vector<Candidate<K>> inside;
  std::vector<int64_t> wrong;
  int64_t above = 0;
  bool is_finite = true;

  // How many candidates are above a key, and how many equal it.
  std::pair<int64_t, int64_t> compared(K threshold) const {
    int64_t larger = 0, equal = 0;
    for (const Candidate<K>& candidate : inside) {
      larger += candidate.key > threshold;
      equal += candidate.key == threshold;
    }
    return {larger, equal};
  }

  // Slots whose flag is not what it should be, increasing. Of the keys that equal the threshold the first so many are
  // in.
  std::vector<int64_t> changed(const uint8_t* active, K threshold, int64_t ties) const {
    std::vector<int64_t> found;
    found.reserve(wrong.size() + inside.size());
    auto next = wrong.begin();
    for (const Candidate<K>& candidate : inside) {
      const bool is_in = candidate.key > threshold || (candidate.key == threshold && ties-- > 0);
      if (is_in == (active[candidate.slot] != 0)) continue;
      for (; next != wrong.end() && *next < candidate.slot; ++next) found.push_back(*next);
      found.push_back(candidate.slot);
    }
    found.insert(found.end(), next, wrong.end());
    return found;
  }
};

template <typename T>
Chunk<T> look(const T* values, const uint8_t* active, int64_t first, int64_t last, Band<typename Key<T>::type> band,
              T favour) {
  Chunk<T> chunk;
  chunk.wrong.reserve(kPiece / 8);
  uint64_t inside[kPiece / 64], wrong[kPiece / 64];
  for (int64_t base = first; base < last; base += kPiece) {
    const int64_t count = std::min(kPiece, last - base);
    const ScanResult result = kernels<T>().scan(values + base, active + base, count, band, favour, inside, wrong);
    chunk.above += result.above;
    chunk.is_finite &= result.is_finite;
    for (int64_t i = 0; i < count; i += 64) {
      for (uint64_t word = wrong[i / 64]; word; word &= word - 1)
        chunk.wrong.push_back(base + i + __builtin_ctzll(word));
      for (uint64_t word = inside[i / 64]; word; word &= word - 1) {
        const int64_t slot = base + i + __builtin_ctzll(word);
        chunk.inside.push_back({slot, key_of(active[slot] ? values[slot] * favour : values[slot])});
      }
    }
  }
  return chunk;
}

template <typename T>
struct Look {
  using K = typename Key<T>::type;
  std::vector<Chunk<T>> chunks;
  int64_t above = 0, inside = 0;
  bool is_finite = true;

  Look(const T* values, const uint8_t* active, int64_t n, Band<K> band, T favour, int num_threads)
      : chunks((n + kChunk - 1) / kChunk) {
    const int64_t count = static_cast<int64_t>(chunks.size());
#pragma omp parallel for schedule(static) num_threads(num_threads)
    for (int64_t c = 0; c < count; ++c)
      chunks[c] = look(values, active, c * kChunk, std::min(n, (c + 1) * kChunk), band, favour);
    for (const Chunk<T>& chunk : chunks) {
      above += chunk.above;
      inside += static_cast<int64_t>(chunk.inside.size());
      is_finite &= chunk.is_finite;
    }
  }
  bool has_rank(int64_t k) const { return above < k && k <= above + inside; }

  // The k-th largest key, which must be within the band.
  K threshold(int64_t k) const {
    std::vector<K> keys;
    keys.reserve(inside);
    for (const Chunk<T>& chunk : chunks)
      for (const Candidate<K>& candidate : chunk.inside) keys.push_back(candidate.key);
    const auto at = keys.begin() + (k - above - 1);
    std::nth_element(keys.begin(), at, keys.end(), [](K a, K b) { return a > b; });
    return *at;
  }

  // Slots whose flag is not what it should be, with the k-th largest key.
  void write_changed(const uint8_t* active, int64_t k, K threshold, int num_threads,
                     std::vector<int64_t>& changed) const {
    const int64_t count = static_cast<int64_t>(chunks.size());
    std::vector<std::pair<int64_t, int64_t>> compared(count);
    std::vector<std::vector<int64_t>> parts(count);
    std::vector<int64_t> ties(count, k - above), first(count + 1, 0);
#pragma omp parallel num_threads(num_threads)
    {
#pragma omp for schedule(static)
      for (int64_t c = 0; c < count; ++c) compared[c] = chunks[c].compared(threshold);
#pragma omp single
      for (int64_t c = 0, larger = sum_of_first(compared), equal = 0; c < count; equal += compared[c++].second)
        ties[c] -= larger + equal;
#pragma omp for schedule(static)
      for (int64_t c = 0; c < count; ++c) parts[c] = chunks[c].changed(active, threshold, ties[c]);
#pragma omp single
      {
        for (int64_t c = 0; c < count; ++c) first[c + 1] = first[c] + static_cast<int64_t>(parts[c].size());
        changed.resize(first[count]);
      }
#pragma omp for schedule(static)
      for (int64_t c = 0; c < count; ++c) std::copy(parts[c].begin(), parts[c].end(), changed.begin() + first[c]);
    }
  }

 private:
  static int64_t sum_of_first(const std::vector<std::pair<int64_t, int64_t>>& pairs) {
    int64_t sum = 0;
    for (const auto& pair : pairs) sum += pair.first;
    return sum;
  }
};

template <typename T>
Band<typename Key<T>::type> around(double threshold, double width) {
  const double most = static_cast<double>(std::numeric_limits<T>::max());
  return {key_of(static_cast<T>(threshold * (1 - width))),
          key_of(static_cast<T>(std::min(most, threshold * (1 + width))))};
}

// The numbers that are compared, where a sample of them is needed: as they are unless some are favoured.
template <typename T>
class Compared {
 public:
  Compared(const T* values, const uint8_t* active, int64_t n, T favour)
      : values_(values), active_(active), n_(n), favour_(favour) {}
  const T* numbers() {
    if (favour_ == 1) return values_;
    if (favoured_.empty()) {
      favoured_.resize(n_);
      for (int64_t i = 0; i < n_; ++i) favoured_[i] = active_[i] ? values_[i] * favour_ : values_[i];
    }
    return favoured_.data();
  }

 private:
  const T* values_;
  const uint8_t* active_;
  int64_t n_;
  T favour_;
  std::vector<T> favoured_;
};

}  // namespace

template <typename T>
bool Within::choose(const T* values, const uint8_t* active, int64_t n, int64_t k, double factor, int num_threads) {
  using K = typename Key<T>::type;
  changed_.clear();
  const T favour = static_cast<T>(factor);
  if (k <= 0 || k >= n) return choose_all(values, active, n, favour, k > 0);
  Compared<T> compared(values, active, n, favour);
  // Where the penalty shrinks all of B alike, the threshold moves by as much at every step: it is looked for there.
  const double expected = threshold_ * (1 + drift_);
  Band<K> band = width_ > 0 ? around<T>(expected, width_) : band_around(compared.numbers(), n, k, num_threads);
  Look<T> found(values, active, n, band, favour, num_threads);
  if (!found.is_finite) return false;
  const auto look_again = [&](Band<K> wider) {
    band = wider;
    found = Look<T>(values, active, n, band, favour, num_threads);
  };
  if (width_ > 0) {
    if (!found.has_rank(k)) look_again(around<T>(expected, std::min(kMostWidth, 32 * width_)));
    if (!found.has_rank(k)) look_again(band_around(compared.numbers(), n, k, num_threads));
  }
  if (!found.has_rank(k)) look_again(sure_band(compared.numbers(), n, k, num_threads));
  const K threshold = found.threshold(k);
  const double now = value_of<T>(threshold);
  const double missed = expected > 0 ? std::abs(now / expected - 1) : 0;
  drift_ = threshold_ > 0 ? std::clamp(now / threshold_ - 1, -kMostWidth, kMostWidth) : 0;
  // Several times the last miss, unless that would hold too many: magnitudes of B may all be close to each other.
  const double high = value_of<T>(band.high), low = value_of<T>(band.low), held = (high - low) / std::max(now, 1e-300);
  const double per_width = static_cast<double>(found.inside) / std::max(held, 1e-12);
  width_ = std::max({kLeastWidth, std::min(kMostWidth, 4 * missed), width_ * 0.8});
  if (2 * width_ * per_width > static_cast<double>(n / kEnough)) width_ = 0;
  threshold_ = now;

  found.write_changed(active, k, threshold, num_threads, changed_);
  return true;
}

template <typename T>
bool Within::choose_all(const T* values, const uint8_t* active, int64_t n, T favour, bool takes) {
  threshold_ = std::numeric_limits<double>::infinity();
  width_ = drift_ = 0;
  for (int64_t i = 0; i < n; ++i) {
    const T value = active[i] ? values[i] * favour : values[i];
    if (!std::isfinite(value)) return false;
    if (takes) threshold_ = std::min(threshold_, static_cast<double>(std::abs(value)));
    if ((active[i] != 0) != takes) changed_.push_back(i);
  }
  return true;
}

template bool Within::choose(const float*, const uint8_t*, int64_t, int64_t, double, int);
template bool Within::choose(const double*, const uint8_t*, int64_t, int64_t, double, int);

}  // namespace topkast
