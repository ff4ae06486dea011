// Rows: the elements of A row after row, for products with so few tokens that reading the weight is what takes time.
//
// A Plan's order serves panels of many tokens: it visits the rows of a tile again for each block of columns. With one
// token that is a jump in memory for every dozen elements. Here each row is read once, in the order of `values`.
#pragma once

#include <cstdint>
#include <vector>

namespace topkast {

class Rows {
 public:
  static constexpr int64_t most_columns = 1 << 16;
  // See Plan: the same rules for positions, the same errors. Throws std::invalid_argument if there are more columns
  // than 16 bits tell apart.
  template <typename Index>
  Rows(int64_t num_rows, int64_t num_columns, const Index* positions, const uint8_t* active, int64_t num_slots);

  int64_t num_rows() const { return num_rows_; }
  int64_t num_columns() const { return num_columns_; }
  int64_t num_slots() const { return num_slots_; }
  int64_t num_bytes() const;
  int64_t num_elements() const { return static_cast<int64_t>(element_.size()); }

  int64_t first_slot(int64_t row) const { return first_slot_[row]; }
  const uint32_t* begin(int64_t row) const { return element_.data() + first_element_[row]; }
  int64_t count(int64_t row) const { return first_element_[row + 1] - first_element_[row]; }

  // What an element says: its column, and its slot from the first of its row on.
  static uint32_t column(uint32_t element) { return element & 0xffff; }
  static uint32_t offset(uint32_t element) { return element >> 16; }

 private:
  int64_t num_rows_;
  int64_t num_columns_;
  int64_t num_slots_;
  std::vector<uint32_t> first_slot_;
  std::vector<uint32_t> first_element_;  // per row, and the end
  std::vector<uint32_t> element_;
};

}  // namespace topkast
