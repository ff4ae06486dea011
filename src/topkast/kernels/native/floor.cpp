#include "floor.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels.hpp"
#include "keys.hpp"

namespace topkast {
namespace {

// An element that may enter or leave, with the number of its row and of its column.
template <typename K>
struct Element {
  K key;
  int64_t slot, row, column;

  // The order of every Top-K: larger magnitude first, then smaller position.
  bool goes_before(const Element& other) const { return key != other.key ? key > other.key : slot < other.slot; }
};

// Where the rows of some elements begin, and their columns. Columns of later groups come after.
template <typename P>
class Places {
 public:
  Places(const P* positions, int64_t n, const Lines& lines)
      : positions_(positions), lines_(lines), first_(lines.rows + 1) {
    const auto is_before = [](P p, int64_t end) { return int64_t(p) < end; };
    for (int64_t row = 0, i = 0; row < lines.rows; ++row) {
      first_[row] = i;
      // Steps that grow, then a search within the last one.
      const int64_t end = (row + 1) * lines.width();
      int64_t step = 8, last = i;
      while (last < n && positions[last] < end) i = last + 1, last = std::min(n, last + (step *= 2));
      i = std::lower_bound(positions + i, positions + last, end, is_before) - positions;
    }
    first_[lines.rows] = n;
  }
  int64_t first(int64_t row) const { return first_[row]; }
  int64_t last(int64_t row) const { return first_[row + 1]; }
  int64_t column(int64_t slot, int64_t row) const {
    const int64_t within = positions_[slot] - row * lines_.width(), group = row / (lines_.rows / lines_.groups);
    return group * lines_.columns + (lines_.taps == 1 ? within : within / lines_.taps);
  }
  // Calls `work` with the slot and column of every element of a row.
  template <typename F>
  void each(int64_t row, F&& work) const {
    const int64_t start = row * lines_.width(), shift = row / (lines_.rows / lines_.groups) * lines_.columns;
    if (lines_.taps == 1)
      for (int64_t i = first(row); i < last(row); ++i) work(i, shift + positions_[i] - start);
    else
      for (int64_t i = first(row); i < last(row); ++i) work(i, shift + (positions_[i] - start) / lines_.taps);
  }

 private:
  const P* positions_;
  const Lines& lines_;
  std::vector<int64_t> first_;
};

template <typename P>
void check(const P* positions, int64_t n, const Lines& lines) {
  P falls = 0;  // not a bool: vectors compare faster
  for (int64_t i = 1; i < n; ++i) falls |= P(positions[i - 1] >= positions[i]);
  if (falls || (n > 0 && (positions[0] < 0 || positions[n - 1] >= lines.size())))
    throw std::invalid_argument("positions must increase and lie within the lines");
}

// How many of the chosen elements each line has.
struct Tally {
  std::vector<int64_t> row, column;
};

bool lacks(const std::vector<int64_t>& counts, int64_t least) {
  return least > 0 && *std::min_element(counts.begin(), counts.end()) < least;
}

template <typename P>
Tally tally(const Places<P>& places, const uint8_t* chosen, const Lines& lines) {
  Tally counts{std::vector<int64_t>(lines.rows, 0), std::vector<int64_t>(lines.columns * lines.groups, 0)};
  for (int64_t row = 0; row < lines.rows; ++row) {
    uint32_t count = 0;
    for (int64_t i = places.first(row), last = places.last(row); i < last; ++i) count += chosen[i];
    counts.row[row] = count;
  }
  if (lines.per_column > 0)
    for (int64_t row = 0; row < lines.rows; ++row)
      places.each(row, [&](int64_t i, int64_t column) { counts.column[column] += chosen[i]; });
  return counts;
}

// Adds to `added`, for each line that lacks some, the slots of its best candidates.
template <typename K, typename Line>
void add_best(std::vector<Element<K>>& candidates, const std::vector<int64_t>& counts, int64_t least, Line line,
              std::vector<int64_t>& added) {
  std::sort(candidates.begin(), candidates.end(), [&](const Element<K>& a, const Element<K>& b) {
    return line(a) != line(b) ? line(a) < line(b) : a.goes_before(b);
  });
  int64_t at = -1, wanted = 0;
  for (const Element<K>& candidate : candidates) {
    if (line(candidate) != at) {
      at = line(candidate);
      wanted = least - counts[at];
    }
    if (wanted-- > 0) added.push_back(candidate.slot);
  }
}

// Slots of F \ T, increasing: those that the lines with too few lack.
template <typename T, typename P>
std::vector<int64_t> missing(const T* values, const Places<P>& places, const uint8_t* chosen, const Lines& lines,
                             const Tally& counts) {
  using E = Element<KeyOf<T>>;
  std::vector<E> by_row, by_column;
  for (int64_t row = 0; row < lines.rows; ++row)
    if (counts.row[row] < lines.per_row)
      for (int64_t i = places.first(row); i < places.last(row); ++i)
        if (!chosen[i]) by_row.push_back({key_of(values[i]), i, row, 0});
  if (lacks(counts.column, lines.per_column))
    for (int64_t row = 0; row < lines.rows; ++row)
      places.each(row, [&](int64_t i, int64_t column) {
        if ((counts.column[column] < lines.per_column) & !chosen[i])
          by_column.push_back({key_of(values[i]), i, row, column});
      });
  std::vector<int64_t> added;
  add_best(by_row, counts.row, lines.per_row, [](const E& e) { return e.row; }, added);
  add_best(by_column, counts.column, lines.per_column, [](const E& e) { return e.column; }, added);
  std::sort(added.begin(), added.end());
  added.erase(std::unique(added.begin(), added.end()), added.end());
  return added;
}

// Which leave T, and the least that may but does not.
template <typename K>
struct Leaving {
  std::vector<int64_t> slots;
  bool has_next = false;
  K next = 0;

