// Taking elements into the A of a Plan and out of it, at the cost of copying the cells they are in.
#include <algorithm>
#include <cstring>
#include <memory>
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

// A change with the place in the weight that its position says.
struct Placed {
  uint32_t slot;
  uint32_t row;
  uint32_t column;
  uint16_t offset;  // of the slot within the row, where that is narrow
  bool enters;
};

// Finds where changes are, from the first to the last of them. They mostly come in the order of their positions, so
// that the row is that of the one before or a little later: looking is faster than dividing. False if one is not of the
// weight or not of B.
bool place(const Changes& changes, int64_t first, int64_t last, const std::vector<uint32_t>& first_slot,
           int64_t num_rows, int64_t num_columns, Placed* found) {
  int64_t row = 0, begin = 0;  // of the row
  for (int64_t i = first; i < last; ++i) {
    const int64_t slot = changes.slots[i], position = changes.positions[i];
    if (position < 0 || position >= num_rows * num_columns) return false;
    if (position < begin || position - begin >= 8 * num_columns) {
      row = position / num_columns;
      begin = row * num_columns;
    }
    for (; position - begin >= num_columns; begin += num_columns) ++row;
    if (slot < first_slot[row] || slot >= first_slot[row + 1]) return false;
    found[i] = {static_cast<uint32_t>(slot), static_cast<uint32_t>(row), static_cast<uint32_t>(position - begin),
                static_cast<uint16_t>(slot - first_slot[row]), changes.enters[i] != 0};
  }
  return true;
}

// Throws for the first change that is not of the weight or not of B.
[[noreturn]] void refuse(const Changes& changes, const std::vector<uint32_t>& first_slot, int64_t num_rows,
                         int64_t num_columns) {
  int64_t i = 0;
  Placed ignored;
  while (place({changes.slots + i, changes.positions + i, changes.enters + i, 1}, 0, 1, first_slot, num_rows,
               num_columns, &ignored))
    ++i;
  const bool is_inside = changes.positions[i] >= 0 && changes.positions[i] < num_rows * num_columns;
  throw std::invalid_argument("slot " + std::to_string(changes.slots[i]) + " at position " +
                              std::to_string(changes.positions[i]) +
                              (is_inside ? " is not in B" : " is outside of the weight"));
}

std::vector<Placed> placed(const Changes& changes, const std::vector<uint32_t>& first_slot, int64_t num_rows,
                           int64_t num_columns, int num_threads) {
  std::vector<Placed> found(changes.count);
  int wrong = 0;
#pragma omp parallel for num_threads(num_threads) schedule(static) reduction(| : wrong)
  for (int part = 0; part < num_threads; ++part)
    wrong |= !place(changes, changes.count * part / num_threads, changes.count * (part + 1) / num_threads, first_slot,
                    num_rows, num_columns, found.data());
  if (wrong) refuse(changes, first_slot, num_rows, num_columns);
  return found;
}

// The changes of a Sweep, those of a cell after each other in the order of their slots.
struct ByCell {
  std::unique_ptr<Moved[]> moved;
  std::vector<int64_t> first;     // per cell, and the end
  std::vector<int64_t> entering;  // per cell
};

// `turned` is the number of taps of a convolution whose input gradient is a convolution too, else 0; see `Turned` in
// placing.hpp.
ByCell by_cell(const Sweep& s, const std::vector<Placed>& changes, uint32_t turned) {
  const std::unique_ptr<Moved[]> moved(new Moved[changes.size()]);
  ByCell result{std::unique_ptr<Moved[]>(new Moved[changes.size()]), std::vector<int64_t>(s.num_cells() + 1, 0),
                std::vector<int64_t>(s.num_cells(), 0)};
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
    result.entering[cell] += change.enters;
  }
  for (int64_t at = 0; at < s.num_cells(); ++at) result.first[at + 1] += result.first[at];
  std::vector<int64_t> next(result.first.begin(), result.first.end() - 1);
  for (size_t i = 0; i < changes.size(); ++i) result.moved[next[moved[i].cell]++] = moved[i];
  return result;
}

