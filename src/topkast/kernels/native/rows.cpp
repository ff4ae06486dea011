#include "rows.hpp"

#include <stdexcept>
#include <string>

#include "elements.hpp"

namespace topkast {

template <typename Index>
Rows::Rows(int64_t num_rows, int64_t num_columns, const Index* positions, const uint8_t* active, int64_t num_slots)
    : num_rows_(num_rows), num_columns_(num_columns), num_slots_(num_slots) {
  if (num_columns > most_columns)
    throw std::invalid_argument("Rows take at most 65536 columns, got " + std::to_string(num_columns));
  const Elements all(num_rows, num_columns, positions, active, num_slots);
  const Elements used = all.active();
  first_slot_.assign(all.first().begin(), all.first().end());
  first_element_.assign(used.first().begin(), used.first().end());
  element_.resize(used.size());
  for (int64_t r = 0; r < num_rows; ++r)
    for (uint32_t i = first_element_[r]; i < first_element_[r + 1]; ++i)
      element_[i] = static_cast<uint32_t>(used.column(i)) | (used.slot(i) - first_slot_[r]) << 16;
}

int64_t Rows::num_bytes() const {
  return static_cast<int64_t>((first_slot_.size() + first_element_.size() + element_.size()) * sizeof(uint32_t));
}

template Rows::Rows(int64_t, int64_t, const int32_t*, const uint8_t*, int64_t);
template Rows::Rows(int64_t, int64_t, const int64_t*, const uint8_t*, int64_t);

}  // namespace topkast
