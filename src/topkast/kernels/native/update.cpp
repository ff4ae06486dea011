// Taking elements into the A of a Plan and out of it, at the cost of copying the cells they are in.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>

#include "placing.hpp"
#include "plan.hpp"

namespace topkast {
namespace {

// A Change as one Sweep sees it.
struct Moved {
  int64_t cell;
  uint16_t row;     // within the tile
  uint16_t column;  // within the block
  uint32_t slot;
  uint16_t offset;  // of the slot within its row of the weight, where that is narrow
  bool enters;
};

// Elements of a segment are in the order of their slots. That is the order of columns, but where taps are turned round:
// there they follow each other the other way.
int64_t rank(const Sweep& s, int64_t cell, uint16_t column) {
  if (s.taps == 1) return column;
  const int64_t c = cell % s.num_blocks * s.block_columns + column, row = c / s.taps;
  return row * s.taps + (s.taps - 1 - (c - row * s.taps));
}

[[noreturn]] void refuse(const Change& change, const char* why) {
  throw std::invalid_argument("slot " + std::to_string(change.slot) + " at position " +
                              std::to_string(change.position) + " " + why);
}

// A Change with the place in the weight that its position says.
struct Placed {
  uint32_t slot;
  uint32_t row;
  uint32_t column;
  uint16_t offset;  // of the slot within the row, where that is narrow
  bool enters;
};

// Refuses changes that are not of the weight or not of B. They mostly come in the order of their positions, so that the
// row is that of the one before or a little later: looking is faster than dividing.
std::vector<Placed> placed(const std::vector<Change>& changes, const std::vector<uint32_t>& first_slot,
                           int64_t num_rows, int64_t num_columns) {
  std::vector<Placed> found;
  found.reserve(changes.size());
  int64_t row = 0, begin = 0;  // of the row
  for (const Change& change : changes) {
    if (change.position < 0 || change.position >= num_rows * num_columns) refuse(change, "is outside of the weight");
    if (change.position < begin || change.position - begin >= 8 * num_columns) {
      row = change.position / num_columns;
      begin = row * num_columns;
    }
    for (; change.position - begin >= num_columns; begin += num_columns) ++row;
    if (change.slot < first_slot[row] || change.slot >= first_slot[row + 1]) refuse(change, "is not in B");
    found.push_back({static_cast<uint32_t>(change.slot), static_cast<uint32_t>(row),
                     static_cast<uint32_t>(change.position - begin),
                     static_cast<uint16_t>(change.slot - first_slot[row]), change.enters});
  }
  return found;
}

// The changes of a Sweep, those of a cell after each other in the order of their slots.
struct ByCell {
  std::vector<Moved> moved;
  std::vector<int64_t> first;  // per cell, and the end
};

// `turned` is the number of taps of a convolution whose input gradient is a convolution too, else 0; see `Turned` in
// placing.hpp.
ByCell by_cell(const Sweep& s, const std::vector<Placed>& changes, uint32_t turned) {
  std::vector<Moved> moved;
  moved.reserve(changes.size());
  ByCell result{std::vector<Moved>(changes.size()), std::vector<int64_t>(s.num_cells() + 1, 0)};
  const uint32_t tile_rows = s.tile_rows, block_columns = s.block_columns;  // unsigned 32 bits: divided by fast
  for (const Placed& change : changes) {
    uint32_t row = change.row, column = change.column;
    if (turned > 0) {
      row = change.column / turned;
      column = change.row * turned + (turned - 1 - change.column % turned);
    } else if (!s.has_weight_rows) {
      std::swap(row, column);
    }
    const uint32_t tile = row / tile_rows, block = column / block_columns;
    Moved m;
    m.cell = tile * s.num_blocks + block;
    m.row = static_cast<uint16_t>(row - tile * tile_rows);
    m.column = static_cast<uint16_t>(column - block * block_columns);
    m.slot = change.slot;
    m.offset = change.offset;
    m.enters = change.enters;
    moved.push_back(m);
    ++result.first[m.cell + 1];
  }
  for (int64_t at = 0; at < s.num_cells(); ++at) result.first[at + 1] += result.first[at];
  std::vector<int64_t> next(result.first.begin(), result.first.end() - 1);
  for (const Moved& m : moved) result.moved[next[m.cell]++] = m;
  return result;
}

int64_t with_slack(int64_t count) { return count + count / PlanSizes::slack_share + PlanSizes::least_slack; }

// How many elements and segments the cells of a Sweep will have, at most.
struct Sizes {
  std::vector<int64_t> elements;
  std::vector<int64_t> segments;

