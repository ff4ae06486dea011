// Images side by side, for one instruction set; included after kernels_impl.hpp.
//
// As many images as a vector has lanes are packed as [channel][row][column][image], with zeros where the convolution
// pads. Every tap of the kernel is then a vector at a fixed distance from the output pixel: an element costs one
// distance from a table, and no patch is ever copied. What is packed are bands of images, some output rows each: few
// images fill a vector too, and what a group of bands needs is small.
#pragma once

#include "kernels_impl.hpp"
#include "square_impl.hpp"

namespace topkast {
namespace TOPKAST_ISA_NAMESPACE {

inline int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }
inline int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The most vectors of outputs that are computed at once. 128 columns of a 3 x 3 kernel then take 27 KB of L1.
constexpr int kStrip = 8;

// One axis of a convolution. With a stride, inputs that are `stride` apart are stored next to each other, so that the
// inputs of neighbouring outputs are neighbours. An input is then in a phase (which remainder) at a place. The input of
// output o and tap t is at place o + place(t) of phase(t).
struct Axis {
  int64_t size;  // of the image
  int64_t kernel, stride, padding, dilation;
  int64_t period;  // after so many taps the phases repeat
  int64_t phases;  // that some tap falls into

  Axis(int64_t size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation)
      : size(size), kernel(kernel), stride(stride), padding(padding), dilation(dilation) {
    int64_t a = stride, b = dilation;
    while (b) {
      const int64_t rest = a % b;
      a = b, b = rest;
    }
    period = stride / a;
    phases = smaller(kernel, period);
  }
  int64_t phase(int64_t tap) const { return tap % period; }
  int64_t place(int64_t tap) const { return tap * dilation / stride; }
  int64_t reach() const { return place(kernel - 1); }
  // Of the last tap that falls into this phase.
  int64_t reach(int64_t phase) const { return place((kernel - 1 - phase) / period * period + phase); }
  int64_t shift(int64_t phase) const { return phase * dilation % stride; }
  // The input at place 0 of a phase; at place p it is p * stride further.
  int64_t start(int64_t phase) const { return shift(phase) - padding; }
};

inline Axis rows_of(const Conv& g) {
  return {g.height, g.kernel_height, g.stride_height, g.padding_height, g.dilation_height};
}
inline Axis columns_of(const Conv& g) {
  return {g.width, g.kernel_width, g.stride_width, g.padding_width, g.dilation_width};
}
// Pixels as they are, `padding` rows of zeros before them.
inline Axis plain(int64_t size, int64_t padding = 0) { return {size, 1, 1, padding, 1}; }

// How a plane of a band is laid out, in vectors.
struct Layout {
  Axis row, column;
  int64_t row_places, column_places;

  int64_t length() const { return column.phases * column_places; }
  // Odd, so that the rows of many channels do not meet in few sets of the cache.
  int64_t row_size() const { return length() | 1; }
  int64_t plane() const { return row.phases * row_places * row_size(); }
  // Columns of an image from the first to the last that a row has.
  int64_t span() const { return (column_places - 1) * column.stride + (column.phases == 1 ? 1 : column.stride); }
  int64_t distance(int64_t row_tap, int64_t column_tap) const {
    return (row.phase(row_tap) * row_places + row.place(row_tap)) * row_size() +
           column.phase(column_tap) * column_places + column.place(column_tap);
  }
};

// A band: which image, and its first output.
struct ImageBand {
  int64_t image, first_row, first_column;
};

// The bands that images are cut into: some rows each, or some columns where there is only one row. Those of all images
// are numbered through and taken in groups of as many as a vector has lanes.
struct Bands {
  int64_t images, per_image;
  int64_t rows, columns;  // of a band
  bool columns_are_cut;

