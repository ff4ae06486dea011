// The elements of a weight by row, read and checked once: what a Plan is made from, and gone when it is made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "positions.hpp"

namespace topkast {

// A copy of its own: whoever writes to the positions meanwhile can spoil a Plan but not make it read outside.
class Elements {
 public:
  Elements() = default;
  // All of B. Throws std::invalid_argument with the rule that is broken.
  template <typename Index>
  Elements(int64_t num_rows, int64_t num_columns, const Index* positions, const uint8_t* active, int64_t num_slots)
      : num_rows_(num_rows), num_columns_(num_columns) {
    check_sizes(num_rows, num_columns, num_slots);
    check_positions(num_rows * num_columns, positions, num_slots);  // before memory is taken for them
    first_.assign(num_rows + 1, 0);
    column_.resize(num_slots);
    for_each_position(num_rows, num_columns, positions, num_slots, [&](int32_t row, int32_t column, int64_t slot) {
      column_[slot] = static_cast<uint32_t>(column) | (active[slot] ? kActive : 0);
      ++first_[row + 1];
    });
    for (int64_t r = 0; r < num_rows; ++r) first_[r + 1] += first_[r];
  }

  int64_t num_rows() const { return num_rows_; }
  int64_t num_columns() const { return num_columns_; }
  int64_t size() const { return static_cast<int64_t>(column_.size()); }
  double density() const { return double(size()) / std::max(1.0, double(num_rows_) * double(num_columns_)); }
  const std::vector<uint32_t>& first() const { return first_; }  // element of each row, and the end
  int32_t column(uint32_t i) const { return static_cast<int32_t>(column_[i] & ~kActive); }
  // Of active() only: in B an element's place is its slot.
  uint32_t slot(uint32_t i) const { return slot_[i]; }

  uint32_t longest_row() const {
    uint32_t most = 0;
    for (int64_t r = 0; r < num_rows_; ++r) most = std::max(most, first_[r + 1] - first_[r]);
    return most;
  }

  // Those in A. Without a branch per element: which of B is in A cannot be foreseen.
  Elements active() const {
    uint32_t num_active = 0;
    for (uint32_t column : column_) num_active += column >> 31;
    Elements out(num_rows_, num_columns_, num_active);
    uint32_t kept = 0, slot = 0;
    for (int64_t r = 0; r < num_rows_; ++r) {
      for (; slot < first_[r + 1]; ++slot) {
        out.column_[kept] = column_[slot];
        out.slot_[kept] = slot;
        kept += column_[slot] >> 31;
      }
      out.first_[r + 1] = kept;
    }
    out.column_.resize(kept);
    return out;
  }

 private:
  // Room for one more, for what is written and not kept.
  Elements(int64_t num_rows, int64_t num_columns, uint32_t size)
      : num_rows_(num_rows), num_columns_(num_columns), first_(num_rows + 1), column_(size + 1), slot_(size + 1) {}

  static constexpr uint32_t kActive = 1u << 31;  // columns are below
  int64_t num_rows_ = 0;
  int64_t num_columns_ = 0;
  std::vector<uint32_t> first_;
  std::vector<uint32_t> column_;
  std::vector<uint32_t> slot_;
};

}  // namespace topkast
