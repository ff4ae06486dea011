#include "plan.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "positions.hpp"

namespace topkast {
namespace {

// Kernels read this many columns beyond the last, to ask for their data early; they are zero.
constexpr size_t kLookAhead = 16;

// An element of a matrix, by row, with its slot.
struct Element {
  int32_t row;
  int32_t column;
  uint32_t slot;
};

// Sizes of blocks and tiles, from a sweep over 64..1024 on two Zen 3 cores (1024 x 1024 and 1024 x 4096, 50 to 2 %).
// A block of 128 columns of a panel of 64 tokens just fits into L1. Where a row would have only a few elements in
// it, loading and storing the output costs more than the products: larger blocks, from L2 with prefetching, win.
int32_t block_for_sweep(double density) { return density >= 0.04 ? 128 : 512; }
int32_t block_for_samples(double density) { return density >= 0.08 ? 128 : 512; }
// 128 KB of output: more rows use a block while it is in L1. A small weight has more tiles than threads all the same.
int64_t tile_for_sweep(int64_t num_rows) { return num_rows >= 1024 ? 512 : 256; }
// Small, so that threads get equal shares, also of a weight with few rows.
int32_t tile_for_samples(int64_t num_rows) { return static_cast<int32_t>(std::clamp<int64_t>(num_rows / 8, 8, 64)); }

int32_t clamped(int32_t wanted, int64_t size) {
  return static_cast<int32_t>(std::min<int64_t>(wanted, std::max<int64_t>(1, size)));
}

// Finding a column's block without dividing: blocks are powers of two, except one that holds all columns.
struct BlockOf {
  int shift;
  explicit BlockOf(int64_t num_blocks, int32_t block_columns) : shift(31) {
    if (num_blocks > 1)
      for (shift = 0; (1 << shift) < block_columns;) ++shift;
  }
  int32_t operator()(int32_t column) const { return column >> shift; }
};

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Orders the rows of a tile by how many elements they have in a block: the inner loop then has the same length
// many times in a row, and the branch that ends it is predicted. (In row order it is missed once per segment.)
struct ByCount {
  std::vector<uint16_t> order;
  std::vector<uint32_t> start;

