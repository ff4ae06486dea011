// Bringing the elements of a weight into the order in which a matrix made of them is swept.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "elements.hpp"
#include "plan.hpp"

namespace topkast {

// Finding a column's block without dividing: blocks are powers of two, except one that holds all columns.
struct BlockOf {
  int shift;
  explicit BlockOf(int64_t num_blocks, int32_t block_columns) : shift(31) {
    if (num_blocks > 1)
      for (shift = 0; (1 << shift) < block_columns;) ++shift;
  }
  int32_t operator()(int32_t column) const { return column >> shift; }
};

// Orders the rows of a tile by how many elements they have in a block: the inner loop then has the same length
// many times in a row, and the branch that ends it is predicted. (In row order it is missed once per segment.)
struct ByCount {
  std::vector<uint16_t> order;
  std::vector<uint32_t> start;

  void sort(const uint16_t* counts, int32_t num_rows) {
    const uint32_t most = num_rows ? *std::max_element(counts, counts + num_rows) : 0;
    start.assign(most + 2, 0);
    for (int32_t r = 0; r < num_rows; ++r) ++start[counts[r] + 1];
    for (uint32_t c = 0; c <= most; ++c) start[c + 1] += start[c];
    order.resize(num_rows);
    for (int32_t r = 0; r < num_rows; ++r) order[start[counts[r]]++] = static_cast<uint16_t>(r);
  }
};

// A View shows the elements of a weight as a matrix, chunk by chunk. A chunk is what some rows of the weight are
// about: a tile if they are rows of the matrix too, a block if they are its columns. Different chunks have no place in
// common, so that threads can take one each. Its cells are the (tile, block) in it; its places are cell * tile_rows +
// row within the tile. visit() calls f(place, base, row of the weight, element, count) for runs of elements with the
// same place, in the order of slots; column(base, element) is then the column of one of them within the block.

struct ByRow {
  const Elements& elements;
  int32_t tile_rows, block_columns;
  int64_t num_tiles, num_blocks;
  static constexpr bool has_weight_rows = true;
  int64_t num_chunks() const { return num_tiles; }
  int64_t num_cells() const { return num_blocks; }
  int64_t cell(int64_t chunk, int64_t i) const { return chunk * num_blocks + i; }

  template <typename F>
  void visit(int64_t chunk, F&& f) const {
    const BlockOf block_of(num_blocks, block_columns);
    const int64_t begin = chunk * tile_rows, end = std::min(begin + tile_rows, elements.num_rows());
    for (int64_t r = begin; r < end; ++r) {
      const uint32_t row_end = elements.first()[r + 1];
      for (uint32_t i = elements.first()[r]; i < row_end;) {
        const int32_t block = block_of(elements.column(i)), base = block * block_columns;
        uint32_t j = i + 1;
        while (j < row_end && elements.column(j) - base < block_columns) ++j;
        f(size_t(block) * tile_rows + (r - begin), base, r, i, j - i);
        i = j;
      }
    }
  }
  uint16_t column(int32_t base, uint32_t i) const { return static_cast<uint16_t>(elements.column(i) - base); }
};

struct ByColumn {
  const Elements& elements;
  int32_t tile_rows, block_columns;
  int64_t num_tiles, num_blocks;
  static constexpr bool has_weight_rows = false;
  int64_t num_chunks() const { return num_blocks; }
  int64_t num_cells() const { return num_tiles; }
  int64_t cell(int64_t chunk, int64_t i) const { return i * num_blocks + chunk; }

  template <typename F>
  void visit(int64_t chunk, F&& f) const {
    const int64_t begin = chunk * block_columns, end = std::min(begin + block_columns, elements.num_rows());
    for (int64_t r = begin; r < end; ++r)
      for (uint32_t i = elements.first()[r]; i < elements.first()[r + 1]; ++i)
        f(size_t(elements.column(i)), static_cast<int32_t>(r - begin), r, i, 1);
  }
  uint16_t column(int32_t base, uint32_t) const { return static_cast<uint16_t>(base); }
};

// The convolution that gives the input gradient: rows are channels, columns are (row of the weight, tap turned round).
struct Turned : ByColumn {
  int64_t taps;

