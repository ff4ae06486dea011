// A sparse embedding: its elements by row, for lookups that touch the rows asked for and nothing else.
#pragma once

#include <cstdint>
#include <vector>

namespace topkast {

// Checked positions by row; owns its data. Only `update` changes it.
class Table {
 public:
  // See Plan: the same rules for positions, the same errors. Elements outside A count as zero in a lookup; they get a
  // gradient only if `explores`.
  Table(int64_t num_rows, int64_t num_columns, const int64_t* positions, const uint8_t* active, int64_t num_slots,
        bool explores);

  int64_t num_rows() const { return num_rows_; }
  int64_t num_columns() const { return num_columns_; }
  int64_t num_slots() const { return static_cast<int64_t>(column_.size()); }
  int64_t num_bytes() const;

  // Takes slots into A, or out of it. Throws std::invalid_argument if one is not there.
  void update(const int64_t* slots, const uint8_t* enters, int64_t count);

  // out[t] = row ids[t]; ids must be rows. out: tokens x num_columns.
  template <typename T>
  void lookup(const T* values, const int64_t* ids, int64_t tokens, T* out, int num_threads) const;
  // dvalues[slot] = sum over the tokens t with ids[t] = row, in order of t, of grad[t, column].
  template <typename T>
  void lookup_grad(const int64_t* ids, int64_t tokens, const T* grad, T* dvalues, int num_threads) const;

 private:
  int64_t num_rows_;
  int64_t num_columns_;
  bool explores_;
  std::vector<int64_t> first_;   // first slot per row, and the end
  std::vector<int32_t> column_;  // per slot
  std::vector<uint8_t> active_;  // per slot
};

}  // namespace topkast