  int64_t count() const { return images * per_image; }
  int64_t groups(int64_t lanes) const { return divided_up(count(), lanes); }
  // The bands of a group, and how many they are.
  int64_t of(int64_t group, int64_t lanes, ImageBand* band) const {
    const int64_t first = group * lanes, number = smaller(lanes, count() - first);
    for (int64_t i = 0; i < number; ++i) {
      const int64_t image = (first + i) / per_image, part = first + i - image * per_image;
      band[i] = {image, columns_are_cut ? 0 : part * rows, columns_are_cut ? part * columns : 0};
    }
    return number;
  }
};

// Of all ways to cut, the one with the least to compute: outputs in lanes that are empty, or beyond the end of an
// image, count as others do, what has to be packed twice for a tenth, and what is more than `enough` bytes a tenth
// more. Weight gradients are added up band by band, so this depends on sizes alone and not on the number of threads.
inline Bands cut(int64_t images, int64_t rows, int64_t columns, bool cuts_columns, int64_t reach, int64_t row_bytes,
                 int64_t lanes) {
  constexpr int64_t enough = 3 << 20, most_bands = 256;
  const int64_t length = cuts_columns ? columns : rows;
  const int64_t shortest = cuts_columns ? smaller(length, 4 * kStrip) : 1;
  int64_t best = length;
  double least = -1;
  for (int64_t wanted = 1; wanted <= smaller(length, most_bands); ++wanted) {
    const int64_t part = divided_up(length, wanted), per_image = divided_up(length, part);
    if (part < shortest) break;
    const double in_lanes = double(divided_up(images * per_image, lanes) * lanes);
    const double cost = in_lanes * (part + 0.1 * reach) * ((part + reach) * row_bytes > enough ? 1.1 : 1.0);
    if (least < 0 || cost < 0.99 * least) least = cost, best = part;
  }
  const int64_t per_image = divided_up(length, best);
  return {images, per_image, cuts_columns ? rows : best, cuts_columns ? best : columns, cuts_columns};
}

template <typename T>
inline void copy(const T* from, int64_t count, T* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

// Where the columns of a row are in its packed form, counted in vectors: all from the first to the last that a row has.
// -1 for those that no tap reads. `length()` numbers, and a row of zeros as long.
template <typename T>
struct Columns {
  int64_t span;
  int32_t* place;
  T* zeros;
  Columns(const Layout& n, Scratch<int32_t>& places, Scratch<T>& room)
      : span(n.span()), place(places.get(span)), zeros(room.get(span)) {
    fill(place, place + span, int32_t(-1));
    fill(zeros, zeros + span, T(0));
    for (int64_t phase = 0; phase < n.column.phases; ++phase)
      for (int64_t i = 0; i < n.column_places - n.column.reach() + n.column.reach(phase); ++i) {
        const int64_t column = i * n.column.stride + n.column.shift(phase);
        if (column < span) place[column] = static_cast<int32_t>(phase * n.column_places + i);
      }
  }
};

// Where the numbers of all places are in their packed form, counted in vectors, in the order in which an image has
// them: `unit` numbers for each place, which are the rows of one stride. Room for zeros as many.
template <typename T>
struct WholeRows {
  int64_t unit;
  int32_t* place;
  T* zeros;
  WholeRows(const Layout& n, const Columns<T>& columns, Scratch<int32_t>& places, Scratch<T>& room)
      : unit(n.row.stride * n.column.size),
        place(places.get(n.row_places * unit)),
        zeros(room.get(n.row_places * unit)) {
    fill(place, place + n.row_places * unit, int32_t(-1));
    fill(zeros, zeros + n.row_places * unit, T(0));
    const int64_t columns_read = smaller(n.column.size, larger(0, columns.span - n.column.padding));
    for (int64_t i = 0; i < n.row_places; ++i)
      for (int64_t phase = 0; phase < n.row.phases; ++phase) {
        const int64_t first = (phase * n.row_places + i) * n.row_size();
        int32_t* row = place + i * unit + n.row.shift(phase) * n.column.size;
        for (int64_t c = 0; c < columns_read; ++c) {
          const int32_t at = columns.place[c + n.column.padding];
          if (at >= 0) row[c] = static_cast<int32_t>(first + at);
        }
      }
  }
};

// Numbers [low, high) of all images, side by side: those of row[i] are in lane i. `place` says where each goes, if it
// is not negative.
template <typename T>
void put_side_by_side(const T* const* row, int64_t low, int64_t high, const int32_t* place, T* packed) {
  constexpr int64_t lanes = Vector<T>::lanes;
  for (int64_t c = low; c < high; c += lanes) {
    const int64_t count = smaller(lanes, high - c);
    Square<T> square;
#pragma GCC unroll 16
    for (int64_t i = 0; i < lanes; ++i) square.load(i, row[i] + c, count);
    square.transpose();
#pragma GCC unroll 16
    for (int64_t k = 0; k < lanes; ++k)
      if (k < count && place[c + k] >= 0)
        *reinterpret_cast<typename Vector<T>::type*>(packed + place[c + k] * lanes) = square.row[k];
  }
}

template <typename T>
void put_zeros(int64_t low, int64_t high, const Columns<T>& columns, T* packed) {
  constexpr int64_t lanes = Vector<T>::lanes;
  for (int64_t c = low; c < high; ++c)
    if (columns.place[c] >= 0)
      *reinterpret_cast<typename Vector<T>::type*>(packed + columns.place[c] * lanes) = typename Vector<T>::type{};
}

// Asks for `count` numbers of all images from `offset` on, image after image.
template <typename T>
void ask_for(const T* const* image, int64_t offset, int64_t count) {
  constexpr int64_t line = 64 / int64_t(sizeof(T));
  for (int64_t i = 0; i < Vector<T>::lanes; ++i)
    for (int64_t k = 0; k < count; k += line) __builtin_prefetch(image[i] + offset + k, 0, 2);
}

// The bands of a group, and the places [low, high) whose rows are inside of the image in all of them. (Where columns
// are cut there are none: rows are copied before.)
template <typename T>
struct Group {
  static constexpr int64_t lanes = Vector<T>::lanes;
  ImageBand band[lanes];
  int64_t count, low, high;
  Group(const Layout& n, const Bands& bands, int64_t number) : count(bands.of(number, lanes, band)) {
    const int64_t stride = n.row.stride, padding = n.row.padding;
    low = 0, high = bands.columns_are_cut ? 0 : n.row_places;
    for (int64_t i = 0; i < count; ++i) {
      low = larger(low, divided_up(padding, stride) - band[i].first_row);
      high = smaller(high, (n.row.size + padding) / stride - band[i].first_row);
    }
    high = larger(low, high);
  }
};

// One plane of the bands of a group. `x` is that plane of the first image, `image_size` numbers from that of the next.
// Many images are read at once, which is more than the hardware foresees: what comes later is asked for, some rows of
// an image at a time.
template <typename T>
class PlanePacker {
  static constexpr int64_t lanes = Vector<T>::lanes;

 public:
  PlanePacker(const Layout& n, const Bands& bands, int64_t number, const Columns<T>& columns, const WholeRows<T>& rows,
              T* copies)
      : n_(n), bands_(bands), group_(n, bands, number), columns_(columns), rows_(rows), copies_(copies) {
    const bool is_cut = bands.columns_are_cut;
    low_ = is_cut ? 0 : smaller(columns.span, n.column.padding);
    high_ = is_cut ? columns.span : larger(low_, smaller(columns.span, n.column.padding + n.column.size));
  }

  void pack(const T* x, int64_t image_size, T* packed) const {
    constexpr int64_t bytes_asked = 4096;
    const int64_t unit = rows_.unit;
    const T* image[lanes];
    for (int64_t i = 0; i < lanes; ++i)
      image[i] = i < group_.count ? x + group_.band[i].image * image_size + group_.band[i].first_row * unit : x;
    // Places are asked for some at a time, and those of the next plane with the last ones of this.
    const int64_t some = smaller(n_.row_places, divided_up(bytes_asked, unit * int64_t(sizeof(T))));
    for (int64_t place = 0; place < n_.row_places;) {
      if (place % some == 0)
        ask_for(image, place + some < n_.row_places ? (place + some) * unit : n_.row.size * n_.column.size,
                some * unit);
      if (place >= group_.low && place < group_.high) {
        const int64_t end = smaller(group_.high, place - place % some + some);
        pack_inside(image, place, end, packed);
        place = end;
      } else {
        for (int64_t phase = 0; phase < n_.row.phases; ++phase)
          if (place < n_.row_places - n_.row.reach() + n_.row.reach(phase))  // else no tap reads it
            pack_row(x, image_size, place, phase, packed);
        ++place;
      }
    }
  }

 private:
  T* at(T* packed, int64_t place, int64_t phase) const {
    return packed + (phase * n_.row_places + place) * n_.row_size() * lanes;
  }
  // Places [first, end), which are inside of all images: their rows follow each other.
  void pack_inside(const T* const* image, int64_t first, int64_t end, T* packed) const {
    const T* from[lanes];
    const int64_t outside = n_.row.padding * n_.column.size;
    for (int64_t i = 0; i < lanes; ++i)
      from[i] = i < group_.count ? image[i] + first * rows_.unit - outside : rows_.zeros;
    put_side_by_side(from, 0, (end - first) * rows_.unit, rows_.place + first * rows_.unit, packed);
    for (int64_t place = first; place < end; ++place)
      for (int64_t phase = 0; phase < n_.row.phases; ++phase) {
        put_zeros(0, low_, columns_, at(packed, place, phase));
        put_zeros(high_, columns_.span, columns_, at(packed, place, phase));
      }
  }
  // One row, which some images may not have. Where images are cut between columns, each has zeros elsewhere.
  void pack_row(const T* x, int64_t image_size, int64_t place, int64_t phase, T* packed) const {
    const int64_t size = n_.column.size, padding = n_.column.padding, span = columns_.span;
    const T* row[lanes];
    bool is_empty = true;
    for (int64_t i = 0; i < lanes; ++i) {
      row[i] = columns_.zeros;
      const ImageBand& band = group_.band[i];
      const int64_t number = i < group_.count ? (band.first_row + place) * n_.row.stride + n_.row.start(phase) : -1;
      if (number < 0 || number >= n_.row.size) continue;
      is_empty = false;
      row[i] = x + band.image * image_size + number * size - padding;
      if (!bands_.columns_are_cut) continue;
      const int64_t first = band.first_column * n_.column.stride - padding;
      const int64_t inside = smaller(span, larger(0, -first)), end = larger(inside, smaller(span, size - first));
      T* own = copies_ + i * span;
      fill(own, own + inside, T(0));
      copy(row[i] + padding + first + inside, end - inside, own + inside);
      fill(own + end, own + span, T(0));
      row[i] = own;
    }
    T* to = at(packed, place, phase);
    put_zeros(0, is_empty ? span : low_, columns_, to);
    if (is_empty) return;
    put_side_by_side(row, low_, high_, columns_.place, to);
    put_zeros(high_, span, columns_, to);
  }

  const Layout& n_;
  const Bands& bands_;
  const Group<T> group_;
  const Columns<T>& columns_;
  const WholeRows<T>& rows_;
  T* copies_;
  int64_t low_, high_;  // columns that an image has
};

// The first `columns` numbers of each image's row, the other way: `at(c)` is where the vector of column c is, or null
// for zeros. Images have `count[i]` numbers to be written.
template <typename T, typename At>
void put_apart(int64_t columns, const At& at, T* const* row, const int64_t* count) {
  using vec = typename Vector<T>::type;
  constexpr int64_t lanes = Vector<T>::lanes;
  for (int64_t c = 0; c < columns; c += lanes) {
    Square<T> square;
#pragma GCC unroll 16
    for (int64_t k = 0; k < lanes; ++k) {
      const T* from = k < columns - c ? at(c + k) : nullptr;
      square.row[k] = from ? *reinterpret_cast<const vec*>(from) : vec{};
    }
    square.transpose();
#pragma GCC unroll 16
    for (int64_t i = 0; i < lanes; ++i)
      if (c < count[i]) square.store(i, row[i] + c, smaller(lanes, count[i] - c));
  }
}

// Of these columns those from first[i] to end[i] are written to row[i]; past the caches where that pays. What cannot be
// written as it is goes by way of `copies`, room for all columns: a line of each image in turn past the caches would be
// slower (64 -> 64 channels of 56 x 56, batch 32: 5.6 ms, so 5.2).
template <typename T, typename At>
void put_rows(int64_t columns, bool past, const At& at, T* const* row, const int64_t* first, const int64_t* end,
              T* copies) {
  constexpr int64_t lanes = Vector<T>::lanes;
  bool is_direct = !past;
  T* copy[lanes];
  int64_t whole[lanes];
  for (int64_t i = 0; i < lanes; ++i) {
    copy[i] = copies + i * columns, whole[i] = columns;
    is_direct = is_direct && first[i] == 0;
  }
  if (is_direct) return put_apart(columns, at, row, end);
  put_apart(columns, at, copy, whole);
  for (int64_t i = 0; i < lanes; ++i) {
    const T* from = copy[i] + first[i];
    const int64_t count = end[i] - first[i];
    past ? write_past(from, count, row[i]) : topkast::TOPKAST_ISA_NAMESPACE::copy(from, count, row[i]);
  }
}

// Whether an output of so many numbers is written past the caches.
template <typename T>
bool goes_past(int64_t numbers) {
  return numbers * int64_t(sizeof(T)) >= kPastCaches;
}

// The other way, for outputs: `rows` rows from row `first` of each band on, packed without gaps. `y` is a plane of the
// first image, of height x width.
template <typename T>
void unpack_outputs(const Bands& bands, int64_t group, int64_t first, int64_t rows, const T* packed, T* copies, T* y,
                    int64_t image_size, int64_t height, int64_t width) {
  constexpr int64_t lanes = Vector<T>::lanes;
  ImageBand band[lanes];
  const int64_t number = bands.of(group, lanes, band);
  T* to[lanes];
  const int64_t start[lanes] = {};
  int64_t count[lanes];
  for (int64_t i = 0; i < lanes; ++i) {
    to[i] = y, count[i] = 0;
    if (i >= number) continue;
    const int64_t row = band[i].first_row + first, column = band[i].first_column;
    to[i] += band[i].image * image_size + row * width + column;
    count[i] =
        bands.columns_are_cut ? smaller(bands.columns, width - column) : larger(0, smaller(rows, height - row)) * width;
  }
  auto at = [&](int64_t c) { return packed + c * lanes; };
  put_rows(rows * bands.columns, goes_past<T>(bands.images * image_size), at, to, start, count, copies);
}

// Places of dx that are unpacked at a time: about so many numbers of each image.
constexpr int64_t kInputsAtOnce = 224;

// How many places these are.
inline int64_t places_at_once(int64_t unit, int64_t places) { return smaller(places, larger(1, kInputsAtOnce / unit)); }

// The other way, for inputs: one plane of dx. `packed` has `reach` more places than a band before and after its own.
// `copies` has room for the places that are unpacked at a time.
template <typename T>
void unpack_inputs(const Layout& n, const Bands& bands, int64_t group, const T* packed, const WholeRows<T>& rows,
                   T* copies, T* dx, int64_t image_size) {
  constexpr int64_t lanes = Vector<T>::lanes;
  const int64_t width = n.column.size, some = places_at_once(rows.unit, bands.rows);
  const bool past = goes_past<T>(bands.images * image_size);
  ImageBand band[lanes];
  const int64_t number = bands.of(group, lanes, band);
  T* to[lanes];
  int64_t first[lanes], end[lanes];
  for (int64_t place = 0; place < bands.rows; place += some) {
    const int64_t total = smaller(some, bands.rows - place) * rows.unit;
    for (int64_t i = 0; i < lanes; ++i) {
      to[i] = dx, first[i] = end[i] = 0;
      if (i >= number) continue;
      const int64_t row = (band[i].first_row + place) * n.row.stride - n.row.padding;
      first[i] = smaller(total, larger(0, -row * width));
      end[i] = larger(first[i], smaller(total, (n.row.size - row) * width));
      to[i] = dx + band[i].image * image_size + (row * width + first[i]);
    }
    const int32_t* from = rows.place + (place + n.row.reach()) * rows.unit;
    auto at = [&](int64_t c) -> const T* { return from[c] < 0 ? nullptr : packed + from[c] * lanes; };
    put_rows(total, past, at, to, first, end, copies);
  }
}

// A row of outputs is cut into strips of nearly the same width, in vectors, which are computed at once.
struct Strips {
  int64_t length, count;
  Strips(int64_t length, int64_t most) : length(length), count(divided_up(length, most)) {}
  int64_t first(int64_t i) const { return i * (length / count) + smaller(i, length % count); }
  int64_t width(int64_t i) const { return first(i + 1) - first(i); }
};

// Calls f with a strip's width as a Number: any up to `most`.
template <int most, typename F>
inline void with_width(int64_t width, F&& f) {
  if (most == 1 || width == most) return f(Number<most>{});
  if constexpr (most > 1) with_width<most - 1>(width, f);
}

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
