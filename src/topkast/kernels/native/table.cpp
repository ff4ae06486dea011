#include "table.hpp"

#include <algorithm>
#include <stdexcept>

#include "positions.hpp"

namespace topkast {

Table::Table(int64_t num_rows, int64_t num_columns, const int64_t* positions, const uint8_t* active, int64_t num_slots,
             bool explores)
    : num_rows_(num_rows), num_columns_(num_columns), explores_(explores) {
  std::vector<int32_t> column;
  std::vector<int64_t> count;
  for_each_position(num_rows, num_columns, positions, num_slots, [&](int32_t row, int32_t c, int64_t slot) {
    if (slot == 0) {  // the sizes have passed their checks
      column.resize(num_slots);
      count.assign(num_rows + 1, 0);
    }
    column[slot] = c;
    ++count[row + 1];
  });
  if (count.empty()) count.assign(num_rows + 1, 0);
  for (int64_t r = 0; r < num_rows; ++r) count[r + 1] += count[r];
  first_ = std::move(count);
  column_ = std::move(column);
  active_.assign(active, active + num_slots);
}

int64_t Table::num_bytes() const {
  return static_cast<int64_t>(first_.size() * sizeof(int64_t) + column_.size() * sizeof(int32_t) + active_.size());
}

void Table::update(const int64_t* slots, const uint8_t* enters, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (slots[i] < 0 || slots[i] >= num_slots()) throw std::invalid_argument("a slot is not in B");
  for (int64_t i = 0; i < count; ++i) active_[slots[i]] = enters[i] != 0;
}

template <typename T>
void Table::lookup(const T* values, const int64_t* ids, int64_t tokens, T* out, int num_threads) const {
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t t = 0; t < tokens; ++t) {
    T* row = out + t * num_columns_;
    std::fill(row, row + num_columns_, T(0));
    for (int64_t slot = first_[ids[t]]; slot < first_[ids[t] + 1]; ++slot)
      if (active_[slot]) row[column_[slot]] = values[slot];
  }
}

template <typename T>
void Table::lookup_grad(const int64_t* ids, int64_t tokens, const T* grad, T* dvalues, int num_threads) const {
  // Tokens by row, in order within a row: each row then has one owner and one order of summation.
  std::vector<int64_t> first(num_rows_ + 1, 0), order(tokens);
  for (int64_t t = 0; t < tokens; ++t) ++first[ids[t] + 1];
  for (int64_t r = 0; r < num_rows_; ++r) first[r + 1] += first[r];
  std::vector<int64_t> place(first.begin(), first.end() - 1);
  for (int64_t t = 0; t < tokens; ++t) order[place[ids[t]]++] = t;
#pragma omp parallel for schedule(dynamic, 64) num_threads(num_threads)
  for (int64_t r = 0; r < num_rows_; ++r) {
    std::fill(dvalues + first_[r], dvalues + first_[r + 1], T(0));
    for (int64_t i = first[r]; i < first[r + 1]; ++i) {
      const T* g = grad + order[i] * num_columns_;
      for (int64_t slot = first_[r]; slot < first_[r + 1]; ++slot)
        if (explores_ || active_[slot]) dvalues[slot] += g[column_[slot]];
    }
  }
}

#define TOPKAST_INSTANTIATE(T)                                                      \
  template void Table::lookup<T>(const T*, const int64_t*, int64_t, T*, int) const; \
  template void Table::lookup_grad<T>(const int64_t*, int64_t, const T*, T*, int) const;
TOPKAST_INSTANTIATE(float)
TOPKAST_INSTANTIATE(double)

}  // namespace topkast
