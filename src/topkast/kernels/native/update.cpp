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
  uint32_t cell;
  uint32_t slot;
  uint16_t row;     // within the tile
  uint16_t column;  // within the block
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

[[noreturn]] void refuse(const Changes& changes, int64_t i, const char* why) {
  throw std::invalid_argument("slot " + std::to_string(changes.slots[i]) + " at position " +
                              std::to_string(changes.positions[i]) + " " + why);
}

// A change with the place in the weight that its position says.
struct Placed {
  uint32_t slot;
  uint32_t row;
  uint32_t column;
  uint16_t offset;  // of the slot within the row, where that is narrow
  bool enters;
};

// Refuses changes that are not of the weight or not of B. They mostly come in the order of their positions, so that the
// row is that of the one before or a little later: looking is faster than dividing.
std::vector<Placed> placed(const Changes& changes, const std::vector<uint32_t>& first_slot, int64_t num_rows,
                           int64_t num_columns) {
  std::vector<Placed> found(changes.count);
  int64_t row = 0, begin = 0;  // of the row
  for (int64_t i = 0; i < changes.count; ++i) {
    const int64_t slot = changes.slots[i], position = changes.positions[i];
    if (position < 0 || position >= num_rows * num_columns) refuse(changes, i, "is outside of the weight");
    if (position < begin || position - begin >= 8 * num_columns) {
      row = position / num_columns;
      begin = row * num_columns;
    }
    for (; position - begin >= num_columns; begin += num_columns) ++row;
    if (slot < first_slot[row] || slot >= first_slot[row + 1]) refuse(changes, i, "is not in B");
    found[i] = {static_cast<uint32_t>(slot), static_cast<uint32_t>(row), static_cast<uint32_t>(position - begin),
                static_cast<uint16_t>(slot - first_slot[row]), changes.enters[i] != 0};
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
  std::vector<Moved> moved(changes.size());
  ByCell result{std::vector<Moved>(changes.size()), std::vector<int64_t>(s.num_cells() + 1, 0)};
  const uint32_t tile_rows = s.tile_rows, block_columns = s.block_columns;  // unsigned 32 bits: divided by fast
  for (size_t i = 0; i < changes.size(); ++i) {
    const Placed& change = changes[i];
    uint32_t row = change.row, column = change.column;
    if (turned > 0) {
      row = change.column / turned;
      column = change.row * turned + (turned - 1 - change.column % turned);
    } else if (!s.has_weight_rows) {
      std::swap(row, column);
    }
    const uint32_t tile = row / tile_rows, block = column / block_columns;
    const uint32_t cell = static_cast<uint32_t>(tile * s.num_blocks + block);
    moved[i] = {cell,
                change.slot,
                static_cast<uint16_t>(row - tile * tile_rows),
                static_cast<uint16_t>(column - block * block_columns),
                change.offset,
                change.enters};
    ++result.first[cell + 1];
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

// Elements that are read, one after the other. `Slot` is how the Sweep says an element's slot.
template <typename Slot>
struct Read {
  const uint16_t* column;
  const Slot* slot;
};

// Where elements are written: at most `room` of them.
template <typename Slot>
struct Written {
  uint16_t* column;
  Slot* slot;
  int64_t room;
  int64_t size = 0;

  // Copies whole chunks, so also beyond the last, unless there is no room for that. What is copied must have it.
  template <int64_t chunk>
  void take(Read<Slot> from, int64_t first, int64_t count) {
    const uint16_t* columns = from.column + first;
    const Slot* slots = from.slot + first;
    if (size + count + chunk <= room) {
      for (int64_t i = 0; i < count; i += chunk) {
        std::memcpy(column + size + i, columns + i, chunk * sizeof(uint16_t));
        std::memcpy(slot + size + i, slots + i, chunk * sizeof(Slot));
      }
    } else {
      std::copy_n(columns, count, column + size);
      std::copy_n(slots, count, slot + size);
    }
    size += count;
  }

  // One more, if it is wanted: without a branch, and without touching what is behind the room.
  void put(uint16_t one_column, Slot one_slot, bool is_wanted) {
    *(is_wanted ? column + size : &nowhere_column) = one_column;
    *(is_wanted ? slot + size : &nowhere_slot) = one_slot;
    size += is_wanted;
  }
  uint16_t nowhere_column = 0;
  Slot nowhere_slot = 0;
};

constexpr int64_t kLongChunk = 64, kShortChunk = 16;  // elements between two changes; those of one segment

// Elements with room behind them.
template <typename Slot>
struct Buffer {
  std::vector<uint16_t> column;
  std::vector<Slot> slot;

  Written<Slot> cleared(int64_t most) {
    if (static_cast<int64_t>(column.size()) < most + 2 * kLongChunk) {
      column.resize(most + 2 * kLongChunk);
      slot.resize(most + 2 * kLongChunk);
    }
    return {column.data(), slot.data(), static_cast<int64_t>(column.size())};
  }
  Read<Slot> read() const { return {column.data(), slot.data()}; }
};

// How many of `count` increasing columns are below one. Reads up to 16 beyond them. Without a branch on what it finds,
// which nobody could predict.
int64_t num_below(const uint16_t* columns, int64_t count, uint16_t wanted) {
  int64_t found = 0;
  for (int64_t base = 0; base < count; base += kShortChunk) {
    const uint16_t left = static_cast<uint16_t>(std::min<int64_t>(kShortChunk, count - base));
    uint16_t below = 0;
    for (uint16_t i = 0; i < kShortChunk; ++i)
      below = static_cast<uint16_t>(below + ((columns[base + i] < wanted) & (i < left)));
    found += below;
  }
  return found;
}

// One cell, written anew: what lies between two changes is copied as a whole.
template <typename Slot>
class CellWriter {
 public:
  CellWriter(Sweep& s, std::vector<Slot>& slots) : s_(s), slots_(slots), ordinal_(s.tile_rows) {}

  // False if an element enters that is there, or leaves that is not.
  bool write(int64_t cell, const Moved* moved, uint32_t count) {
    take_out(cell);
    link(moved, count);
    s_.disorder[cell] += count;
    const bool is_orderly = s_.disorder[cell] * kOrderly <= segments_.size();
    const int64_t first = s_.first_element[cell];
    Written<Slot> to{s_.column.data() + first, slots_.data() + first, s_.first_element[cell + 1] - first};
    if (is_orderly) {
      if (!edit(moved, to)) return false;
      drop_empty();
    } else {
      Written<Slot> between = edited_.cleared(num_elements_ + count);
      if (!edit(moved, between)) return false;
      drop_empty();
      put_in_order(to);
      s_.disorder[cell] = 0;
    }
    std::copy(segments_.begin(), segments_.end(), s_.segments.begin() + s_.first_segment[cell]);
    s_.end_segment[cell] = s_.first_segment[cell] + static_cast<int64_t>(segments_.size());
    s_.end_element[cell] = first + to.size;
    return true;
  }

 private:
  static constexpr uint16_t kNowhere = 0xffff;
  static constexpr uint32_t kNone = ~0u;
  // Segments are put in order again when there were as many changes as segments, divided by this. Without that the end
  // of each is mispredicted before long. (Refreshing and what it slows down took 8.6 % of a decoder's step at 95/90
  // without order, 5.5 % with 3. Choosing sets at 90/80 takes 5.1 to 5.4 % with 3 and 4.4 to 4.7 % with 1, and the
  // whole step is 1.02 times as fast.)
  static constexpr size_t kOrderly = 1;

  // Copies what the cell has: what is behind its room another thread may be writing.
  void take_out(int64_t cell) {
    const int64_t first = s_.first_element[cell], last = s_.end_element[cell];
    num_elements_ = last - first;
    const Written<Slot> to = old_.cleared(num_elements_);
    std::copy_n(s_.column.begin() + first, num_elements_, to.column);
    std::copy_n(slots_.begin() + first, num_elements_, to.slot);
    segments_.assign(s_.segments.begin() + s_.first_segment[cell], s_.segments.begin() + s_.end_segment[cell]);
    std::fill(ordinal_.begin(), ordinal_.end(), kNowhere);
    start_.resize(segments_.size());
    int64_t start = 0;
    for (size_t i = 0; i < segments_.size(); ++i) {
      ordinal_[segments_[i].row] = static_cast<uint16_t>(i);
      start_[i] = start;
      start += segments_[i].count;
    }
  }

  // Finds the changes of each segment, in order. Rows that had no element here get an empty segment at the end.
  void link(const Moved* moved, uint32_t count) {
    next_.resize(count);
    change_.assign(segments_.size(), kNone);
    has_changes_.assign((segments_.size() + count) / 64 + 1, 0);
    for (uint32_t i = count; i-- > 0;) {
      uint16_t& ordinal = ordinal_[moved[i].row];
      if (ordinal == kNowhere) {
        ordinal = static_cast<uint16_t>(segments_.size());
        segments_.push_back({moved[i].row, 0});
        start_.push_back(num_elements_);
        change_.push_back(kNone);
      }
      next_[i] = change_[ordinal];
      change_[ordinal] = i;
      has_changes_[ordinal / 64] |= uint64_t{1} << (ordinal % 64);
    }
  }

  // Segment by segment, as marked: to look at each would be a branch that nobody could predict.
  bool edit(const Moved* moved, Written<Slot>& to) {
    int64_t from = 0;
    has_empty_ = false;
    for (size_t i = 0; i < has_changes_.size(); ++i)
      for (uint64_t marks = has_changes_[i]; marks; marks &= marks - 1)
        if (!edit_segment(moved, i * 64 + __builtin_ctzll(marks), from, to)) return false;
    to.template take<kLongChunk>(old_.read(), from, num_elements_ - from);
    return true;
  }

  // Writes what comes before each change of a segment, from `from` on, and the change.
  bool edit_segment(const Moved* moved, size_t ordinal, int64_t& from, Written<Slot>& to) {
    Sweep::Segment& segment = segments_[ordinal];
    const Read<Slot> old = old_.read();
    const int64_t end = start_[ordinal] + segment.count;
    int64_t e = start_[ordinal];
    for (uint32_t change = change_[ordinal]; change != kNone; change = next_[change]) {
      const Moved& m = moved[change];
      const int64_t at = e + num_before(m, e, end);
      const bool is_there = at < end && old.column[at] == m.column;
      if (is_there == m.enters) return false;
      to.template take<kLongChunk>(old, from, at - from);
      to.put(m.column, own_slot(m), m.enters);
      segment.count = static_cast<uint16_t>(segment.count + 2 * m.enters - 1);
      e = from = at + !m.enters;
    }
    has_empty_ |= segment.count == 0;
    return true;
  }

  // How many elements of a segment, from e on, come before a change.
  int64_t num_before(const Moved& m, int64_t e, int64_t end) const {
    const uint16_t* column = old_.column.data();
    if (s_.taps == 1) return num_below(column + e, end - e, m.column);
    const int64_t wanted = rank(s_, m.cell, m.column);
    int64_t to = e;
    while (to < end && rank(s_, m.cell, column[to]) < wanted) ++to;
    return to - e;
  }

  static Slot own_slot(const Moved& m) {
    return sizeof(Slot) == 2 ? static_cast<Slot>(m.offset) : static_cast<Slot>(m.slot);
  }

  void drop_empty() {
    if (!has_empty_) return;
    const auto is_empty = [](const Sweep::Segment& segment) { return segment.count == 0; };
    segments_.erase(std::remove_if(segments_.begin(), segments_.end(), is_empty), segments_.end());
  }

  void put_in_order(Written<Slot>& to) {
    const size_t count = segments_.size();
    counts_.resize(count);
    start_.resize(count);
    int64_t start = 0;
    for (size_t i = 0; i < count; ++i) {
      counts_[i] = segments_[i].count;
      start_[i] = start;
      start += segments_[i].count;
    }
    by_count_.sort(counts_.data(), static_cast<int32_t>(count));
    old_segments_.swap(segments_);
    segments_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const uint16_t ordinal = by_count_.order[i];
      segments_[i] = old_segments_[ordinal];
      to.template take<kShortChunk>(edited_.read(), start_[ordinal], segments_[i].count);
    }
  }

  Sweep& s_;
  std::vector<Slot>& slots_;
  std::vector<uint16_t> ordinal_;  // of the segment of each row of the tile
  int64_t num_elements_ = 0;       // of the cell, before
  Buffer<Slot> old_;
  std::vector<Sweep::Segment> segments_;
  std::vector<int64_t> start_;    // the first element of each segment
  std::vector<uint32_t> change_;  // the first change of each segment
  std::vector<uint32_t> next_;    // the next one of the same
  bool has_empty_ = false;
  std::vector<uint64_t> has_changes_;  // a bit for each segment
  Buffer<Slot> edited_;                // what follows is for putting segments in order
  std::vector<Sweep::Segment> old_segments_;
  ByCount by_count_;
  std::vector<uint16_t> counts_;
};

// Called by all threads of a parallel region, each of which goes on when there is no cell left for it.
template <typename Slot>
bool write_cells(Sweep& s, std::vector<Slot>& slots, const ByCell& changes) {
  bool sound = true;
  CellWriter<Slot> writer(s, slots);
#pragma omp for schedule(static) nowait
  for (int64_t cell = 0; cell < s.num_cells(); ++cell) {
    const int64_t first = changes.first[cell], count = changes.first[cell + 1] - first;
    if (count) sound &= writer.write(cell, changes.moved.data() + first, static_cast<uint32_t>(count));
  }
  return sound;
}

bool write_cells(Sweep& s, const ByCell& changes) {
  return s.slot.empty() ? write_cells(s, s.offset, changes) : write_cells(s, s.slot, changes);
}

// Sorts changes by cell, and sees to it that all cells have room for theirs.
ByCell prepared(Sweep& s, const std::vector<Placed>& places, uint32_t turned) {
  ByCell changes = by_cell(s, places, turned);
  const Sizes sizes(s, changes);
  if (!sizes.fit(s)) make_room(s, sizes);
  s.disorder.resize(s.num_cells(), 0);
  return changes;
}

}  // namespace

void Plan::update(const Changes& changes, int num_threads) {
  if (!explores_) throw std::invalid_argument("a Plan without exploration is made anew when A changes");
  const std::vector<Placed> places = placed(changes, *rows_.first_slot, rows_.num_rows, rows_.num_columns);
  const std::unique_lock<std::shared_mutex> alone(mutex_);
  const uint32_t turned = gathers_ && taps_ > 1 ? static_cast<uint32_t>(taps_) : 0;
  if (changes.count < 256) num_threads = 1;  // waking another thread takes longer
  ByCell in_rows, in_columns;
  int wrong = 0;
#pragma omp parallel num_threads(num_threads) reduction(| : wrong)
  {
#pragma omp sections
    {
#pragma omp section
      in_rows = prepared(rows_, places, 0);
#pragma omp section
      in_columns = prepared(columns_, places, turned);
    }
    wrong |= !write_cells(rows_, in_rows);
    wrong |= !write_cells(columns_, in_columns);
  }
  if (wrong) throw std::invalid_argument("an element enters A that is in it, or leaves A that is not");
}

}  // namespace topkast
