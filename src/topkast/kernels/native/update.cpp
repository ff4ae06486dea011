// Taking elements into the A of a Plan and out of it, at the cost of copying the cells they are in.
#include <algorithm>
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

// The changes of a Sweep, those of a cell after each other in the order of their slots.
struct ByCell {
  std::vector<Moved> moved;
  std::vector<int64_t> first;  // per cell, and the end
};

// `turned` is the number of taps of a convolution whose input gradient is a convolution too, else 0; see `Turned` in
// placing.hpp.
ByCell place(const Sweep& s, const std::vector<Change>& changes, int64_t weight_columns, int64_t turned) {
  std::vector<Moved> moved;
  moved.reserve(changes.size());
  ByCell by_cell{std::vector<Moved>(changes.size()), std::vector<int64_t>(s.num_cells() + 1, 0)};
  const std::vector<uint32_t>& first_slot = *s.first_slot;
  for (const Change& change : changes) {
    const int64_t weight_row = change.position / weight_columns;
    const int64_t weight_column = change.position - weight_row * weight_columns;
    int64_t row = weight_row, column = weight_column;
    if (turned > 0) {
      row = weight_column / turned;
      column = weight_row * turned + (turned - 1 - weight_column % turned);
    } else if (!s.has_weight_rows) {
      std::swap(row, column);
    }
    const int64_t tile = row / s.tile_rows, block = column / s.block_columns;
    Moved m;
    m.cell = tile * s.num_blocks + block;
    m.row = static_cast<uint16_t>(row - tile * s.tile_rows);
    m.column = static_cast<uint16_t>(column - block * s.block_columns);
    m.slot = static_cast<uint32_t>(change.slot);
    m.offset = static_cast<uint16_t>(change.slot - first_slot[weight_row]);
    m.enters = change.enters;
    moved.push_back(m);
    ++by_cell.first[m.cell + 1];
  }
  for (int64_t at = 0; at < s.num_cells(); ++at) by_cell.first[at + 1] += by_cell.first[at];
  std::vector<int64_t> next(by_cell.first.begin(), by_cell.first.end() - 1);
  for (const Moved& m : moved) by_cell.moved[next[m.cell]++] = m;
  return by_cell;
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

// One cell, written anew from what it has and what changes. `Slot` is how the Sweep says an element's slot.
template <typename Slot>
class CellWriter {
 public:
  CellWriter(Sweep& s, std::vector<Slot>& slots) : s_(s), slots_(slots), of_row_(s.tile_rows, kNone) {}

  // False if an element enters that is there, or leaves that is not.
  bool write(int64_t cell, const Moved* moved, uint32_t count) {
    segments_.clear();
    column_.clear();
    slot_.clear();
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
    for (const Sweep::Segment& segment : segments_) counts_.push_back(segment.count);
    by_count_.sort(counts_.data(), static_cast<int32_t>(counts_.size()));
    first_.clear();
    uint32_t first = 0;
    for (uint16_t count : counts_) {
      first_.push_back(first);
      first += count;
    }
    old_segments_.swap(segments_);
    old_column_.swap(column_);
    old_slot_.swap(slot_);
    segments_.clear();
    column_.resize(old_column_.size());
    slot_.resize(old_slot_.size());
    size_t to = 0;
    for (uint16_t i : by_count_.order) {
      const Sweep::Segment segment = old_segments_[i];
      segments_.push_back(segment);
      for (uint32_t k = 0; k < segment.count; ++k, ++to) {
        column_[to] = old_column_[first_[i] + k];
        slot_[to] = old_slot_[first_[i] + k];
      }
    }
  }

  // Elements of segments that stay as they are.
  void take(int64_t first, int64_t last) {
    column_.insert(column_.end(), s_.column.begin() + first, s_.column.begin() + last);
    slot_.insert(slot_.end(), slots_.begin() + first, slots_.begin() + last);
  }

  bool merge(Sweep::Segment segment, int64_t e, const Moved* moved, uint32_t change) {
    const size_t before = column_.size();
    int64_t i = 0;
    for (; change != kNone; change = next_[change]) {
      const Moved& m = moved[change];
      const int64_t wanted = rank(s_, m.cell, m.column);
      for (; i < segment.count && rank(s_, m.cell, s_.column[e + i]) < wanted; ++i) copy(e + i);
      const bool is_there = i < segment.count && s_.column[e + i] == m.column;
      if (is_there == m.enters) return false;
      if (m.enters) {
        column_.push_back(m.column);
        slot_.push_back(own_slot(m));
      } else {
        ++i;
      }
    }
    for (; i < segment.count; ++i) copy(e + i);
    const size_t count = column_.size() - before;
    if (count) segments_.push_back({segment.row, static_cast<uint16_t>(count)});
    return true;
  }

  void copy(int64_t e) {
    column_.push_back(s_.column[e]);
    slot_.push_back(slots_[e]);
  }

  static Slot own_slot(const Moved& m) {
    return sizeof(Slot) == 2 ? static_cast<Slot>(m.offset) : static_cast<Slot>(m.slot);
  }

  void put_back(int64_t cell) {
    std::copy(segments_.begin(), segments_.end(), s_.segments.begin() + s_.first_segment[cell]);
    std::copy(column_.begin(), column_.end(), s_.column.begin() + s_.first_element[cell]);
    std::copy(slot_.begin(), slot_.end(), slots_.begin() + s_.first_element[cell]);
    s_.end_segment[cell] = s_.first_segment[cell] + static_cast<int64_t>(segments_.size());
    s_.end_element[cell] = s_.first_element[cell] + static_cast<int64_t>(column_.size());
  }

  Sweep& s_;
  std::vector<Slot>& slots_;
  std::vector<uint32_t> of_row_;  // the first change of each row of the tile
  std::vector<uint32_t> next_;    // the next one of the same row
  std::vector<Sweep::Segment> segments_;
  std::vector<uint16_t> column_;
  std::vector<Slot> slot_;
  std::vector<Sweep::Segment> old_segments_;  // what follows is for putting them in order
  std::vector<uint16_t> old_column_;
  std::vector<Slot> old_slot_;
  ByCount by_count_;
  std::vector<uint16_t> counts_;
  std::vector<uint32_t> first_;
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
  if (changes.moved.size() < 256) num_threads = 1;  // waking another thread takes longer
  return s.slot.empty() ? write_cells(s, s.offset, changes, num_threads) : write_cells(s, s.slot, changes, num_threads);
}

}  // namespace

void Plan::update(const std::vector<Change>& changes, int num_threads) {
  if (!explores_) throw std::invalid_argument("a Plan without exploration is made anew when A changes");
  const std::vector<uint32_t>& first_slot = *rows_.first_slot;
  const int64_t columns = std::max<int64_t>(1, rows_.num_columns);
  for (const Change& change : changes) {
    const int64_t row = change.position / columns;
    if (change.position < 0 || row >= rows_.num_rows) refuse(change, "is outside of the weight");
    if (change.slot < first_slot[row] || change.slot >= first_slot[row + 1]) refuse(change, "is not in B");
  }
  const std::unique_lock<std::shared_mutex> alone(mutex_);
  const int64_t turned = gathers_ && taps_ > 1 ? taps_ : 0;
  const bool sound = update_sweep(rows_, place(rows_, changes, columns, 0), num_threads) &&
                     update_sweep(columns_, place(columns_, changes, columns, turned), num_threads);
  if (!sound) throw std::invalid_argument("an element enters A that is in it, or leaves A that is not");
}

}  // namespace topkast
