#include "known.hpp"

#include <omp.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "keys.hpp"

namespace topkast {
namespace {

constexpr int64_t kChunk = 1 << 16;
constexpr int kDigit = 12;

// Adds to `counts`, for numbers whose key begins like `prefix`, one where its next digit is.
template <typename T>
void count_digits(const T* x, int64_t n, KeyOf<T> prefix, int shift, int width, std::vector<int64_t>& counts,
                  int num_threads) {
  using K = KeyOf<T>;
  const K mask = (K(1) << width) - 1;
  const int above = shift + width;
  std::mutex adding;
#pragma omp parallel num_threads(num_threads)
  {
    std::vector<int64_t> mine(counts.size(), 0);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < n; ++i) {
      const K key = key_of(x[i]);
      // (shifting by all bits is not defined; the sign is gone, so `above` is at most one less)
      mine[(key >> shift) & mask] += (key >> above) == prefix;
    }
    const std::lock_guard<std::mutex> lock(adding);
    for (size_t d = 0; d < counts.size(); ++d) counts[d] += mine[d];
  }
}

// The k-th largest key of all, and how many are larger.
template <typename K>
struct Threshold {
  K key;
  int64_t larger;
};

template <typename T, typename P>
Threshold<KeyOf<T>> find_threshold(const Unknown& unknown, List<T, P> b, List<T, P> returned, int64_t k,
                                   int num_threads) {
  using K = KeyOf<T>;
  K prefix = 0;
  int64_t larger = 0;  // keys of B and of the returned elements that begin with more than the prefix
  for (int shift = 8 * sizeof(K) - 1; shift > 0;) {
    const int width = std::min(kDigit, shift);
    shift -= width;
    std::vector<int64_t> counts(size_t(1) << width, 0);
    for (const List<T, P>& list : {b, returned})
      count_digits(list.values, list.size, prefix, shift, width, counts, num_threads);
    for (size_t d = counts.size() - 1; d-- > 0;) counts[d] += counts[d + 1];
    // The largest digit from which on there are at least k. Of no key there are fewer than from zero on, n.
    auto suffices = [&](int64_t digit) {
      const K key = ((prefix << width) | K(digit)) << shift;
      if (key >= Key<T>::infinity) return false;
      return larger + counts[digit] + unknown.count_at_least(value_of<T>(key)) >= k;
    };
    int64_t low = 0, high = int64_t(counts.size());
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (suffices(middle) ? low : high) = middle;
    }
    larger += low + 1 < int64_t(counts.size()) ? counts[low + 1] : 0;
    prefix = (prefix << width) | K(low);
  }
  // The last digit was that of single keys.
  const bool has_next = prefix + 1 < Key<T>::infinity;
  return {prefix, larger + (has_next ? unknown.count_at_least(value_of<T>(prefix + 1)) : 0)};
}

// Positions in a list whose key is exactly this one.
template <typename T, typename P>
void collect_equal(List<T, P> list, KeyOf<T> key, std::vector<int64_t>& out, int num_threads) {
  std::mutex adding;
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t c = 0; c < (list.size + kChunk - 1) / kChunk; ++c) {
    std::vector<int64_t> mine;
    for (int64_t i = c * kChunk; i < std::min(list.size, (c + 1) * kChunk); ++i)
      if (key_of(list.values[i]) == key) mine.push_back(list.positions[i]);
    if (mine.empty()) continue;
    const std::lock_guard<std::mutex> lock(adding);
    out.insert(out.end(), mine.begin(), mine.end());
  }
}

// Who is chosen: keys above the threshold, and those equal to it up to a position.
template <typename T>
struct Rule {
  KeyOf<T> key;
  int64_t last_equal;

  bool takes(T value, int64_t position) const {
    const KeyOf<T> mine = key_of(value);
    return mine > key || (mine == key && position <= last_equal);
  }
};

// Ranks [first, last) of the stream in order of position, without those that are `gone`, block by block.
template <typename T, typename P>
class Fresh {
 public:
  Fresh(const Stream& stream, const P* first, const P* last, const int64_t* gone, const int64_t* gone_last)
      : stream_(stream), next_(first), last_(last), gone_(gone), gone_last_(gone_last) {
    fill();
  }
  bool ends() const { return at_ == held_; }
  int64_t position() const { return position_[at_]; }
  T value() const { return stream_.template value<T>(rank_[at_]); }
  void advance() {
    if (++at_ == held_) fill();
  }

 private:
  static constexpr int64_t kBlock = 512;
  void fill() {
    at_ = held_ = 0;
    while (held_ == 0 && next_ != last_) {
      for (; held_ < kBlock && next_ != last_; ++next_) {
        while (gone_ != gone_last_ && *gone_ < *next_) ++gone_;
        if (gone_ != gone_last_ && *gone_ == *next_) continue;
        position_[held_++] = *next_;
      }
    }
    std::copy(position_, position_ + held_, rank_);
    stream_.permutation().to_ranks(rank_, held_);
  }

