// Reading positions from outside: every rule is checked before anything is made of them.
#pragma once

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace topkast {

// Calls f(row, column, slot) for each of `num_slots` positions of a num_rows x num_columns matrix, which must be in
// range and strictly increasing. Throws std::invalid_argument with the rule that is broken.
template <typename Index, typename F>
void for_each_position(int64_t num_rows, int64_t num_columns, const Index* positions, int64_t num_slots, F&& f) {
  if (num_rows < 0 || num_columns < 0) throw std::invalid_argument("the weight's shape must not be negative");
  const int64_t limit = std::numeric_limits<int32_t>::max();
  if (num_rows > limit || num_columns > limit)
    throw std::invalid_argument("rows and columns must each be below 2^31");
  if (num_slots > limit) throw std::invalid_argument("|B| must be below 2^31");
  // num_rows * num_columns < 2^62: no overflow.
  const int64_t numel = num_rows * num_columns;
  int64_t previous = -1, row = 0, row_end = num_columns;
  for (int64_t slot = 0; slot < num_slots; ++slot) {
    const int64_t position = static_cast<int64_t>(positions[slot]);
    if (position < 0 || position >= numel)
      throw std::invalid_argument("indices must lie in [0, " + std::to_string(numel) + "), got " +
                                  std::to_string(position));
    if (position <= previous)
      throw std::invalid_argument("indices must be strictly increasing, got " + std::to_string(previous) + ", " +
                                  std::to_string(position) + " at slot " + std::to_string(slot - 1));
    previous = position;
    if (position >= row_end) {
      // Rows follow each other closely; a division is needed only across many empty ones.
      if (position < row_end + num_columns) {
        ++row;
      } else {
        row = position / num_columns;
      }
      row_end = (row + 1) * num_columns;
    }
    f(static_cast<int32_t>(row), static_cast<int32_t>(position - (row_end - num_columns)), slot);
  }
}

}  // namespace topkast
