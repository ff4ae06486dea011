// Where the pixels of a panel come from, for one instruction set; included after kernels_impl.hpp.
#pragma once

#include "kernels_impl.hpp"

namespace topkast {
namespace TOPKAST_ISA_NAMESPACE {

// The pixels of `channels` planes of the convolution's output, as they are: a convolution that does nothing.
inline Conv planes(const Conv& g, int64_t channels) {
  return {g.batch, channels, 1, g.pixels(), 1, g.pixels(), 1, 1, 1, 1, 0, 0, 1, 1};
}

// Of `length` output columns from `first`, those whose tap falls inside the input: [low, high), relative to first.
struct Inside {
  int64_t low, high, start;  // start: input column of the first output column, maybe negative
  Inside(const Conv& g, int64_t first, int64_t length, int64_t tap_column)
      : start(first * g.stride_width - g.padding_width + tap_column * g.dilation_width) {
    low = start >= 0 ? 0 : (-start + g.stride_width - 1) / g.stride_width;
    high = start >= g.width ? 0 : (g.width - start + g.stride_width - 1) / g.stride_width;
    low = smaller(low, length);
    high = smaller(high, length);
    if (high < low) high = low;
  }
};

struct MapScratch {
  Scratch<int64_t> pieces;
  Scratch<int32_t> indices;
};

// out[i] = index[i] < 0 ? 0 : from[index[i]], for `count` numbers, a multiple of the vector length.
template <typename T>
inline void gather_row(const T* from, const int32_t* index, int64_t count, T* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = index[i] < 0 ? T(0) : from[index[i]];
}
#if defined(__AVX2__)
template <>
inline void gather_row<float>(const float* from, const int32_t* index, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += 8) {
    const __m256i where = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(index + i));
    const __m256 inside = _mm256_castsi256_ps(_mm256_cmpgt_epi32(where, _mm256_set1_epi32(-1)));
    _mm256_storeu_ps(out + i, _mm256_mask_i32gather_ps(_mm256_setzero_ps(), from, where, inside, 4));
  }
}
#endif

// Maps the pixels of a panel (numbered through all images) to numbers of the input, tap by tap. The map is the same for
// all channels, so that its divisions are done once per panel and not once per channel. Panels with long runs of pixels
// are copied piece by piece; where rows are short, number by number.
template <typename T>
class PatchMap {
 public:
  PatchMap(const Conv& g, const Panel& p, MapScratch& scratch)
      : panel_(p), stride_(g.stride_width), taps_(g.taps()), plane_(g.height * g.width), image_(g.channels * plane_) {
    const int64_t runs = 2 + p.count / g.out_width;
    first_image_ = p.first / g.pixels();
    const int64_t images = 2 + p.count / g.pixels();
    is_indexed_ = runs > 4 && images * image_ < (int64_t(1) << 31);
    first_ = scratch.pieces.get(taps_ + 1 + 3 * 3 * runs * taps_);
    pieces_ = first_ + taps_ + 1;
    int64_t n = 0;
    for (int64_t tap = 0; tap < taps_; ++tap) {
      first_[tap] = n;
      n = add_tap(g, tap, n);
    }
    first_[taps_] = n;
    if (is_indexed_) make_indices(scratch.indices.get(taps_ * p.width));
  }

  // Columns [c0, c1) of the patch matrix: packed[c * width + pixel]. Padding pixels are zero.
  void pack(const T* x, int64_t c0, int64_t c1, T* packed) const {
    x += first_image_ * image_;
    int64_t channel = c0 / taps_, tap = c0 - channel * taps_;
    for (int64_t c = c0; c < c1; ++c) {
      const T* plane = x + channel * plane_;
      T* to = packed + c * panel_.width;
      if (is_indexed_) {
        gather_row(plane, indices_ + tap * panel_.width, panel_.width, to);
      } else {
        if (tap == 0) ask_for_next(plane);
        for (int64_t i = first_[tap]; i < first_[tap + 1]; ++i) copy(plane, piece(i), to);
        fill(to + panel_.count, to + panel_.width, T(0));
      }
      if (++tap == taps_) tap = 0, ++channel;
    }
  }

  // For planes: writes rows [c0, c1) of packed pixels, which begin at `packed`, to where they belong.
  void unpack(const T* packed, int64_t c0, int64_t c1, T* y) const {
    y += first_image_ * image_;
    for (int64_t c = c0; c < c1; ++c, packed += panel_.width)
      for (int64_t i = first_[0]; i < first_[1]; ++i) {
        const Piece q = piece(i);
        T* to = y + c * plane_ + q.from;
        for (int64_t k = 0; k < q.length; ++k) to[k] = packed[q.to + k];
      }
  }