  const Stream& stream_;
  const P *next_, *last_;
  const int64_t *gone_, *gone_last_;
  int64_t at_ = 0, held_ = 0;
  int64_t position_[kBlock], rank_[kBlock];
};

// A part of a list.
template <typename T, typename P>
struct Part {
  List<T, P> list;
  int64_t at, last;
  Rule<T> rule;

  void settle() {
    while (at < last && !rule.takes(list.values[at], list.positions[at])) ++at;
  }
  bool ends() const { return at >= last; }
};

// What one range of positions has.
struct Range {
  int64_t b_first, b_last, returned_first, returned_last, fresh_first, fresh_last, gone_first, gone_last, from;
};

template <typename X>
int64_t place(const X* list, int64_t size, int64_t position) {
  return std::lower_bound(list, list + size, position, [](X x, int64_t y) { return int64_t(x) < y; }) - list;
}

}  // namespace

template <typename T>
int64_t Unknown::count_at_least(T threshold) const {
  const int64_t count = stream.count_at_least(threshold);
  if (count <= cursor) return 0;
  return count - cursor - (std::lower_bound(early, early + num_early, count) - early);
}

bool Unknown::is_early(int64_t rank) const { return std::binary_search(early, early + num_early, rank); }

template <typename T, typename P>
void largest(const Unknown& unknown, List<T, P> b, List<T, P> returned, int64_t k, int64_t* positions, T* values,
             int num_threads) {
  const Stream& stream = unknown.stream;
  const auto [key, larger] = find_threshold(unknown, b, returned, k, num_threads);
  const T threshold = value_of<T>(key);
  const int64_t cursor = unknown.cursor, end = std::max(cursor, stream.count_at_least(threshold));

  // Ties: all that equal the threshold, of which the smaller positions are taken.
  std::vector<int64_t> equal, equal_fresh, gone;
  collect_equal(b, key, equal, num_threads);
  collect_equal(returned, key, equal, num_threads);
  const bool has_next = key + 1 < Key<T>::infinity;
  const int64_t first_equal = has_next ? stream.count_at_least(value_of<T>(key + 1)) : 0;
  for (int64_t rank = std::max(cursor, first_equal); rank < end; ++rank)
    if (!unknown.is_early(rank)) equal_fresh.push_back(stream.permutation().position(rank));
  equal.insert(equal.end(), equal_fresh.begin(), equal_fresh.end());
  const int64_t ties = k - larger;
  Rule<T> rule{key, std::numeric_limits<int64_t>::max()};
  if (ties < static_cast<int64_t>(equal.size())) {
    std::nth_element(equal.begin(), equal.begin() + (ties - 1), equal.end());
    rule.last_equal = equal[ties - 1];
  }
  equal = {};

  // The stream's part by position, and what of it is known or lost a tie.
  std::vector<P> fresh(end - cursor);
  stream.positions(cursor, end - cursor, fresh.data(), num_threads);
  for (int64_t i = 0; i < unknown.num_early && unknown.early[i] < end; ++i)
    gone.push_back(stream.permutation().position(unknown.early[i]));
  for (int64_t position : equal_fresh)
    if (position > rule.last_equal) gone.push_back(position);
  std::sort(gone.begin(), gone.end());

  const int64_t n = stream.size(), num_fresh = end - cursor, num_gone = static_cast<int64_t>(gone.size());
  const int64_t groups = std::clamp<int64_t>(k / kChunk, 1, 1024);
  std::vector<Range> ranges(groups);
  auto first_of = [&](int64_t g) { return g == groups ? n : n / groups * g; };
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t g = 0; g < groups; ++g) {
    auto edges = [&](const auto* list, int64_t size) {
      return std::pair(place(list, size, first_of(g)), place(list, size, first_of(g + 1)));
    };
    Range& range = ranges[g];
    std::tie(range.b_first, range.b_last) = edges(b.positions, b.size);
    std::tie(range.returned_first, range.returned_last) = edges(returned.positions, returned.size);
    std::tie(range.fresh_first, range.fresh_last) = edges(fresh.data(), num_fresh);
    std::tie(range.gone_first, range.gone_last) = edges(gone.data(), num_gone);
    range.from = range.fresh_last - range.fresh_first - (range.gone_last - range.gone_first);  // so many, for now
    for (int64_t i = range.b_first; i < range.b_last; ++i) range.from += rule.takes(b.values[i], b.positions[i]);
    for (int64_t i = range.returned_first; i < range.returned_last; ++i)
      range.from += rule.takes(returned.values[i], returned.positions[i]);
  }
  int64_t next = 0;
  for (Range& range : ranges) {
    const int64_t count = range.from;
    range.from = next;
    next += count;
  }
  if (next != k) throw std::logic_error("B, what has left it and the stream do not fit each other");
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t g = 0; g < groups; ++g) {
    const Range& range = ranges[g];
    Part<T, P> mine{b, range.b_first, range.b_last, rule};
    Part<T, P> old{returned, range.returned_first, range.returned_last, rule};
    Fresh<T, P> drawn(stream, fresh.data() + range.fresh_first, fresh.data() + range.fresh_last,
                      gone.data() + range.gone_first, gone.data() + range.gone_last);
    constexpr int64_t never = std::numeric_limits<int64_t>::max();
    for (int64_t to = range.from;; ++to) {
      mine.settle();
      old.settle();
      const int64_t p = mine.ends() ? never : b.positions[mine.at], q = old.ends() ? never : returned.positions[old.at];
      const int64_t r = drawn.ends() ? never : drawn.position();
      const int64_t least = std::min({p, q, r});
      if (least == never) break;
      positions[to] = least;
      if (least == p) {
        values[to] = b.values[mine.at++];
      } else if (least == q) {
        values[to] = returned.values[old.at++];
      } else {
        values[to] = drawn.value();
        drawn.advance();
      }
    }
  }
}