  void sort(const uint32_t* counts, int32_t num_rows) {
    uint32_t most = 0;
    for (int32_t r = 0; r < num_rows; ++r) most = std::max(most, counts[r]);
    start.assign(most + 2, 0);
    for (int32_t r = 0; r < num_rows; ++r) ++start[counts[r] + 1];
    for (uint32_t c = 0; c <= most; ++c) start[c + 1] += start[c];
    order.resize(num_rows);
    for (int32_t r = 0; r < num_rows; ++r) order[start[counts[r]]++] = static_cast<uint16_t>(r);
  }
};

// Places elements that are ordered by row into sweep order. O(elements + rows * blocks).
Sweep make_sweep(const std::vector<Element>& elements, int64_t num_rows, int64_t num_columns, int64_t taps) {
  Sweep s;
  const double density =
      static_cast<double>(elements.size()) / std::max<double>(1.0, double(num_rows) * num_columns);
  s.num_rows = num_rows;
  s.num_columns = num_columns;
  s.tile_rows = clamped(static_cast<int32_t>(std::max(taps, tile_for_sweep(num_rows) / taps * taps)), num_rows);
  s.block_columns = clamped(block_for_sweep(density), num_columns);
  s.num_tiles = divide_up(num_rows, s.tile_rows);
  s.num_blocks = divide_up(num_columns, s.block_columns);
  s.column.resize(elements.size() + kLookAhead);
  s.slot.resize(elements.size());
  s.first_segment.assign(s.num_tiles * s.num_blocks + 1, 0);
  s.first_element.assign(s.num_tiles * s.num_blocks + 1, 0);

  const BlockOf block_of(s.num_blocks, s.block_columns);
  ByCount by_count;
  std::vector<uint32_t> place(static_cast<size_t>(s.num_blocks) * s.tile_rows);
  size_t begin = 0;
  for (int64_t tile = 0; tile < s.num_tiles; ++tile) {
    const int32_t first_row = static_cast<int32_t>(tile * s.tile_rows);
    size_t end = begin;
    std::fill(place.begin(), place.end(), 0u);
    while (end < elements.size() && elements[end].row < first_row + s.tile_rows) {
      const Element& e = elements[end++];
      ++place[size_t(block_of(e.column)) * s.tile_rows + (e.row - first_row)];
    }
    // Counts become places, and the non-empty ones become segments.
    size_t next = begin;
    for (int64_t block = 0; block < s.num_blocks; ++block) {
      s.first_segment[tile * s.num_blocks + block] = static_cast<int64_t>(s.segments.size());
      s.first_element[tile * s.num_blocks + block] = static_cast<int64_t>(next);
      uint32_t* counts = place.data() + size_t(block) * s.tile_rows;
      by_count.sort(counts, s.tile_rows);
      for (uint16_t row : by_count.order) {
        const uint32_t count = counts[row];
        counts[row] = static_cast<uint32_t>(next);
        if (count) s.segments.push_back({row, static_cast<uint16_t>(count)});
        next += count;
      }
    }
    for (size_t i = begin; i < end; ++i) {
      const Element& e = elements[i];
      const int32_t block = block_of(e.column);
      const uint32_t to = place[size_t(block) * s.tile_rows + (e.row - first_row)]++;
      s.column[to] = static_cast<uint16_t>(e.column - block * s.block_columns);
      s.slot[to] = e.slot;
    }
    begin = end;
  }
  s.first_segment.back() = static_cast<int64_t>(s.segments.size());
  s.segments.push_back({0, 0});  // kernels look one ahead
  s.first_element.back() = static_cast<int64_t>(elements.size());
  return s;
}

// The same elements by column: a counting sort, stable, so that rows increase within a column.
std::vector<Element> transposed(const std::vector<Element>& elements, int64_t num_columns) {
  std::vector<uint32_t> place(num_columns + 1, 0);
  for (const Element& e : elements) ++place[e.column + 1];
  for (int64_t c = 0; c < num_columns; ++c) place[c + 1] += place[c];
  std::vector<Element> out(elements.size());
  for (const Element& e : elements) out[place[e.column]++] = {e.column, e.row, e.slot};
  return out;
}

// The same elements as the convolution that gives the input gradient: rows are channels, columns are (row, tap turned
// round). Counting sort by channel.
std::vector<Element> turned(const std::vector<Element>& elements, int64_t num_columns, int64_t taps) {
  std::vector<uint32_t> place(num_columns / taps + 1, 0);
  for (const Element& e : elements) ++place[e.column / taps + 1];
  for (size_t c = 0; c + 1 < place.size(); ++c) place[c + 1] += place[c];
  std::vector<Element> out(elements.size());
  for (const Element& e : elements) {
    const int32_t channel = static_cast<int32_t>(e.column / taps), tap = static_cast<int32_t>(e.column % taps);
    out[place[channel]++] = {channel, static_cast<int32_t>(e.row * taps + (taps - 1 - tap)), e.slot};
  }
  return out;
}

Samples make_samples(const std::vector<Element>& elements, int64_t num_rows, int64_t num_columns) {
  Samples s;
  const double density =
      static_cast<double>(elements.size()) / std::max<double>(1.0, double(num_rows) * num_columns);
  s.num_rows = num_rows;
  s.num_columns = num_columns;
  s.num_elements = static_cast<int64_t>(elements.size());
  s.tile_rows = clamped(tile_for_samples(num_rows), num_rows);
  s.block_columns = clamped(block_for_samples(density), num_columns);
  s.num_tiles = divide_up(num_rows, s.tile_rows);
  s.num_blocks = divide_up(num_columns, s.block_columns);
  s.first_segment.assign(s.num_tiles * s.num_blocks + 1, 0);
  s.first_group.assign(s.num_tiles * s.num_blocks + 1, 0);
  s.column.reserve(elements.size() + elements.size() / 4);

  // Per tile: where each row's elements of each block begin and how many there are, then the segments.
  const BlockOf block_of(s.num_blocks, s.block_columns);
  ByCount by_count;
  std::vector<uint32_t> counts(static_cast<size_t>(s.num_blocks) * s.tile_rows), firsts(counts.size());
  size_t begin = 0;
  for (int64_t tile = 0; tile < s.num_tiles; ++tile) {
    const int32_t first_row = static_cast<int32_t>(tile * s.tile_rows);
    std::fill(counts.begin(), counts.end(), 0u);
    size_t end = begin;
    for (; end < elements.size() && elements[end].row < first_row + s.tile_rows; ++end) {
      const Element& e = elements[end];
      const size_t at = size_t(block_of(e.column)) * s.tile_rows + (e.row - first_row);
      if (counts[at]++ == 0) firsts[at] = static_cast<uint32_t>(end);
    }
    for (int64_t block = 0; block < s.num_blocks; ++block) {
      s.first_segment[tile * s.num_blocks + block] = static_cast<int64_t>(s.segments.size());
      s.first_group[tile * s.num_blocks + block] = static_cast<int64_t>(s.column.size()) / Samples::group;
      const size_t base = size_t(block) * s.tile_rows;
      by_count.sort(counts.data() + base, s.tile_rows);
      for (uint16_t row : by_count.order) {
        const uint32_t count = counts[base + row], first = firsts[base + row];
        if (!count) continue;
        s.segments.push_back({row, static_cast<uint16_t>(count), first});
        for (uint32_t i = 0; i < count; ++i)
          s.column.push_back(static_cast<uint16_t>(elements[first + i].column - block * s.block_columns));
        const uint16_t last = s.column.back();
        for (uint32_t i = count; i % Samples::group; ++i) s.column.push_back(last);
      }
    }
    begin = end;
  }
  s.first_segment.back() = static_cast<int64_t>(s.segments.size());
  s.segments.push_back({0, 0, 0});  // kernels look one ahead
  s.first_group.back() = static_cast<int64_t>(s.column.size()) / Samples::group;
  s.column.resize(s.column.size() + kLookAhead);
  return s;
}

template <typename Index>
std::vector<Element> read_elements(int64_t num_rows, int64_t num_columns, const Index* positions,
                                   int64_t num_slots) {
  std::vector<Element> elements(static_cast<size_t>(num_slots));
  for_each_position(num_rows, num_columns, positions, num_slots, [&](int32_t row, int32_t column, int64_t slot) {
    elements[slot] = {row, column, static_cast<uint32_t>(slot)};
  });
  return elements;
}

template <typename V>
int64_t bytes_of(const V& v) {
  return static_cast<int64_t>(v.capacity() * sizeof(typename V::value_type));
}

}  // namespace

template <typename Index>
Plan::Plan(int64_t num_rows, int64_t num_columns, const Index* positions, const uint8_t* active, int64_t num_slots,
           bool explores, int64_t taps, bool gathers, int num_threads)
    : num_slots_(num_slots), taps_(taps), gathers_(gathers) {
  if (taps < 1 || taps > std::numeric_limits<uint16_t>::max() || num_columns % taps != 0)
    throw std::invalid_argument("taps must divide the columns and be below 65536, got " + std::to_string(taps));
  if (gathers && num_rows > std::numeric_limits<int32_t>::max() / taps)
    throw std::invalid_argument("rows times taps must be below 2^31");
  const std::vector<Element> all = read_elements(num_rows, num_columns, positions, num_slots);
  std::vector<Element> used;
  used.reserve(all.size());
  for (const Element& e : all)
    if (active[e.slot]) used.push_back(e);
  // Three independent pieces of about the same size.
  const int threads = num_threads < 3 ? num_threads : 3;
#pragma omp parallel sections num_threads(threads)
  {
#pragma omp section
    columns_ = gathers ? make_sweep(turned(used, num_columns, taps), num_columns / taps, num_rows * taps, 1)
                       : make_sweep(transposed(used, num_columns), num_columns, num_rows, taps);
#pragma omp section
    samples_ = make_samples(explores ? all : used, num_rows, num_columns);
#pragma omp section
    rows_ = make_sweep(used, num_rows, num_columns, 1);
  }
}

int64_t Plan::num_bytes() const {
  int64_t total = 0;
  for (const Sweep* s : {&rows_, &columns_})
    total += bytes_of(s->column) + bytes_of(s->slot) + bytes_of(s->segments) + bytes_of(s->first_segment) +
             bytes_of(s->first_element);
  return total + bytes_of(samples_.column) + bytes_of(samples_.segments) + bytes_of(samples_.first_segment) +
         bytes_of(samples_.first_group);
}

template Plan::Plan(int64_t, int64_t, const int32_t*, const uint8_t*, int64_t, bool, int64_t, bool, int);
template Plan::Plan(int64_t, int64_t, const int64_t*, const uint8_t*, int64_t, bool, int64_t, bool, int);

}  // namespace topkast