  Sizes(const Sweep& s, const ByCell& changes) : elements(s.num_cells()), segments(s.num_cells()) {
    for (int64_t at = 0; at < s.num_cells(); ++at) {
      elements[at] = s.end_element[at] - s.first_element[at];
      segments[at] = s.end_segment[at] - s.first_segment[at];
    }
    for (const Moved& m : changes.moved) {
      elements[m.cell] += m.enters ? 1 : -1;
      segments[m.cell] += m.enters;  // a row may be new to the cell with each that enters
    }
    for (int64_t& count : segments) count = std::min<int64_t>(count, s.tile_rows);
  }

  bool fit(const Sweep& s) const {
    bool all = true;
    for (int64_t at = 0; at < s.num_cells(); ++at)
      all &= elements[at] <= s.first_element[at + 1] - s.first_element[at] &&
             segments[at] <= s.first_segment[at + 1] - s.first_segment[at];
    return all;
  }
};

// Lays a Sweep out anew, each cell with room for what it has, what it will have, and some more.
void make_room(Sweep& s, const Sizes& sizes) {
  Sweep to;
  to.first_segment.assign(s.first_segment.size(), 0);
  to.first_element.assign(s.first_element.size(), 0);
  for (int64_t at = 0; at < s.num_cells(); ++at) {
    const int64_t segments = std::max(sizes.segments[at], s.end_segment[at] - s.first_segment[at]);
    const int64_t elements = std::max(sizes.elements[at], s.end_element[at] - s.first_element[at]);
    to.first_segment[at + 1] = to.first_segment[at] + with_slack(segments);
    to.first_element[at + 1] = to.first_element[at] + with_slack(elements);
  }
  to.segments.resize(to.first_segment.back() + 1);  // kernels look one ahead
  to.column.resize(to.room() + PlanSizes::look_ahead);
  s.slot.empty() ? to.offset.resize(to.room()) : to.slot.resize(to.room());
  for (int64_t at = 0; at < s.num_cells(); ++at) {
    const int64_t first = s.first_element[at], last = s.end_element[at], at_element = to.first_element[at];
    std::copy(s.segments.begin() + s.first_segment[at], s.segments.begin() + s.end_segment[at],
              to.segments.begin() + to.first_segment[at]);
    std::copy(s.column.begin() + first, s.column.begin() + last, to.column.begin() + at_element);
    if (s.slot.empty())
      std::copy(s.offset.begin() + first, s.offset.begin() + last, to.offset.begin() + at_element);
    else
      std::copy(s.slot.begin() + first, s.slot.begin() + last, to.slot.begin() + at_element);
    s.end_segment[at] = to.first_segment[at] + (s.end_segment[at] - s.first_segment[at]);
    s.end_element[at] = at_element + (last - first);
  }
  s.segments.swap(to.segments);
  s.column.swap(to.column);
  s.offset.swap(to.offset);
  s.slot.swap(to.slot);
  s.first_segment.swap(to.first_segment);
  s.first_element.swap(to.first_element);
}

constexpr int64_t kChunk = 16;

// Copies a whole number of chunks, so also beyond the last: there has to be room for that.
template <typename T>
void copy_chunks(const T* from, int64_t count, T* to) {
  for (int64_t i = 0; i < count; i += kChunk) std::memcpy(to + i, from + i, kChunk * sizeof(T));
}

// Elements with room behind them. `Slot` is how the Sweep says an element's slot.
template <typename Slot>
struct Run {
  std::vector<uint16_t> column;
  std::vector<Slot> slot;
  int64_t size = 0;