  // Goes through T from its least element on. What is left of a line is then the rank of an element in it.
  Leaving(std::vector<Element<K>> bottom, int64_t wanted, const Lines& lines, Tally left) {
    const auto is_larger = [](const Element<K>& a, const Element<K>& b) { return a.goes_before(b); };
    // A heap: few of them leave, so that a sort would take several times as long.
    std::make_heap(bottom.begin(), bottom.end(), is_larger);
    for (auto end = bottom.end(); end != bottom.begin(); --end) {
      std::pop_heap(bottom.begin(), end, is_larger);
      const Element<K>& element = *(end - 1);
      const int64_t in_row = left.row[element.row]--, in_column = left.column[element.column]--;
      const bool is_in_row = lines.per_row > 0 && in_row <= lines.per_row;
      const bool is_in_column = lines.per_column > 0 && in_column <= lines.per_column;
      if (is_in_row || is_in_column) continue;  // in F
      if (static_cast<int64_t>(slots.size()) == wanted) {
        has_next = true;
        next = element.key;
        return;
      }
      slots.push_back(element.slot);
    }
  }
};

constexpr int64_t kPiece = 1 << 12;  // numbers that are scanned at a time

// Elements of T from its least key up to another one.
template <typename T, typename P>
std::vector<Element<KeyOf<T>>> bottom_of(const T* values, const Places<P>& places, const uint8_t* chosen, int64_t n,
                                         const Lines& lines, Band<KeyOf<T>> band) {
  std::vector<Element<KeyOf<T>>> bottom;
  uint64_t inside[kPiece / 64], wrong[kPiece / 64];
  int64_t row = 0;
  for (int64_t base = 0; base < n; base += kPiece) {
    const int64_t count = std::min(kPiece, n - base);
    // What is above the band is chosen, and what is below is not: no flag is wrong.
    kernels<T>().scan(values + base, chosen + base, count, band, T(1), inside, wrong);
    for (int64_t i = 0; i < count; i += 64)
      for (uint64_t word = inside[i / 64]; word; word &= word - 1) {
        const int64_t slot = base + i + __builtin_ctzll(word);
        if (!chosen[slot]) continue;  // lost a tie
        while (slot >= places.last(row)) ++row;
        bottom.push_back({key_of(values[slot]), slot, row, lines.per_column > 0 ? places.column(slot, row) : 0});
      }
  }
  return bottom;
}

// What is looked at of T, as multiples of its least magnitude: mostly the first suffices.
constexpr double kReach[] = {1.02, 1.3, std::numeric_limits<double>::infinity()};

template <typename T, typename P>
Leaving<KeyOf<T>> leaving(const T* values, const Places<P>& places, const uint8_t* chosen, int64_t n,
                          const Lines& lines, const Tally& counts, double least, int64_t wanted) {
  for (double reach : kReach) {
    const double most = static_cast<double>(std::numeric_limits<T>::max());
    const double limit = reach > 2 ? most : std::min(most, least * reach);
    const Band<KeyOf<T>> band{key_of(static_cast<T>(least)), key_of(static_cast<T>(limit))};
    const Leaving<KeyOf<T>> found(bottom_of(values, places, chosen, n, lines, band), wanted, lines, counts);
    if (found.has_next || reach > 2) return found;
  }
  throw std::logic_error("the last reach takes all");
}

}  // namespace

template <typename T, typename P>
void Floored::choose(const T* values, const P* positions, const uint8_t* active, int64_t n, const int64_t* wrong,
                     int64_t num_wrong, const Lines& lines, double least, double bound) {
  check(positions, n, lines);
  std::vector<uint8_t> chosen(active, active + n);
  for (int64_t i = 0; i < num_wrong; ++i) {
    if (wrong[i] < 0 || wrong[i] >= n || (i > 0 && wrong[i] <= wrong[i - 1]))
      throw std::invalid_argument("slots must increase and lie in [0, " + std::to_string(n) + ")");
    chosen[wrong[i]] ^= 1;
  }
  changed_.assign(wrong, wrong + num_wrong);
  least_ = least;
  const Places<P> places(positions, n, lines);
  const Tally counts = tally(places, chosen.data(), lines);
  std::vector<int64_t> flips;
  if (lacks(counts.row, lines.per_row) || lacks(counts.column, lines.per_column))
    flips = missing(values, places, chosen.data(), lines, counts);
  if (flips.empty() && least > bound) return;

  const int64_t num_added = static_cast<int64_t>(flips.size());
  const auto found = leaving(values, places, chosen.data(), n, lines, counts, least, num_added);
  if (static_cast<int64_t>(found.slots.size()) < num_added)
    throw std::invalid_argument("the floors need more elements than are to be chosen");
  flips.insert(flips.end(), found.slots.begin(), found.slots.end());
  std::sort(flips.begin(), flips.end());
  changed_.clear();
  std::set_symmetric_difference(wrong, wrong + num_wrong, flips.begin(), flips.end(), std::back_inserter(changed_));
  least_ = found.has_next ? static_cast<double>(value_of<T>(found.next)) : std::numeric_limits<double>::infinity();
}

#define TOPKAST_FLOORED(T, P)                                                                                       \
  template void Floored::choose(const T*, const P*, const uint8_t*, int64_t, const int64_t*, int64_t, const Lines&, \
                                double, double);
TOPKAST_FLOORED(float, int32_t)
TOPKAST_FLOORED(float, int64_t)
TOPKAST_FLOORED(double, int32_t)
TOPKAST_FLOORED(double, int64_t)

}  // namespace topkast
