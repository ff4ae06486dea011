// Plan: where the elements of A and B are, checked once, in the orders the kernels sweep them.
//
// Kernels accept Plans and nothing else, so no index reaches a kernel unchecked. A Plan owns its data. After it was
// built only `update` changes it, which takes elements into A and out of it.
//
// The weight is a matrix of num_rows x num_columns; a position is row * num_columns + column; a slot is the place
// of an element in `values`, which is ordered by position.
#pragma once

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <vector>

namespace topkast {

// The numbers on which the size of a Plan depends. Python asks for them to foresee how many bytes one takes.
//
// Blocks and tiles are from a sweep over 64..1024 on two Zen 3 cores (1024 x 1024 and 1024 x 4096, 50 to 2 %). A block
// of 128 columns of a panel of 64 tokens just fits into L1. Where a row would have only a few elements in it, loading
// and storing the output costs more than the products: larger blocks, from L2 with prefetching, win.
struct PlanSizes {
  static constexpr int64_t look_ahead = 16;  // columns that kernels read beyond the last, to ask for their data early
  static constexpr int64_t group = 4;        // elements whose gradients are computed together
  static constexpr int64_t narrow_row = 65536;  // up to so many elements of B in a row, an offset takes 16 bits
  static constexpr int32_t small_block = 128;   // columns, from these densities on:
  static constexpr int32_t large_block = 512;
  static constexpr double sweep_density = 0.04;
  static constexpr double samples_density = 0.08;
  // Taps of a channel share what they read, so that more columns of a convolution stay in L1: a block of theirs is
  // larger, below these densities. (Zen 5, 256 -> 256 channels of 14 x 14: 10 % at 95/90; at 90/80 none to 8 % slower.)
  static constexpr int32_t taps_block = 256;
  static constexpr double taps_sweep_density = 0.075;
  static constexpr double taps_samples_density = 0.15;
  // 128 KB of output: more rows use a block while it is in L1. A small weight has more tiles than threads all the same.
  static constexpr int64_t small_tile = 256;
  static constexpr int64_t large_tile = 512;
  static constexpr int64_t many_rows = 1024;  // from so many on tiles are large
  // Small, so that threads get equal shares, also of a weight with few rows.
  static constexpr int64_t samples_tiles = 8;
  static constexpr int64_t least_samples_tile = 8;
  static constexpr int64_t most_samples_tile = 64;
  // Room that a cell gets besides what it has, once A changes: one in so many, and some.
  static constexpr int64_t slack_share = 64;
  static constexpr int64_t least_slack = 4;
};

// The first slot of each row of the weight, and the end. With it an element's slot takes 16 bits instead of 32.
using RowFirsts = std::shared_ptr<const std::vector<uint32_t>>;

// One sparse matrix in sweep order. Rows are cut into tiles (whose output stays in L2) and columns into blocks
// (whose packed input stays in L1). A (tile, block) is a cell; its elements are ordered by segment, which is a row, and
// by column within it. Segments are in the order of their counts, which changes no sum. A cell may have room behind its
// last element.
struct Sweep {
  static constexpr int32_t most_block_columns = PlanSizes::large_block;
  // The elements of one row within one block.
  struct Segment {
    uint16_t row;    // within the tile
    uint16_t count;  // of elements, at least 1: empty rows cost nothing
  };
  int64_t num_rows = 0;
  int64_t num_columns = 0;
  int32_t tile_rows = 0;
  int32_t block_columns = 0;
  int64_t num_tiles = 0;
  int64_t num_blocks = 0;
  std::vector<uint16_t> column;  // within the block, one per element
  // The slot of an element is the first of its weight row plus `offset`. If a row of the weight has too many elements
  // for 16 bits, `offset` is empty and `slot` has all of it.
  std::vector<uint16_t> offset;
  std::vector<uint32_t> slot;
  RowFirsts first_slot;
  bool has_weight_rows = true;  // else its columns are the rows of the weight, `taps` for each
  int64_t taps = 1;
  std::vector<Segment> segments;
  std::vector<int64_t> first_segment;  // per cell, and the end of all room
  std::vector<int64_t> first_element;
  std::vector<int64_t> end_segment;  // per cell
  std::vector<int64_t> end_element;

  int64_t num_cells() const { return num_tiles * num_blocks; }
  int64_t room() const { return first_element.back(); }
};

// The elements whose gradient is wanted. Like a Sweep, but each segment is filled up to whole groups of 4 by
// repeating its last column: groups are what the kernel computes, and their sums are put into slot order at the end.
// (The blocks of a row follow each other in slot order, so that its segments need not say where they begin.)
struct Samples {
  static constexpr int group = PlanSizes::group;
  static constexpr int32_t most_tile_rows = PlanSizes::most_samples_tile;
  using Segment = Sweep::Segment;
  int64_t num_rows = 0;
  int64_t num_columns = 0;
  int64_t num_elements = 0;
  int32_t tile_rows = 0;
  int32_t block_columns = 0;
  int64_t num_tiles = 0;
  int64_t num_blocks = 0;
  std::vector<uint16_t> column;  // within the block; `group` for each group
  std::vector<Segment> segments;
  std::vector<int64_t> first_segment;  // per (tile, block), and the end
  std::vector<int64_t> first_group;    // per (tile, block), and the end
  RowFirsts first_sample;              // of each row, in slot order, and the end

  int64_t num_groups() const { return first_group.back(); }
};

// Elements of B that enter or leave A.
struct Changes {
  const int64_t* slots;
  const int64_t* positions;
  const uint8_t* enters;
  int64_t count;
};

class Plan {
 public:
  // Reads `num_slots` positions (strictly increasing, in range) and flags. `explores` says whether all of B is
  // updated or A alone. `taps` is the number of columns that belong to one channel of a convolution, else 1. With
  // `gathers`, `columns` is the matrix of the convolution that gives the input gradient (stride 1): channels x (row,
  // tap turned round). Otherwise it is the transposed matrix, its tiles holding whole channels. Throws
  // std::invalid_argument with the rule that is broken.
  template <typename Index>
  Plan(int64_t num_rows, int64_t num_columns, const Index* positions, const uint8_t* active, int64_t num_slots,
       bool explores, int64_t taps, bool gathers, int num_threads);

  // Takes elements into A and out of it, by slot and all different. Cells change in place, where they have room; a
  // product has the same bits as with a Plan that was made for the new A. Throws std::invalid_argument if an element is
  // not of this Plan, enters while it is in A or leaves while it is not; the Plan must not be used then.
  void update(const Changes& changes, int num_threads);

  // Held by who computes with this Plan, and by `update` alone.
  std::shared_mutex& mutex() const { return mutex_; }

  int64_t num_slots() const { return num_slots_; }
  bool explores() const { return explores_; }
  int64_t taps() const { return taps_; }
  bool gathers() const { return gathers_; }
  int64_t num_bytes() const;
  const Sweep& rows() const { return rows_; }        // A by row: for y = x A^T
  const Sweep& columns() const { return columns_; }  // A by column: for dx = dy A
  const Samples& samples() const { return samples_; }

 private:
  mutable std::shared_mutex mutex_;
  int64_t num_slots_;
  bool explores_;
  int64_t taps_;
  bool gathers_;
  Sweep rows_;
  Sweep columns_;
  Samples samples_;
};

}  // namespace topkast
