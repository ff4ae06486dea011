// Images side by side, for one instruction set; included after kernels_impl.hpp.
//
// As many images as a vector has lanes are packed as [channel][row][column][image], with zeros where the convolution
// pads. Every tap of the kernel is then a vector at a fixed distance from the output pixel: an element costs one
// distance from a table, and no patch is ever copied. What is packed are bands of images, some output rows each: few
// images fill a vector too, and what a group of bands needs is small.
#pragma once

#include "kernels_impl.hpp"

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

// out[c * out_stride + r] = in[r * in_stride + c]. The last blocks overlap those before them, so that all are whole.
template <typename T>
inline void transpose(const T* in, int64_t in_stride, int64_t rows, int64_t columns, T* out, int64_t out_stride) {
  for (int64_t r0 = 0; r0 < rows; r0 += 8) {
    const int64_t r = rows >= 8 ? smaller(r0, rows - 8) : r0;
    for (int64_t c0 = 0; c0 < columns; c0 += 8) {
      const int64_t c = columns >= 8 ? smaller(c0, columns - 8) : c0;
      transpose_block(in + r * in_stride + c, in_stride, rows - r, columns - c, out + c * out_stride + r, out_stride);
    }
  }
}

template <typename T>
inline void copy_vector(const T* from, T* to) {
  using vec = typename Vector<T>::type;
  *reinterpret_cast<vec*>(to) = *reinterpret_cast<const vec*>(from);
}

template <typename T>
inline void copy(const T* from, int64_t count, T* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

// To an output of `total` numbers.
template <typename T>
inline void write(const T* from, int64_t count, int64_t total, T* to) {
  total* int64_t(sizeof(T)) < kPastCaches ? copy(from, count, to) : write_past(from, count, to);
}

// Room for one row of all images of a group: image after image, and pixel after pixel.
template <typename T>
struct Lines {
  static constexpr int64_t lanes = Vector<T>::lanes;
  int64_t span;
  T* images;  // lanes x span
  T* pixels;  // span x lanes
  Lines(int64_t span, Scratch<T>& scratch)
      : span(span), images(scratch.get(2 * span * lanes)), pixels(images + span * lanes) {}
};

// Copies a row of one image, `first` columns from its first, with zeros for what is not in it. Many images are read at
// once, each a little at a time, which is more than the hardware foresees: rows that come later are asked for.
template <typename T>
inline void copy_row(const T* row, int64_t size, int64_t first, int64_t ahead, int64_t span, T* to) {
  for (int64_t i = 0; i < size; i += 64 / int64_t(sizeof(T))) __builtin_prefetch(row + ahead + i);
  const int64_t low = smaller(span, larger(0, -first)), high = larger(low, smaller(span, size - first));
  fill(to, to + low, T(0));
  copy(row + first + low, high - low, to + low);
  fill(to + high, to + span, T(0));
}

// One plane of the bands of a group. `x` is that plane of the first image, `image_size` numbers from that of the next.
template <typename T>
void pack_plane(const Layout& n, const Bands& bands, int64_t group, const T* x, int64_t image_size,
                const Lines<T>& lines, T* packed) {
  constexpr int64_t lanes = Vector<T>::lanes, rows_ahead = 2;
  const int64_t span = lines.span, size = n.column.size, stride = n.column.stride;
  ImageBand band[lanes];
  const int64_t count = bands.of(group, lanes, band);
  fill(lines.images, lines.images + lanes * span, T(0));
  for (int64_t phase = 0; phase < n.row.phases; ++phase) {
    const int64_t start = n.row.start(phase);
    for (int64_t place = 0; place < n.row_places; ++place, packed += n.row_size() * lanes) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t row = (band[i].first_row + place) * n.row.stride + start;
        T* to = lines.images + i * span;
        if (row < 0 || row >= n.row.size)
          fill(to, to + span, T(0));
        else
          copy_row(x + band[i].image * image_size + row * size, size, band[i].first_column * stride - n.column.padding,
                   rows_ahead * n.row.stride * size, span, to);
      }
      transpose(lines.images, span, lanes, span, stride == 1 ? packed : lines.pixels, lanes);
      for (int64_t p = 0; stride > 1 && p < n.column.phases; ++p)
        for (int64_t i = 0; i < n.column_places; ++i)
          copy_vector(lines.pixels + (i * stride + n.column.shift(p)) * lanes,
                      packed + (p * n.column_places + i) * lanes);
    }
  }
}

// The other way, for outputs: `rows` rows from row `first` of each band on, packed without gaps. `y` is a plane of the
// first image, of height x width.
template <typename T>
void unpack_outputs(const Bands& bands, int64_t group, int64_t first, int64_t rows, const T* packed,
                    const Lines<T>& lines, T* y, int64_t image_size, int64_t height, int64_t width) {
  constexpr int64_t lanes = Vector<T>::lanes;
  ImageBand band[lanes];
  const int64_t count = bands.of(group, lanes, band), length = rows * bands.columns;
  transpose(packed, lanes, length, lanes, lines.images, length);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = band[i].first_row + first, column = band[i].first_column;
    const int64_t numbers =
        bands.columns_are_cut ? smaller(bands.columns, width - column) : larger(0, smaller(rows, height - row)) * width;
    write(lines.images + i * length, numbers, bands.images * image_size,
          y + band[i].image * image_size + row * width + column);
  }
}

// The other way, for inputs: one plane of dx. `packed` has `reach` more places than a band before and after its own.
template <typename T>
void unpack_inputs(const Layout& n, const Bands& bands, int64_t group, const T* packed, const Lines<T>& lines, T* dx,
                   int64_t image_size) {
  constexpr int64_t lanes = Vector<T>::lanes;
  const int64_t span = lines.span, width = n.column.size, padding = n.column.padding;
  const int64_t covered = larger(0, smaller(width, span - padding));
  ImageBand band[lanes];
  const int64_t count = bands.of(group, lanes, band);
  fill(lines.pixels, lines.pixels + span * lanes, T(0));  // some columns are read by no tap
  for (int64_t shift = 0; shift < n.row.stride; ++shift) {
    int64_t phase = 0;
    while (phase < n.row.phases && n.row.shift(phase) != shift) ++phase;
    const bool is_read = phase < n.row.phases;  // else these rows are zero
    for (int64_t unit = 0; unit < bands.rows; ++unit) {
      const T* row = packed + (phase * n.row_places + unit + n.row.reach()) * n.row_size() * lanes;
      for (int64_t p = 0; is_read && p < n.column.phases; ++p)
        for (int64_t i = 0; i < n.column_places; ++i)
          copy_vector(row + (p * n.column_places + i) * lanes,
                      lines.pixels + (i * n.column.stride + n.column.shift(p)) * lanes);
      if (is_read) transpose(lines.pixels, lanes, span, lanes, lines.images, span);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t number = (band[i].first_row + unit) * n.row.stride + shift - n.row.padding;
        if (number < 0 || number >= n.row.size) continue;
        T* to = dx + band[i].image * image_size + number * width;
        if (is_read) write(lines.images + i * span + padding, covered, bands.images * image_size, to);
        fill(to + (is_read ? covered : 0), to + width, T(0));
      }
    }
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
