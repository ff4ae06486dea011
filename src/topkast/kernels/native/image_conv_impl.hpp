// Convolutions of several taps, for one instruction set: images side by side (see images_impl.hpp).
#pragma once

#include "images_impl.hpp"

namespace topkast {
namespace TOPKAST_ISA_NAMESPACE {

template <typename T>
struct ImageScratch {
  Scratch<T> packed, zeros, rows_of_zeros;
  Scratch<int32_t> places, places_of_rows;
};

// Planes of groups of bands; `packed` has room for some groups.
template <typename T>
struct Images {
  static constexpr int64_t lanes = Vector<T>::lanes;
  const Layout n;
  const Bands& bands;
  const T* data;
  int64_t planes, plane_size;  // of an image, in numbers
  T* packed;
  const Columns<T> columns;
  const WholeRows<T> rows;

  Images(const Layout& n, const Bands& bands, const T* data, int64_t planes, int64_t plane_size, int64_t together,
         ImageScratch<T>& scratch)
      : n(n),
        bands(bands),
        data(data),
        planes(planes),
        plane_size(plane_size),
        packed(scratch.packed.get(together * group_size())),
        columns(this->n, scratch.places, scratch.zeros),
        rows(this->n, columns, scratch.places_of_rows, scratch.rows_of_zeros) {}
  int64_t group_size() const { return planes * n.plane() * lanes; }
  T* group(int64_t i) const { return packed + i * group_size(); }
  // From output `column` of output row `row` of packed bands on.
  const T* at(const T* group, int64_t row, int64_t column) const {
    return group + (row * n.row_size() + column) * lanes;
  }
  // Planes [first, last) of a group, by the calling thread.
  void pack(int64_t number, int64_t first, int64_t last, T* group) const {
    thread_local Scratch<T> copies;
    const PlanePacker<T> packer(n, bands, number, columns, rows,
                                copies.get(bands.columns_are_cut ? lanes * columns.span : 0));
    for (int64_t plane = first; plane < last; ++plane)
      packer.pack(data + plane * plane_size, planes * plane_size, group + plane * n.plane() * lanes);
  }
  // Packs `count` groups; called by all threads of a parallel region.
  void pack_groups(int64_t first, int64_t count) const {
#pragma omp for schedule(static) collapse(2)
    for (int64_t i = 0; i < count; ++i)
      for (int64_t plane = 0; plane < planes; ++plane) pack(first + i, plane, plane + 1, group(i));
  }
};

// Asks for what a group of bands is packed from, while something else is computed: some rows of an image now and then,
// so that after so many segments all is asked for. Rows that two bands share are asked for once.
template <typename T>
class GroupAsker {
 public:
  GroupAsker() = default;
  GroupAsker(const Images<T>& images, int64_t group, int64_t segments) {
    if (group >= images.bands.groups(lanes)) return;
    const Layout& n = images.n;
    ImageBand band[lanes] = {};
    count_ = images.bands.of(group, lanes, band);
    const int64_t first = band[0].first_row * n.row.stride, rows = images.bands.rows * n.row.stride;
    const int64_t numbers = smaller(rows, n.row.size - smaller(first, n.row.size)) * n.column.size;
    for (int64_t i = 0; i < count_; ++i)
      from_[i] = images.data + band[i].image * images.planes * images.plane_size +
                 smaller(band[i].first_row * n.row.stride, n.row.size) * n.column.size;
    pieces_ = divided_up(numbers, at_once);
    plane_size_ = images.plane_size;
    left_ = pieces_ > 0 ? images.planes : 0;
    const int64_t wanted = left_ * pieces_ * count_;
    if (wanted > 0) every_ = larger(1, segments / wanted);
  }
  TOPKAST_INLINE void operator()(int64_t segments) {
    for (since_ += segments; left_ > 0 && since_ >= every_; since_ -= every_) ask();
  }
  bool is_done() const { return left_ <= 0; }