  // The transpose of `pack`: adds rows [c0, c1) of a matrix of patches, which begin at `patches`, to x.
  void add(const T* patches, int64_t c0, int64_t c1, T* x) const {
    x += first_image_ * image_;
    int64_t channel = c0 / taps_, tap = c0 - channel * taps_;
    for (int64_t c = c0; c < c1; ++c, patches += panel_.width) {
      for (int64_t i = first_[tap]; i < first_[tap + 1]; ++i) {
        const Piece q = piece(i);
        if (q.from < 0) continue;
        T* to = x + channel * plane_ + q.from;
        for (int64_t k = 0; k < q.length; ++k) to[k * stride_] += patches[q.to + k];
      }
      if (++tap == taps_) tap = 0, ++channel;
    }
  }

 private:
  // `length` pixels of the panel from `to` on come from `from` on, counted from the first image's plane, or are zero if
  // that is negative.
  struct Piece {
    int64_t to, length, from;
  };
  Piece piece(int64_t i) const { return {pieces_[3 * i], pieces_[3 * i + 1], pieces_[3 * i + 2]}; }

  int64_t add_piece(int64_t n, int64_t to, int64_t length, int64_t from) {
    if (length <= 0) return n;
    pieces_[3 * n] = to;
    pieces_[3 * n + 1] = length;
    pieces_[3 * n + 2] = from;
    return n + 1;
  }

  // Each output row that the panel touches is a run of pixels: zeros, a piece of an input row, zeros.
  int64_t add_tap(const Conv& g, int64_t tap, int64_t n) {
    const int64_t tap_row = tap / g.kernel_width, tap_column = tap - tap_row * g.kernel_width;
    int64_t pixel = panel_.first - first_image_ * g.pixels(), image = 0;
    int64_t row = pixel / g.out_width, column = pixel - row * g.out_width;
    for (int64_t offset = 0; offset < panel_.count; ++row, column = 0) {
      if (row == g.out_height) row = 0, ++image;
      const int64_t length = smaller(g.out_width - column, panel_.count - offset);
      const int64_t in_row = row * g.stride_height - g.padding_height + tap_row * g.dilation_height;
      if (in_row < 0 || in_row >= g.height) {
        n = add_piece(n, offset, length, -1);
      } else {
        const Inside in(g, column, length, tap_column);
        const int64_t from = image * image_ + in_row * g.width + in.start;
        n = add_piece(n, offset, in.low, -1);
        n = add_piece(n, offset + in.low, in.high - in.low, from + in.low * g.stride_width);
        n = add_piece(n, offset + in.high, length - in.high, -1);
      }
      offset += length;
    }
    return n;
  }

  void make_indices(int32_t* indices) {
    fill(indices, indices + taps_ * panel_.width, int32_t(-1));
    for (int64_t tap = 0; tap < taps_; ++tap)
      for (int64_t i = first_[tap]; i < first_[tap + 1]; ++i) {
        const Piece q = piece(i);
        for (int64_t k = 0; q.from >= 0 && k < q.length; ++k)
          indices[tap * panel_.width + q.to + k] = static_cast<int32_t>(q.from + k * stride_);
      }
    indices_ = indices;
  }

  // The next panel of this plane will be wanted next.
  void ask_for_next(const T* plane) const {
    const Piece last = piece(first_[1] - 1);
    if (last.from < 0) return;
    for (int64_t i = 0; i < Vector<T>::panel * stride_; i += 64 / int64_t(sizeof(T)))
      __builtin_prefetch(plane + last.from + last.length * stride_ + i);
  }

  void copy(const T* plane, const Piece& q, T* to) const {
    T* out = to + q.to;
    if (q.from < 0) return fill(out, out + q.length, T(0));
    const T* from = plane + q.from;
    if (stride_ == 1)
      for (int64_t i = 0; i < q.length; ++i) out[i] = from[i];
    else
      for (int64_t i = 0; i < q.length; ++i) out[i] = from[i * stride_];
  }

  Panel panel_;
  int64_t stride_, taps_, plane_, image_, first_image_;
  bool is_indexed_;
  int64_t* first_;    // first piece per tap, and the end
  int64_t* pieces_;   // three numbers each
  int32_t* indices_;  // panel_.width per tap, if indexed
};

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