template <typename T, typename S>
Entrants::Entrants(const Unknown& unknown, const int64_t* positions, int64_t count, const S* source,
                   const T* returned_values, int64_t num_returned, T* values, int num_threads)
    : cursor_(unknown.cursor) {
  constexpr int64_t block = 1024;
  const Stream& stream = unknown.stream;
  // A flag for each rank that could be in a row from the cursor on, and one that is never set.
  std::vector<uint8_t> flags(count + unknown.num_early + 1, 0);
  const int64_t reach = static_cast<int64_t>(flags.size()) - 1;
  std::mutex adding;
  bool is_wrong = false;
#pragma omp parallel for schedule(static) num_threads(num_threads) reduction(|| : is_wrong)
  for (int64_t base = 0; base < count; base += block) {
    const int64_t num = std::min(block, count - base);
    int64_t rank[block];
    for (int64_t i = 0; i < num; ++i) {
      const int64_t position = positions[base + i], place = source[base + i];
      const bool is_in = position >= 0 && position < stream.size() && place >= -1 && place < num_returned;
      is_wrong |= !is_in;
      rank[i] = is_in ? position : 0;
    }
    stream.permutation().to_ranks(rank, num);
    std::vector<int64_t> beyond;
    for (int64_t i = 0; i < num; ++i) {
      const int64_t place = source[base + i];
      if (place >= 0) {
        values[base + i] = place < num_returned ? returned_values[place] : T(0);
        continue;
      }
      values[base + i] = stream.value<T>(rank[i]);
      const int64_t ahead = rank[i] - unknown.cursor;
      if (ahead < 0)
        is_wrong = true;  // known, and not among the returned elements
      else if (ahead < reach)
        flags[ahead] = 1;
      else
        beyond.push_back(rank[i]);
    }
    if (beyond.empty()) continue;
    const std::lock_guard<std::mutex> lock(adding);
    early_.insert(early_.end(), beyond.begin(), beyond.end());
  }
  if (is_wrong) throw std::invalid_argument("an element that enters B is out of range, or known without being kept");
  for (int64_t i = 0; i < unknown.num_early; ++i) {
    const int64_t ahead = unknown.early[i] - unknown.cursor;
    if (ahead < reach)
      flags[ahead] = 1;
    else
      early_.push_back(unknown.early[i]);
  }
  int64_t passed = 0;
  while (flags[passed]) ++passed;
  for (int64_t i = passed; i < reach; ++i)
    if (flags[i]) early_.push_back(unknown.cursor + i);
  cursor_ += passed;
  std::sort(early_.begin(), early_.end());
}

#define TOPKAST_KNOWN(T, P) template void largest(const Unknown&, List<T, P>, List<T, P>, int64_t, int64_t*, T*, int);
TOPKAST_KNOWN(float, int32_t)
TOPKAST_KNOWN(float, int64_t)
TOPKAST_KNOWN(double, int32_t)
TOPKAST_KNOWN(double, int64_t)
#define TOPKAST_ENTRANTS(T, S) \
  template Entrants::Entrants(const Unknown&, const int64_t*, int64_t, const S*, const T*, int64_t, T*, int);
TOPKAST_ENTRANTS(float, int32_t)
TOPKAST_ENTRANTS(float, int64_t)
TOPKAST_ENTRANTS(double, int32_t)
TOPKAST_ENTRANTS(double, int64_t)

}  // namespace topkast