 private:
  __attribute__((noinline)) void ask() {
    for (int64_t k = 0; k < at_once; k += 64 / int64_t(sizeof(T)))
      __builtin_prefetch(from_[band_] + offset_ + piece_ * at_once + k, 0, 2);
    if (++band_ < count_) return;
    band_ = 0;
    if (++piece_ < pieces_) return;
    piece_ = 0, offset_ += plane_size_, --left_;
  }
  static constexpr int64_t lanes = Vector<T>::lanes, at_once = 256 / int64_t(sizeof(T));
  const T* from_[lanes];
  int64_t count_ = 0, pieces_ = 0, plane_size_ = 0, left_ = 0, every_ = 1;
  int64_t since_ = 0, band_ = 0, piece_ = 0, offset_ = 0;
};

// Asks for what two groups are packed from.
template <typename T>
struct PairAsker {
  GroupAsker<T> first, second;
  TOPKAST_INLINE void operator()(int64_t segments) { first.is_done() ? second(segments) : first(segments); }
};

// Calls f(packed group, its number, task, meanwhile) for all groups and tasks, which call `meanwhile` so many times for
// a group; called by all threads of a parallel region. A thread does whole groups by itself, so that it reads nothing
// that another core has packed (which takes up to 1.7 times as long, depending on where the cores are). The groups that
// are left when there are too few for all threads are shared.
template <typename T, typename F>
void for_groups(const Images<T>& images, int64_t shared, int64_t tasks, int64_t calls, F&& f) {
  thread_local Scratch<T> scratch;
  const int64_t groups = images.bands.groups(Vector<T>::lanes), whole = groups - shared;
#pragma omp for schedule(dynamic) nowait
  for (int64_t number = 0; number < whole; ++number) {
    T* own = scratch.get(images.group_size());
    images.pack(number, 0, images.planes, own);
    GroupAsker<T> asker(images, number + omp_get_num_threads(), calls);  // its next one, if threads keep step
    for (int64_t task = 0; task < tasks; ++task) f(own, number, task, asker);
  }
  if (shared == 0) return;
  images.pack_groups(whole, shared);
  GroupAsker<T> nothing;
#pragma omp for schedule(dynamic) collapse(2)
  for (int64_t i = 0; i < shared; ++i)
    for (int64_t task = 0; task < tasks; ++task) f(images.group(i), whole + i, task, nothing);
}

template <typename T>
Bands bands_of(const Conv& g) {
  const Axis row = rows_of(g), column = columns_of(g);
  const bool cuts_columns = g.out_height == 1;
  const int64_t pixels = row.phases * column.phases * (cuts_columns ? 1 : g.out_width + column.reach());
  return cut(g.batch, g.out_height, g.out_width, cuts_columns, cuts_columns ? column.reach() : row.reach(),
             g.channels * pixels * TOPKAST_VECTOR_BYTES, Vector<T>::lanes);
}

inline Layout input_layout(const Conv& g, const Bands& bands) {
  const Axis row = rows_of(g), column = columns_of(g);
  return {row, column, bands.rows + row.reach(), bands.columns + column.reach()};
}

// How far from the output pixel the inputs of `channels` channels are, tap by tap; `length` numbers.
inline const uint32_t* distances(const Layout& n, int64_t channels, int64_t length, Scratch<uint32_t>& scratch) {
  uint32_t* table = scratch.get(length);
  int64_t i = 0;
  for (int64_t channel = 0; channel < channels; ++channel)
    for (int64_t row = 0; row < n.row.kernel; ++row)
      for (int64_t column = 0; column < n.column.kernel; ++column)
        table[i++] = static_cast<uint32_t>(channel * n.plane() + n.distance(row, column));
  fill(table + i, table + length, uint32_t(0));  // kernels look ahead
  return table;
}

// Where the column of each element is, for kernels to read in place of its number; called by all threads of a parallel
// region. (Looked up for each strip instead, it would cost a load for each element and strip.)
inline void find_offsets(const uint16_t* column, int64_t first, int64_t end, const uint32_t* table, uint32_t* offsets) {
  for (int64_t e = first; e < end; ++e) offsets[e] = table[column[e]];
}
inline void find_offsets(const Sweep& s, const uint32_t* table, uint32_t* offsets) {
#pragma omp for schedule(static)
  for (int64_t at = 0; at < s.num_cells(); ++at)
    find_offsets(s.column.data(), s.first_element[at], s.end_element[at], table + at % s.num_blocks * s.block_columns,
                 offsets);
}
inline void find_offsets(const Samples& s, const uint32_t* table, uint32_t* offsets) {
#pragma omp for schedule(static)
  for (int64_t at = 0; at < s.num_tiles * s.num_blocks; ++at)
    find_offsets(s.column.data(), s.first_group[at] * Samples::group, s.first_group[at + 1] * Samples::group,
                 table + at % s.num_blocks * s.block_columns, offsets);
}

// Whether a strip reads more than L1 holds of a block's columns.
inline bool is_beyond_l1(const Conv& g, int64_t block_columns, int64_t width) {
  const int64_t channels = divided_up(block_columns, g.taps());
  return channels * g.kernel_height * (width + g.kernel_width - 1) * TOPKAST_VECTOR_BYTES > kL1;
}

// A tile for one strip of outputs, of which there are `width` vectors.
template <typename T, typename Index, typename Input, typename Output>
void sweep_strip(const Sweep& s, int64_t tile, const Index* columns, const T* value, const Input& in, const Output& out,
                 int64_t width, bool ahead, GroupAsker<T>& meanwhile) {
  with_width<kStrip>(width, [&](auto number) {
    constexpr int V = decltype(number)::value;
    constexpr bool is_wide = V > kStrip / 2;
    if (is_wide && ahead)
      sweep_cells<T, V, is_wide>(s, tile, columns, value, in, out, meanwhile);
    else
      sweep_cells<T, V, false>(s, tile, columns, value, in, out, meanwhile);
  });
}

// Outputs that a tile is computed for before it is unpacked: enough to write whole lines of an image.
constexpr int64_t kOutputsAtOnce = 48;

// All tiles for `rows` rows of a group from row `first` on, by one thread.
template <typename T>
void finish_rows(const Sweep& s, const Conv& g, const Images<T>& x, const T* group, int64_t number, int64_t first,
                 int64_t rows, const uint32_t* offsets, const T* value, const T* bias, T* y, GroupAsker<T>& meanwhile) {
  constexpr int64_t lanes = Vector<T>::lanes;
  thread_local Scratch<T> tile_scratch, copies;
  const int64_t columns = x.bands.columns, size = rows * columns * lanes;
  T* tile_y = tile_scratch.get(s.tile_rows * size);
  T* room = copies.get(size);
  const Strips strips(columns, kStrip);
  for (int64_t tile = 0; tile < s.num_tiles; ++tile) {
    const int64_t first_row = tile * s.tile_rows, tile_rows = smaller(s.tile_rows, s.num_rows - first_row);
    start_tile(bias ? bias + first_row : nullptr, tile_rows, size, tile_y);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t strip = 0; strip < strips.count; ++strip) {
        const int64_t column = strips.first(strip), width = strips.width(strip);
        const Offset<const T, lanes> in{x.at(group, first + row, column)};
        const Apart<T> out{tile_y + (row * columns + column) * lanes, size};
        sweep_strip(s, tile, offsets, value, in, out, width, is_beyond_l1(g, s.block_columns, width), meanwhile);
      }
    for (int64_t r = 0; r < tile_rows; ++r)
      unpack_outputs(x.bands, number, first, rows, tile_y + r * size, room, y + (first_row + r) * g.pixels(),
                     s.num_rows * g.pixels(), g.out_height, g.out_width);
  }
}

template <typename T>
void image_conv(const Sweep& s, const Conv& g, const T* values, const T* x, const T* bias, T* y, int num_threads) {
  if (g.batch * g.pixels() == 0 || s.num_rows == 0) return;
  const Bands bands = bands_of<T>(g);
  const int64_t shared = bands.groups(Vector<T>::lanes) % num_threads;
  thread_local Scratch<T> value_scratch;
  thread_local ImageScratch<T> x_scratch;
  thread_local Scratch<uint32_t> table_scratch, offset_scratch;
  const Images<T> images(input_layout(g, bands), bands, x, g.channels, g.height * g.width, shared, x_scratch);
  const uint32_t* table = distances(images.n, g.channels, s.num_blocks * s.block_columns, table_scratch);
  uint32_t* offsets = offset_scratch.get(s.room() + PlanSizes::look_ahead);
  T* value = value_scratch.get(s.room());
  const int64_t rows = smaller(bands.rows, divided_up(kOutputsAtOnce, bands.columns));
#pragma omp parallel num_threads(num_threads)
  {
    gather_values(s, values, value);
    find_offsets(s, table, offsets);
    const int64_t calls = bands.rows * Strips(bands.columns, kStrip).count * s.segments.size();
    for_groups(images, shared, divided_up(bands.rows, rows), calls,
               [&](const T* group, int64_t number, int64_t task, GroupAsker<T>& meanwhile) {
                 const int64_t first = task * rows;
                 finish_rows(s, g, images, group, number, first, smaller(rows, bands.rows - first), offsets, value,
                             bias, y, meanwhile);
               });
    finish_writes();
  }
}

// Input gradient for strides above 1; others gather, which is `image_conv` of dy. Rows of the sweep are (channel, tap):
// what one adds up belongs to the inputs that its tap reads. Tiles hold whole channels (Plan sees to it). A task is one
// tile for a group of bands of dx, computed from all rows of dy that reach them: it is the only one to write there.
template <typename T>
void image_input_grad(const Sweep& s, const Conv& g, const T* values, const T* dy, T* dx, int num_threads) {
  constexpr int64_t lanes = Vector<T>::lanes;
  const int64_t image_size = g.channels * g.height * g.width;
  if (g.pixels() == 0 || s.num_rows == 0 || s.num_columns == 0) return fill(dx, dx + g.batch * image_size, T(0));
  const Axis row = rows_of(g), column = columns_of(g);
  const int64_t halo = row.reach(), units = divided_up(g.height + g.padding_height, g.stride_height);
  const Bands bands =
      cut(g.batch, units, g.out_width, false, 3 * halo, s.num_columns * g.out_width * TOPKAST_VECTOR_BYTES, lanes);
  const Layout n{row, column, bands.rows + 2 * halo, g.out_width + column.reach()};
  const Layout m{plain(g.out_height, halo), plain(g.out_width), bands.rows + halo, g.out_width};
  const int64_t shared = bands.groups(lanes) % num_threads;
  thread_local Scratch<T> value_scratch;
  thread_local ImageScratch<T> dy_scratch, dx_scratch;
  thread_local Scratch<uint32_t> table_scratch;
  const Images<T> images(m, bands, dy, s.num_columns, g.pixels(), shared, dy_scratch);
  const Columns<T> columns(n, dx_scratch.places, dx_scratch.zeros);
  const WholeRows<T> places(n, columns, dx_scratch.places_of_rows, dx_scratch.rows_of_zeros);
  const uint32_t* table = distances(n, s.tile_rows / g.taps(), s.tile_rows, table_scratch);
  T* value = value_scratch.get(s.room());
  const Strips strips(g.out_width, kStrip);  // a block of columns is as in a linear layer
  const bool ahead = s.block_columns * kStrip * TOPKAST_VECTOR_BYTES > kL1;
#pragma omp parallel num_threads(num_threads)
  {
    thread_local Scratch<T> tile_scratch, copies;
    const int64_t plane = n.plane() * lanes;
    T* tile_dx = tile_scratch.get(s.tile_rows / g.taps() * plane);
    T* room = copies.get(places_at_once(places.unit, bands.rows) * places.unit * lanes);
    gather_values(s, values, value);
    const int64_t calls = m.row_places * strips.count * s.segments.size();
    for_groups(images, shared, s.num_tiles, calls,
               [&](const T* group, int64_t number, int64_t tile, GroupAsker<T>& meanwhile) {
                 const int64_t first_row = tile * s.tile_rows, rows = smaller(s.tile_rows, s.num_rows - first_row);
                 const int64_t first = first_row / g.taps(), channels = rows / g.taps();
                 fill(tile_dx, tile_dx + channels * plane, T(0));
                 for (int64_t out_row = 0; out_row < m.row_places; ++out_row)
                   for (int64_t strip = 0; strip < strips.count; ++strip) {
                     const int64_t out_column = strips.first(strip);
                     const Apart<const T> in{images.at(group, out_row, out_column), m.plane() * lanes};
                     const Listed<T, lanes> out{tile_dx + (out_row * n.row_size() + out_column) * lanes, table};
                     sweep_strip(s, tile, s.column.data(), value, in, out, strips.width(strip), ahead, meanwhile);
                   }
                 for (int64_t c = 0; c < channels; ++c)
                   unpack_inputs(n, bands, number, tile_dx + c * plane, places, room,
                                 dx + (first + c) * g.height * g.width, image_size);
               });
    finish_writes();
  }
}

// Some tiles of a block, for all outputs of a group.
template <typename T>
void sample_group_of_bands(const Samples& s, const Conv& g, const Images<T>& dy, const T* dy_group, const Images<T>& x,
                           const T* x_group, const uint32_t* offsets, int64_t block, int64_t tile, int64_t last,
                           T* sums, PairAsker<T>& meanwhile) {
  constexpr int64_t lanes = Vector<T>::lanes;
  const Strips strips(x.bands.columns, kStrip);
  for (int64_t row = 0; row < x.bands.rows; ++row)
    for (int64_t strip = 0; strip < strips.count; ++strip) {
      const int64_t column = strips.first(strip), width = strips.width(strip);
      const Apart<const T> left{dy.at(dy_group, row, column), dy.n.plane() * lanes};
      const Offset<const T, lanes> right{x.at(x_group, row, column)};
      const bool ahead = is_beyond_l1(g, s.block_columns, width);
      with_width<kStrip>(width, [&](auto number) {
        constexpr int V = decltype(number)::value;
        constexpr bool is_wide = V > kStrip / 2;
        if (is_wide && ahead)
          sample_cells<T, V, is_wide>(s, offsets, block, tile, last, left, right, sums, meanwhile);
        else
          sample_cells<T, V, false>(s, offsets, block, tile, last, left, right, sums, meanwhile);
      });
    }
}

template <typename T>
void image_weight_grad(const Samples& s, const Conv& g, const T* x, const T* dy, T* dvalues, int num_threads) {
  if (g.batch * g.pixels() == 0 || s.num_elements == 0) return fill(dvalues, dvalues + s.num_elements, T(0));
  const Bands bands = bands_of<T>(g);
  const int64_t groups = bands.groups(Vector<T>::lanes);
  const Lanes lanes = lanes_for<T>(s, groups, 1);
  const bool by_lane = lanes.suffice(num_threads);
  const int64_t together = by_lane ? 0 : smaller(groups, num_threads);
  thread_local ImageScratch<T> left_scratch, right_scratch;
  thread_local Scratch<T> sums_scratch;
  thread_local Scratch<uint32_t> table_scratch, offset_scratch;
  const Layout m{plain(g.out_height), plain(g.out_width), bands.rows, bands.columns};
  const Images<T> left(m, bands, dy, s.num_rows, g.pixels(), together, left_scratch);
  const Images<T> right(input_layout(g, bands), bands, x, g.channels, g.height * g.width, together, right_scratch);
  const uint32_t* table = distances(right.n, g.channels, s.num_blocks * s.block_columns, table_scratch);
  uint32_t* offsets = offset_scratch.get(s.num_groups() * Samples::group + PlanSizes::look_ahead);
  const Sums<T> sums(s, lanes, sums_scratch);
#pragma omp parallel num_threads(num_threads)
  {
    find_offsets(s, table, offsets);
    const int64_t calls = bands.rows * Strips(bands.columns, kStrip).count * s.segments.size();
    if (by_lane) {
      thread_local Scratch<T> own_left_scratch, own_right_scratch;
      T* own_left = own_left_scratch.get(left.group_size());
      T* own_right = own_right_scratch.get(right.group_size());
#pragma omp for schedule(dynamic)
      for (int64_t lane = 0; lane < lanes.count; ++lane) {
        sums.start(lane);
        for (int64_t i = lanes.first(lane); i < lanes.first(lane + 1); ++i) {
          left.pack(i, 0, left.planes, own_left);
          right.pack(i, 0, right.planes, own_right);
          PairAsker<T> asker{{left, i + 1, calls / 2}, {right, i + 1, calls / 2}};
          for (int64_t block = 0; block < s.num_blocks; ++block)
            sample_group_of_bands(s, g, left, own_left, right, own_right, offsets, block, 0, s.num_tiles,
                                  sums.lane(lane), asker);
        }
      }
    } else {
      PairAsker<T> nothing;
      start_sums(sums, lanes);
      const int64_t step = larger(1, s.num_tiles / (2 * omp_get_num_threads()));
      for (int64_t g0 = 0; g0 < groups; g0 += together) {
        const int64_t count = smaller(together, groups - g0);
        left.pack_groups(g0, count);
        right.pack_groups(g0, count);
#pragma omp for schedule(dynamic)
        for (int64_t tile = 0; tile < s.num_tiles; tile += step)
          for (int64_t block = 0; block < s.num_blocks; ++block)
            for (int64_t i = 0; i < count; ++i)
              sample_group_of_bands(s, g, left, left.group(i), right, right.group(i), offsets, block, tile,
                                    smaller(s.num_tiles, tile + step), sums.lane(lanes.of(g0 + i)), nothing);
      }
    }
    collect_sums(s, sums, lanes, dvalues);
  }
}

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