  void clear(int64_t most) {
    size = 0;
    if (static_cast<int64_t>(column.size()) < most + kChunk) {
      column.resize(most + kChunk);
      slot.resize(most + kChunk);
    }
  }
  void take(const uint16_t* columns, const Slot* slots, int64_t count) {
    copy_chunks(columns, count, column.data() + size);
    copy_chunks(slots, count, slot.data() + size);
    size += count;
  }
  void add(uint16_t one_column, Slot one_slot) {
    column[size] = one_column;
    slot[size++] = one_slot;
  }
};

// One cell, written anew from what it has and what changes.
template <typename Slot>
class CellWriter {
 public:
  CellWriter(Sweep& s, std::vector<Slot>& slots) : s_(s), slots_(slots), of_row_(s.tile_rows, kNone) {}

  // False if an element enters that is there, or leaves that is not.
  bool write(int64_t cell, const Moved* moved, uint32_t count) {
    segments_.clear();
    room_end_ = s_.first_element[cell + 1];
    run_.clear(s_.end_element[cell] - s_.first_element[cell] + count);
    next_.resize(count);
    for (uint32_t i = count; i-- > 0;) {
      next_[i] = of_row_[moved[i].row];
      of_row_[moved[i].row] = i;
    }
    bool sound = true;
    int64_t e = s_.first_element[cell], unchanged = e;
    for (int64_t i = s_.first_segment[cell]; i < s_.end_segment[cell]; ++i) {
      const Sweep::Segment segment = s_.segments[i];
      uint32_t& change = of_row_[segment.row];
      if (change == kNone) {
        segments_.push_back(segment);
      } else {
        take(unchanged, e);
        sound &= merge(segment, e, moved, change);
        unchanged = e + segment.count;
        change = kNone;
      }
      e += segment.count;
    }
    take(unchanged, e);
    for (uint32_t i = 0; i < count; ++i)  // rows that had no element here
      if (of_row_[moved[i].row] != kNone) {
        sound &= merge({moved[i].row, 0}, e, moved, i);
        of_row_[moved[i].row] = kNone;
      }
    if (!sound) return false;
    s_.disorder[cell] += count;
    if (s_.disorder[cell] * kOrderly > segments_.size()) {
      put_in_order();
      s_.disorder[cell] = 0;
    }
    put_back(cell);
    return true;
  }

 private:
  static constexpr uint32_t kNone = ~0u;
  // Segments are put in order again when one in so many has changed. (Without that the end of each is mispredicted
  // before long: refreshing and what it slows down took 8.6 % of a decoder's step at 95/90, in order 5.5 %.)
  static constexpr size_t kOrderly = 3;

  void put_in_order() {
    counts_.clear();
    first_.clear();
    int64_t first = 0;
    for (const Sweep::Segment& segment : segments_) {
      counts_.push_back(segment.count);
      first_.push_back(first);
      first += segment.count;
    }
    by_count_.sort(counts_.data(), static_cast<int32_t>(counts_.size()));
    old_segments_.swap(segments_);
    std::swap(old_run_, run_);
    segments_.clear();
    run_.clear(old_run_.size);
    for (uint16_t i : by_count_.order) {
      segments_.push_back(old_segments_[i]);
      run_.take(old_run_.column.data() + first_[i], old_run_.slot.data() + first_[i], old_segments_[i].count);
    }
  }

  // Elements of the Sweep that stay as they are. What is behind the cell's room another thread may be writing.
  void take(int64_t first, int64_t last) {
    const uint16_t* columns = s_.column.data();
    if (last + kChunk <= room_end_)
      run_.take(columns + first, slots_.data() + first, last - first);
    else
      for (; first < last; ++first) run_.add(columns[first], slots_[first]);
  }

