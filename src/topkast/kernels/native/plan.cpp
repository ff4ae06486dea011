#include "plan.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "elements.hpp"
#include "placing.hpp"

namespace topkast {
namespace {

// `least` and `dense` are the densities from which on a block is not large, and small even if its columns are taps.
int32_t block_for(double density, double least, double dense, bool of_taps) {
  if (density < least) return PlanSizes::large_block;
  return of_taps && density < dense ? PlanSizes::taps_block : PlanSizes::small_block;
}
int32_t block_for_sweep(double density, bool of_taps) {
  return block_for(density, PlanSizes::sweep_density, PlanSizes::taps_sweep_density, of_taps);
}
int32_t block_for_samples(double density, bool of_taps) {
  return block_for(density, PlanSizes::samples_density, PlanSizes::taps_samples_density, of_taps);
}
int64_t tile_for_sweep(int64_t num_rows) {
  return num_rows >= PlanSizes::many_rows ? PlanSizes::large_tile : PlanSizes::small_tile;
}
int32_t tile_for_samples(int64_t num_rows) {
  return static_cast<int32_t>(std::clamp<int64_t>(num_rows / PlanSizes::samples_tiles, PlanSizes::least_samples_tile,
                                                  PlanSizes::most_samples_tile));
}

int32_t clamped(int32_t wanted, int64_t size) {
  return static_cast<int32_t>(std::min<int64_t>(wanted, std::max<int64_t>(1, size)));
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How much room a segment takes: whole groups, or what it has.
uint32_t in_groups(uint32_t count) { return (count + Samples::group - 1) / Samples::group * Samples::group; }
uint32_t as_it_is(uint32_t count) { return count; }

// `taps` of a row each, if it has any; `of_taps` says whether columns are.
Sweep sized_sweep(int64_t num_rows, int64_t num_columns, double density, int64_t taps, bool of_taps) {
  Sweep s;
  s.num_rows = num_rows;
  s.num_columns = num_columns;
  s.tile_rows = clamped(static_cast<int32_t>(std::max(taps, tile_for_sweep(num_rows) / taps * taps)), num_rows);
  s.block_columns = clamped(block_for_sweep(density, of_taps), num_columns);
  s.num_tiles = divide_up(num_rows, s.tile_rows);
  s.num_blocks = divide_up(num_columns, s.block_columns);
  return s;
}

template <typename Shape>
ByRow by_row(const Shape& s, const Elements& elements) {
  return {elements, s.tile_rows, s.block_columns, s.num_tiles, s.num_blocks};
}

ByColumn by_column(const Sweep& s, const Elements& elements) {
  return {elements, s.tile_rows, s.block_columns, s.num_tiles, s.num_blocks};
}

// Fills a Sweep with the elements of A.
template <typename View>
struct SweepBuilder {
  Sweep& s;
  const Elements& elements;
  Placing<View, as_it_is> placing;

  SweepBuilder(Sweep& s, const View& view)
      : s(s), elements(view.elements), placing(view, s.segments, s.first_segment, s.first_element) {
    s.has_weight_rows = View::has_weight_rows;
  }
  void count() { placing.count(); }
  void make_room(bool is_narrow) {
    placing.add_up();
    s.end_segment.assign(s.first_segment.begin() + 1, s.first_segment.end());
    s.end_element.assign(s.first_element.begin() + 1, s.first_element.end());
    s.column.resize(s.room() + PlanSizes::look_ahead);
    is_narrow ? s.offset.resize(s.room()) : s.slot.resize(s.room());
  }
  void place() {
    auto put = [&](int64_t to, int32_t base, int64_t row, uint32_t i, uint32_t count) {
      const uint32_t first = (*s.first_slot)[row];
      for (uint32_t k = 0; k < count; ++k) s.column[to + k] = placing.view.column(base, i + k);
      if (s.slot.empty())
        for (uint32_t k = 0; k < count; ++k) s.offset[to + k] = uint16_t(elements.slot(i + k) - first);
      else
        for (uint32_t k = 0; k < count; ++k) s.slot[to + k] = elements.slot(i + k);
    };
    placing.place(put, [](int64_t) {});
  }
};

Samples sized_samples(const Elements& elements, bool of_taps) {
  Samples s;
  s.num_rows = elements.num_rows();
  s.num_columns = elements.num_columns();
  s.num_elements = elements.size();
  s.tile_rows = clamped(tile_for_samples(s.num_rows), s.num_rows);
  s.block_columns = clamped(block_for_samples(elements.density(), of_taps), s.num_columns);
  s.num_tiles = divide_up(s.num_rows, s.tile_rows);
  s.num_blocks = divide_up(s.num_columns, s.block_columns);
  return s;
}

// Fills Samples with elements, those of B or of A.
struct SamplesBuilder {
  Samples& s;
  std::vector<int64_t> first_column;
  Placing<ByRow, in_groups> placing;

  SamplesBuilder(Samples& s, const Elements& elements)
      : s(s), placing(by_row(s, elements), s.segments, s.first_segment, first_column) {}
  void count() { placing.count(); }
  void make_room() {
    placing.add_up();
    s.column.resize(first_column.back() + PlanSizes::look_ahead);
    for (int64_t first : first_column) s.first_group.push_back(first / Samples::group);
    s.first_group.shrink_to_fit();
  }
  void place() {
    auto put = [&](int64_t to, int32_t base, int64_t, uint32_t i, uint32_t count) {
      for (uint32_t k = 0; k < count; ++k) s.column[to + k] = placing.view.column(base, i + k);
    };
    placing.place(put, [&](int64_t at) { fill_up(at); });
  }
  void fill_up(int64_t at) {
    uint16_t* column = s.column.data() + first_column[at];
    for (int64_t i = s.first_segment[at]; i < s.first_segment[at + 1]; ++i) {
      const uint32_t count = s.segments[i].count, all = in_groups(count);
      std::fill(column + count, column + all, column[count - 1]);
      column += all;
    }
  }
};

// The three lists of a Plan. Two rounds, so that threads wait for each other twice.
template <typename Columns>
void build(SamplesBuilder& samples, SweepBuilder<ByRow>& rows, SweepBuilder<Columns>&& columns, bool is_narrow,
           int num_threads) {
#pragma omp parallel num_threads(num_threads)
  {
    samples.count();
    rows.count();
    columns.count();
  }
  samples.make_room();
  rows.make_room(is_narrow);
  columns.make_room(is_narrow);
#pragma omp parallel num_threads(num_threads)
  {
    samples.place();
    rows.place();
    columns.place();
  }
}

RowFirsts row_firsts(const Elements& elements) {
  return std::make_shared<const std::vector<uint32_t>>(elements.first());
}

template <typename V>
int64_t bytes_of(const V& v) {
  return static_cast<int64_t>(v.capacity() * sizeof(typename V::value_type));
}

static_assert(PlanSizes::narrow_row - 1 == std::numeric_limits<uint16_t>::max(), "an offset has 16 bits");

}  // namespace

template <typename Index>
Plan::Plan(int64_t num_rows, int64_t num_columns, const Index* positions, const uint8_t* active, int64_t num_slots,
           bool explores, int64_t taps, bool gathers, int num_threads)
    : num_slots_(num_slots), explores_(explores), taps_(taps), gathers_(gathers) {
  if (taps < 1 || taps > std::numeric_limits<uint16_t>::max() || num_columns % taps != 0)
    throw std::invalid_argument("taps must divide the columns and be below 65536, got " + std::to_string(taps));
  if (gathers && num_rows > std::numeric_limits<int32_t>::max() / taps)
    throw std::invalid_argument("rows times taps must be below 2^31");
  Elements all(num_rows, num_columns, positions, active, num_slots);
  const bool is_narrow = all.longest_row() <= PlanSizes::narrow_row;
  const Elements used = all.active();
  rows_ = sized_sweep(num_rows, num_columns, used.density(), 1, taps > 1);
  columns_ = gathers ? sized_sweep(num_columns / taps, num_rows * taps, used.density(), 1, taps > 1)
                     : sized_sweep(num_columns, num_rows, used.density(), taps, false);
  rows_.first_slot = columns_.first_slot = row_firsts(all);
  samples_ = sized_samples(explores ? all : used, taps > 1);
  samples_.first_sample = explores ? rows_.first_slot : row_firsts(used);
  if (!explores) all = Elements();
  SamplesBuilder samples(samples_, explores ? all : used);
  SweepBuilder<ByRow> rows(rows_, by_row(rows_, used));
  if (gathers && taps > 1) {
    columns_.taps = taps;
    const Turned view{by_column(columns_, used), taps};
    build(samples, rows, SweepBuilder<Turned>(columns_, view), is_narrow, num_threads);
  } else {
    build(samples, rows, SweepBuilder<ByColumn>(columns_, by_column(columns_, used)), is_narrow, num_threads);
  }
}

int64_t Plan::num_bytes() const {
  int64_t total = 0;
  for (const Sweep* s : {&rows_, &columns_})
    total += bytes_of(s->column) + bytes_of(s->offset) + bytes_of(s->slot) + bytes_of(s->segments) +
             bytes_of(s->first_segment) + bytes_of(s->first_element) + bytes_of(s->end_segment) +
             bytes_of(s->end_element);
  total += bytes_of(*rows_.first_slot);
  if (samples_.first_sample != rows_.first_slot) total += bytes_of(*samples_.first_sample);
  return total + bytes_of(samples_.column) + bytes_of(samples_.segments) + bytes_of(samples_.first_segment) +
         bytes_of(samples_.first_group);
}

template Plan::Plan(int64_t, int64_t, const int32_t*, const uint8_t*, int64_t, bool, int64_t, bool, int);
template Plan::Plan(int64_t, int64_t, const int64_t*, const uint8_t*, int64_t, bool, int64_t, bool, int);

}  // namespace topkast