  template <typename F>
  void visit(int64_t chunk, F&& f) const {
    const int64_t begin = chunk * block_columns, end = std::min(begin + block_columns, elements.num_rows() * taps);
    for (int64_t r = begin / taps; r * taps < end; ++r)
      for (uint32_t i = elements.first()[r]; i < elements.first()[r + 1]; ++i) {
        const int64_t channel = elements.column(i) / taps, tap = elements.column(i) - channel * taps;
        const int64_t column = r * taps + (taps - 1 - tap);
        // The taps of a row may lie in two blocks.
        if (column >= begin && column < end) f(size_t(channel), static_cast<int32_t>(column - begin), r, i, 1);
      }
  }
};

// Places the elements of a view in order of (tile, block, segment), in two rounds over them: the first counts, the
// second puts each where it belongs. Threads take chunks; both rounds are called by all threads of a parallel region.
template <typename View, uint32_t (*room)(uint32_t)>
struct Placing {
  const View view;
  std::vector<Sweep::Segment>& segments;
  std::vector<int64_t>& first_segment;  // per cell, and the end
  std::vector<int64_t>& first_room;     // per cell, and the end
  std::vector<uint16_t> counts;         // per chunk and place

  Placing(const View& view, std::vector<Sweep::Segment>& segments, std::vector<int64_t>& first_segment,
          std::vector<int64_t>& first_room)
      : view(view), segments(segments), first_segment(first_segment), first_room(first_room) {
    counts.assign(view.num_chunks() * num_places(), 0);
    first_segment.assign(view.num_chunks() * view.num_cells() + 1, 0);
    first_room.assign(first_segment.size(), 0);
  }

  int64_t num_places() const { return view.num_cells() * view.tile_rows; }

  void count() {
#pragma omp for schedule(dynamic) nowait
    for (int64_t chunk = 0; chunk < view.num_chunks(); ++chunk) {
      uint16_t* count = counts.data() + chunk * num_places();
      view.visit(chunk, [&](size_t place, int32_t, int64_t, uint32_t, uint32_t n) { count[place] += uint16_t(n); });
      for (int64_t i = 0; i < view.num_cells(); ++i, count += view.tile_rows) count_cell(count, view.cell(chunk, i));
    }
  }

  void count_cell(const uint16_t* count, int64_t at) {
    uint32_t segments = 0, total = 0;
    for (int32_t r = 0; r < view.tile_rows; ++r) {
      segments += count[r] != 0;
      total += room(count[r]);
    }
    first_segment[at + 1] = segments;
    first_room[at + 1] = total;
  }

  // Between the rounds, by one thread: makes room for the segments.
  void add_up() {
    for (size_t at = 1; at < first_room.size(); ++at) {
      first_segment[at] += first_segment[at - 1];
      first_room[at] += first_room[at - 1];
    }
    segments.resize(first_segment.back() + 1);  // kernels look one ahead
  }

  // Calls put(to, base, row of the weight, element, count) for all runs of `visit`; then done(cell) for each cell.
  template <typename Put, typename Done>
  void place(Put&& put, Done&& done) {
    ByCount by_count;
    std::vector<int64_t> next(num_places());
#pragma omp for schedule(dynamic) nowait
    for (int64_t chunk = 0; chunk < view.num_chunks(); ++chunk) {
      for (int64_t i = 0; i < view.num_cells(); ++i)
        place_cell(counts.data() + chunk * num_places() + i * view.tile_rows, view.cell(chunk, i), by_count,
                   next.data() + i * view.tile_rows);
      view.visit(chunk, [&](size_t at, int32_t base, int64_t row, uint32_t i, uint32_t count) {
        put(next[at], base, row, i, count);
        next[at] += count;
      });
      for (int64_t i = 0; i < view.num_cells(); ++i) done(view.cell(chunk, i));
    }
  }

  // The segments of one cell in order of their counts; says where the elements of each row begin.
  void place_cell(const uint16_t* counts, int64_t at, ByCount& by_count, int64_t* next) {
    by_count.sort(counts, view.tile_rows);
    Sweep::Segment* segment = segments.data() + first_segment[at];
    int64_t first = first_room[at];
    for (uint16_t row : by_count.order) {
      next[row] = first;
      if (counts[row]) *segment++ = {row, counts[row]};
      first += room(counts[row]);
    }
  }
};

}  // namespace topkast