  bool merge(Sweep::Segment segment, int64_t e, const Moved* moved, uint32_t change) {
    const int64_t before = run_.size, end = e + segment.count;
    for (; change != kNone; change = next_[change]) {
      const Moved& m = moved[change];
      const int64_t wanted = rank(s_, m.cell, m.column);
      int64_t to = e;
      while (to < end && rank(s_, m.cell, s_.column[to]) < wanted) ++to;
      take(e, to);
      const bool is_there = to < end && s_.column[to] == m.column;
      if (is_there == m.enters) return false;
      if (m.enters) run_.add(m.column, own_slot(m));
      e = m.enters ? to : to + 1;
    }
    take(e, end);
    if (const int64_t count = run_.size - before) segments_.push_back({segment.row, static_cast<uint16_t>(count)});
    return true;
  }

  static Slot own_slot(const Moved& m) {
    return sizeof(Slot) == 2 ? static_cast<Slot>(m.offset) : static_cast<Slot>(m.slot);
  }

  void put_back(int64_t cell) {
    std::copy(segments_.begin(), segments_.end(), s_.segments.begin() + s_.first_segment[cell]);
    std::copy_n(run_.column.begin(), run_.size, s_.column.begin() + s_.first_element[cell]);
    std::copy_n(run_.slot.begin(), run_.size, slots_.begin() + s_.first_element[cell]);
    s_.end_segment[cell] = s_.first_segment[cell] + static_cast<int64_t>(segments_.size());
    s_.end_element[cell] = s_.first_element[cell] + run_.size;
  }

  Sweep& s_;
  std::vector<Slot>& slots_;
  int64_t room_end_ = 0;          // of the cell
  std::vector<uint32_t> of_row_;  // the first change of each row of the tile
  std::vector<uint32_t> next_;    // the next one of the same row
  std::vector<Sweep::Segment> segments_;
  Run<Slot> run_;
  std::vector<Sweep::Segment> old_segments_;  // what follows is for putting them in order
  Run<Slot> old_run_;
  ByCount by_count_;
  std::vector<uint16_t> counts_;
  std::vector<int64_t> first_;
};

template <typename Slot>
bool write_cells(Sweep& s, std::vector<Slot>& slots, const ByCell& changes, int num_threads) {
  int wrong = 0;
#pragma omp parallel num_threads(num_threads) reduction(| : wrong)
  {
    CellWriter<Slot> writer(s, slots);
#pragma omp for schedule(dynamic)
    for (int64_t cell = 0; cell < s.num_cells(); ++cell) {
      const int64_t first = changes.first[cell], count = changes.first[cell + 1] - first;
      if (count) wrong |= !writer.write(cell, changes.moved.data() + first, static_cast<uint32_t>(count));
    }
  }
  return !wrong;
}

bool update_sweep(Sweep& s, const ByCell& changes, int num_threads) {
  const Sizes sizes(s, changes);
  if (!sizes.fit(s)) make_room(s, sizes);
  s.disorder.resize(s.num_cells(), 0);
  return s.slot.empty() ? write_cells(s, s.offset, changes, num_threads) : write_cells(s, s.slot, changes, num_threads);
}

}  // namespace

void Plan::update(const std::vector<Change>& changes, int num_threads) {
  if (!explores_) throw std::invalid_argument("a Plan without exploration is made anew when A changes");
  const std::vector<Placed> places = placed(changes, *rows_.first_slot, rows_.num_rows, rows_.num_columns);
  const std::unique_lock<std::shared_mutex> alone(mutex_);
  const uint32_t turned = gathers_ && taps_ > 1 ? static_cast<uint32_t>(taps_) : 0;
  if (changes.size() < 256) num_threads = 1;  // waking another thread takes longer
  ByCell in_rows, in_columns;
#pragma omp parallel sections num_threads(std::min(num_threads, 2))
  {
#pragma omp section
    in_rows = by_cell(rows_, places, 0);
#pragma omp section
    in_columns = by_cell(columns_, places, turned);
  }
  const bool sound = update_sweep(rows_, in_rows, num_threads) && update_sweep(columns_, in_columns, num_threads);
  if (!sound) throw std::invalid_argument("an element enters A that is in it, or leaves A that is not");
}

}  // namespace topkast