int64_t with_slack(int64_t count) { return count + count / PlanSizes::slack_share + PlanSizes::least_slack; }

// How many elements and segments the cells of a Sweep will have, at most.
struct Sizes {
  std::vector<int64_t> elements;
  std::vector<int64_t> segments;

  Sizes(const Sweep& s, const ByCell& changes) : elements(s.num_cells()), segments(s.num_cells()) {
    for (int64_t at = 0; at < s.num_cells(); ++at) {
      const int64_t entering = changes.entering[at], leaving = changes.first[at + 1] - changes.first[at] - entering;
      elements[at] = s.end_element[at] - s.first_element[at] + entering - leaving;
      // A row may be new to the cell with each that enters.
      segments[at] = std::min<int64_t>(s.end_segment[at] - s.first_segment[at] + entering, s.tile_rows);
    }
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

// Elements, by what a Sweep says of them. `Slot` is how it says an element's slot.
template <typename Slot>
struct Entries {
  uint16_t* column;
  Slot* slot;

  Entries from(int64_t first) const { return {column + first, slot + first}; }
};

constexpr int64_t kChunk = 16;  // elements that are copied at a time: about as many as a row has in a cell

// Copies whole chunks, so up to a chunk beyond the last: without a branch that nobody can predict.
template <typename Slot>
void copy_chunks(const Entries<Slot>& from, int64_t count, const Entries<Slot>& to) {
  for (int64_t i = 0; i < count; i += kChunk) {
    std::memcpy(to.column + i, from.column + i, kChunk * sizeof(uint16_t));
    std::memcpy(to.slot + i, from.slot + i, kChunk * sizeof(Slot));
  }
}

template <typename Slot>
void copy_exactly(const Entries<Slot>& from, int64_t count, const Entries<Slot>& to) {
  std::copy_n(from.column, count, to.column);
  std::copy_n(from.slot, count, to.slot);
}

// How many of `count` increasing columns are below one. Reads up to a chunk beyond them.
int64_t num_below(const uint16_t* columns, int64_t count, uint16_t wanted) {
  int64_t found = 0;
  for (int64_t base = 0; base < count; base += kChunk) {
    const uint16_t left = static_cast<uint16_t>(std::min<int64_t>(kChunk, count - base));
    uint16_t below = 0;
    for (uint16_t i = 0; i < kChunk; ++i)
      below = static_cast<uint16_t>(below + ((columns[base + i] < wanted) & (i < left)));
    found += below;
  }
  return found;
}

// One cell, written anew. Its elements are taken out; a row with a change is written once more behind them; then all
// rows go back in the order of their counts, which is that of a Plan made from nothing. (Rows in another order make
// products 4 to 5 % slower before long: the end of each is mispredicted. Looking for rows that may stay as they are
// takes as long as copying them.)
template <typename Slot>
class CellWriter {
 public:
  CellWriter(Sweep& s, std::vector<Slot>& slots) : s_(s), slots_(slots), count_(s.tile_rows), start_(s.tile_rows) {}

  // False if an element enters that is there, or leaves that is not.
  bool write(int64_t cell, const Moved* moved, int64_t count) {
    take_out(cell);
    for (int64_t i = 0; i < count; ++i)
      if (!edit(moved[i])) return false;
    put_back(cell);
    return true;
  }

 private:
  void take_out(int64_t cell) {
    const int64_t first = s_.first_element[cell], count = s_.end_element[cell] - first;
    size_ = 0;
    reserve(count);
    copy_exactly({s_.column.data() + first, slots_.data() + first}, count, at(0));
    std::fill(count_.begin(), count_.end(), 0);
    for (int64_t i = s_.first_segment[cell]; i < s_.end_segment[cell]; ++i) {
      const Sweep::Segment segment = s_.segments[i];
      count_[segment.row] = segment.count;
      start_[segment.row] = size_;
      size_ += segment.count;
    }
    size_ += kChunk;
  }

  // Makes room for so many more elements, and the chunk that may be written behind them.
  void reserve(int64_t count) {
    const size_t wanted = static_cast<size_t>(size_ + count + kChunk);
    if (column_.size() >= wanted) return;
    column_.resize(2 * wanted);
    slot_.resize(2 * wanted);
  }

  Entries<Slot> at(int64_t first) { return {column_.data() + first, slot_.data() + first}; }

  bool edit(const Moved& m) {
    const int64_t count = count_[m.row];
    reserve(count + 1);
    const Entries<Slot> old = at(start_[m.row]), edited = at(size_);
    const int64_t before = num_before(m, old.column, count);
    const bool is_there = before < count && old.column[before] == m.column;
    if (is_there == m.enters) return false;
    copy_chunks(old, before, edited);
    edited.column[before] = m.column;  // overwritten by what comes next if it leaves
    edited.slot[before] = sizeof(Slot) == 2 ? static_cast<Slot>(m.offset) : static_cast<Slot>(m.slot);
    copy_chunks(old.from(before + !m.enters), count - before - !m.enters, edited.from(before + m.enters));
    start_[m.row] = size_;
    count_[m.row] = static_cast<uint16_t>(count + 2 * m.enters - 1);
    size_ += count_[m.row] + kChunk;
    return true;
  }

  // How many elements of a row come before a change.
  int64_t num_before(const Moved& m, const uint16_t* column, int64_t count) const {
    if (s_.taps == 1) return num_below(column, count, m.column);
    const int64_t wanted = rank(s_, m.cell, m.column);
    int64_t found = 0;
    while (found < count && rank(s_, m.cell, column[found]) < wanted) ++found;
    return found;
  }

  // What is behind the cell's room another thread may be writing.
  void put_back(int64_t cell) {
    int64_t to = s_.first_element[cell];
    const int64_t end = s_.first_element[cell + 1];
    Sweep::Segment* segment = s_.segments.data() + s_.first_segment[cell];
    by_count_.sort(count_.data(), s_.tile_rows);
    for (const uint16_t row : by_count_.order) {
      const int64_t count = count_[row];
      if (count == 0) continue;
      const Entries<Slot> place{s_.column.data() + to, slots_.data() + to};
      if (to + count + kChunk <= end)
        copy_chunks(at(start_[row]), count, place);
      else
        copy_exactly(at(start_[row]), count, place);
      *segment++ = {row, count_[row]};
      to += count;
    }
    s_.end_segment[cell] = segment - s_.segments.data();
    s_.end_element[cell] = to;
  }

  Sweep& s_;
  std::vector<Slot>& slots_;
  std::vector<uint16_t> count_;  // of the elements of each row of the tile
  std::vector<int64_t> start_;   // the first of them, in what follows
  std::vector<uint16_t> column_;
  std::vector<Slot> slot_;
  int64_t size_ = 0;  // of what is used, with a chunk behind it: what is read with a row must not be what is written
  ByCount by_count_;
};

// Called by all threads of a parallel region, each of which goes on when there is no cell left for it.
template <typename Slot>
bool write_cells(Sweep& s, std::vector<Slot>& slots, const ByCell& changes) {
  bool sound = true;
  CellWriter<Slot> writer(s, slots);
#pragma omp for schedule(static) nowait
  for (int64_t cell = 0; cell < s.num_cells(); ++cell) {
    const int64_t first = changes.first[cell], count = changes.first[cell + 1] - first;
    if (count) sound &= writer.write(cell, changes.moved.get() + first, count);
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
  return changes;
}

}  // namespace

void Plan::update(const Changes& changes, int num_threads) {
  if (!explores_) throw std::invalid_argument("a Plan without exploration is made anew when A changes");
  if (changes.count < 256) num_threads = 1;  // waking another thread takes longer
  const std::vector<Placed> places = placed(changes, *rows_.first_slot, rows_.num_rows, rows_.num_columns, num_threads);
  const std::unique_lock<std::shared_mutex> alone(mutex_);
  const uint32_t turned = gathers_ && taps_ > 1 ? static_cast<uint32_t>(taps_) : 0;
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
