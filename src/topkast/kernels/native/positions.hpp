// Reading positions from outside: every rule is checked before anything is made of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace topkast {

// Says which rule is broken; called when one is. The same order and words as `check_positions` in Python.
template <typename Index>
[[noreturn]] void refuse_positions(int64_t numel, const Index* positions, int64_t num_slots) {
  const int64_t low = *std::min_element(positions, positions + num_slots);
  const int64_t high = *std::max_element(positions, positions + num_slots);
  if (low < 0 || high >= numel)
    throw std::invalid_argument("indices must lie in [0, " + std::to_string(numel) + "), got " +
                                std::to_string(low < 0 ? low : high));
  int64_t slot = 0;
  while (slot + 1 < num_slots && positions[slot] < positions[slot + 1]) ++slot;
  if (slot + 1 >= num_slots) throw std::invalid_argument("indices must not be written while they are read");
  const auto first = std::to_string(positions[slot]), second = std::to_string(positions[slot + 1]);
  throw std::invalid_argument(std::string("indices must be strictly increasing, got ") +
                              (first == second ? "duplicate " : "unsorted ") + first + ", " + second + " at slot " +
                              std::to_string(slot));
}

// Whether each of positions [first, last) is above the one before it; `first` is at least 1.
template <typename Index>
bool increase(const Index* positions, int64_t first, int64_t last) {
  // In pieces without a way out, so that the compiler makes vectors of them.
  constexpr int64_t piece = 4096;
  bool sound = true;
  for (int64_t begin = first; sound && begin < last; begin += piece) {
    const int64_t end = std::min(begin + piece, last);
    int bad = 0;
    for (int64_t slot = begin; slot < end; ++slot) bad |= positions[slot - 1] >= positions[slot];
    sound = !bad;
  }
  return sound;
}

// Throws std::invalid_argument unless the positions are in [0, numel) and strictly increasing.
template <typename Index>
void check_positions(int64_t numel, const Index* positions, int64_t num_slots) {
  if (num_slots == 0) return;
  const bool in_range = positions[0] >= 0 && static_cast<int64_t>(positions[num_slots - 1]) < numel;
  if (!in_range || !increase(positions, 1, num_slots)) refuse_positions(numel, positions, num_slots);
}

// Throws std::invalid_argument if a matrix of this size cannot be described.
inline void check_sizes(int64_t num_rows, int64_t num_columns, int64_t num_slots) {
  if (num_rows < 0 || num_columns < 0) throw std::invalid_argument("the weight's shape must not be negative");
  const int64_t limit = std::numeric_limits<int32_t>::max();
  if (num_rows > limit || num_columns > limit) throw std::invalid_argument("rows and columns must each be below 2^31");
  if (num_slots > limit) throw std::invalid_argument("|B| must be below 2^31");
}

// Calls f(row, column, slot) for each of `num_slots` positions of a num_rows x num_columns matrix, which must be in
// range and strictly increasing. Throws std::invalid_argument with the rule that is broken.
template <typename Index, typename F>
void for_each_position(int64_t num_rows, int64_t num_columns, const Index* positions, int64_t num_slots, F&& f) {
  check_sizes(num_rows, num_columns, num_slots);
  // num_rows * num_columns < 2^62: no overflow.
  const int64_t numel = num_rows * num_columns;
  int64_t previous = -1, row = 0, row_end = num_columns;
  for (int64_t slot = 0; slot < num_slots; ++slot) {
    const int64_t position = static_cast<int64_t>(positions[slot]);
    if (position <= previous || position >= numel) refuse_positions(numel, positions, num_slots);
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

// A number for the content of positions and flags: other content has another one, but for one case in 2^64. Throws
// std::invalid_argument unless the positions are in [0, numel) and strictly increasing.
template <typename Index>
uint64_t inspect(int64_t numel, const Index* positions, const uint8_t* active, int64_t num_slots, int num_threads);

// What is added to that number (modulo 2^64) when slots enter A, or leave it.
uint64_t inspect_change(const int64_t* slots, const uint8_t* enters, int64_t count, int num_threads);

// Gives slots of B, strictly increasing, the other flag. Writes of each where it is in the weight and whether it enters
// A. Throws std::invalid_argument before anything is written.
template <typename Index>
void flip(const Index* positions, uint8_t* active, int64_t num_slots, const int64_t* slots, int64_t count,
          int64_t* flipped_positions, uint8_t* enters, int num_threads);

// The number of `inspect` for a sample of the content, 64 runs of 64 elements spread evenly, at a cost that does not
// grow: content that was replaced has another one. Nothing is checked.
constexpr int64_t glance_blocks = 64, glance_length = 64;
uint64_t glance(const void* positions, int64_t index_bytes, const uint8_t* active, int64_t num_slots);

}  // namespace topkast
