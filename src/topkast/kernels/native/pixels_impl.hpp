// Where the pixels of a panel come from, for one instruction set; included after kernels_impl.hpp.
#pragma once

#include "kernels_impl.hpp"

namespace topkast {
namespace TOPKAST_ISA_NAMESPACE {

// The pixels of `channels` planes of the convolution's output, as they are: a convolution that does nothing.
inline Conv planes(const Conv& g, int64_t channels) {
  return {g.batch, channels, 1, g.pixels(), 1, g.pixels(), 1, 1, 1, 1, 0, 0, 1, 1};
}

// Whether every pixel of the input is read once and in order.
inline bool is_plain(const Conv& g) {
  return g.out_height == g.height && g.out_width == g.width && g.stride_height == 1 && g.stride_width == 1 &&
         g.padding_height == 0 && g.padding_width == 0;
}

// Of `length` output columns from `first`, those that fall inside the input: [low, high), relative to first.
struct Inside {
  int64_t low, high, start;  // start: input column of the first output column, maybe negative
  Inside(const Conv& g, int64_t first, int64_t length) : start(first * g.stride_width - g.padding_width) {
    low = start >= 0 ? 0 : (-start + g.stride_width - 1) / g.stride_width;
    high = start >= g.width ? 0 : (g.width - start + g.stride_width - 1) / g.stride_width;
    low = smaller(low, length);
    high = smaller(high, length);
    if (high < low) high = low;
  }
};

// `length` pixels of a channel, `from` numbers from the first channel of the first image, are in panel `panel` from
// token `token` on. It has `width` tokens.
struct Run {
  int64_t from, length, panel, token, width;
};

struct MapScratch {
  Scratch<int64_t> pieces;
  Scratch<Run> runs;
  Scratch<int32_t> indices;
};

// Copies `count` numbers, in whole vectors of which the last may overlap the one before. Those `ahead` numbers further
// are asked for at the same time.
template <typename T, bool Ahead = false>
TOPKAST_INLINE void copy_run(const T* from, int64_t count, T* to, int64_t ahead = 0) {
  typedef T vec __attribute__((vector_size(TOPKAST_VECTOR_BYTES), aligned(alignof(T)), may_alias));
  constexpr int64_t lanes = Vector<T>::lanes;
  auto move = [&](int64_t i) {
    if (Ahead) __builtin_prefetch(from + ahead + i);
    *reinterpret_cast<vec*>(to + i) = *reinterpret_cast<const vec*>(from + i);
  };
  if (count == Vector<T>::panel) {
    for (int64_t i = 0; i < Vector<T>::panel; i += lanes) move(i);
  } else if (count >= lanes) {
    for (int64_t i = 0; i + lanes < count; i += lanes) move(i);
    move(count - lanes);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
  }
}

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

// Maps the output pixels of a panel (numbered through all images) to numbers of the input, for a kernel of one tap. The
// map is the same for all channels, so that its divisions are done once per panel and not once per channel. Panels with
// long runs of pixels are copied piece by piece; where rows are short, number by number.
template <typename T>
class PixelMap {
 public:
  PixelMap() = default;
  PixelMap(const Conv& g, const Panel& p, MapScratch& scratch)
      : panel_(p), stride_(g.stride_width), plane_(g.height * g.width), image_(g.channels * plane_) {
    const int64_t runs = 2 + p.count / g.out_width;
    first_image_ = p.first / g.pixels();
    const int64_t images = 2 + p.count / g.pixels();
    is_indexed_ = runs > 4 && images * image_ < (int64_t(1) << 31);
    pieces_ = scratch.pieces.get(3 * 3 * runs);
    find_pieces(g);
    if (is_indexed_) make_indices(scratch.indices.get(p.width));
  }

  int64_t width() const { return panel_.width; }

  // The pixels of a channel: packed[pixel]. Padding pixels are zero.
  void pack(const T* x, int64_t channel, T* packed) const {
    const T* plane = x + first_image_ * image_ + channel * plane_;
    if (is_indexed_) return gather_row(plane, indices_, panel_.width, packed);
    for (int64_t i = 0; i < count_; ++i) copy(plane, piece(i), packed);
    fill(packed + panel_.count, packed + panel_.width, T(0));
  }

  // Asks for them ahead of time.
  void ask_for(const T* x, int64_t channel) const {
    const T* plane = x + first_image_ * image_ + channel * plane_;
    for (int64_t i = 0; i < count_; ++i) {
      const Piece q = piece(i);
      for (int64_t k = 0; q.from >= 0 && k < q.length * stride_; k += 64 / int64_t(sizeof(T)))
        __builtin_prefetch(plane + q.from + k, 0, 2);
    }
  }

  // The other way: writes the pixels of a channel to where they come from, past the caches or not.
  void unpack(const T* packed, int64_t channel, bool past, T* y) const {
    T* plane = y + first_image_ * image_ + channel * plane_;
    for (int64_t i = 0; i < count_; ++i) {
      const Piece q = piece(i);
      if (q.from < 0) continue;
      T* to = plane + q.from;
      if (stride_ == 1 && past)
        write_past(packed + q.to, q.length, to);
      else if (stride_ == 1)
        copy_run(packed + q.to, q.length, to);
      else
        for (int64_t k = 0; k < q.length; ++k) to[k * stride_] = packed[q.to + k];
    }
  }

 private:
  // `length` pixels of the panel from `to` on come from `from` on, counted from the first image's plane, or are zero if
  // that is negative.
  struct Piece {
    int64_t to, length, from;
  };
  Piece piece(int64_t i) const { return {pieces_[3 * i], pieces_[3 * i + 1], pieces_[3 * i + 2]}; }

  void add_piece(int64_t to, int64_t length, int64_t from) {
    if (length <= 0) return;
    pieces_[3 * count_] = to;
    pieces_[3 * count_ + 1] = length;
    pieces_[3 * count_ + 2] = from;
    ++count_;
  }

  // Each output row that the panel touches is a run of pixels: zeros, a piece of an input row, zeros.
  void find_pieces(const Conv& g) {
    int64_t pixel = panel_.first - first_image_ * g.pixels(), image = 0;
    int64_t row = pixel / g.out_width, column = pixel - row * g.out_width;
    for (int64_t offset = 0; offset < panel_.count; ++row, column = 0) {
      if (row == g.out_height) row = 0, ++image;
      const int64_t length = smaller(g.out_width - column, panel_.count - offset);
      const int64_t in_row = row * g.stride_height - g.padding_height;
      if (in_row < 0 || in_row >= g.height) {
        add_piece(offset, length, -1);
      } else {
        const Inside in(g, column, length);
        const int64_t from = image * image_ + in_row * g.width + in.start;
        add_piece(offset, in.low, -1);
        add_piece(offset + in.low, in.high - in.low, from + in.low * g.stride_width);
        add_piece(offset + in.high, length - in.high, -1);
      }
      offset += length;
    }
  }

  void make_indices(int32_t* indices) {
    fill(indices, indices + panel_.width, int32_t(-1));
    for (int64_t i = 0; i < count_; ++i) {
      const Piece q = piece(i);
      for (int64_t k = 0; q.from >= 0 && k < q.length; ++k)
        indices[q.to + k] = static_cast<int32_t>(q.from + k * stride_);
    }
    indices_ = indices;
  }

  void copy(const T* plane, const Piece& q, T* to) const {
    T* out = to + q.to;
    if (q.from < 0) return fill(out, out + q.length, T(0));
    const T* from = plane + q.from;
    if (stride_ == 1)
      copy_run(from, q.length, out);
    else
      for (int64_t i = 0; i < q.length; ++i) out[i] = from[i * stride_];
  }

  Panel panel_ = {};
  int64_t stride_ = 1, plane_ = 0, image_ = 0, first_image_ = 0;
  bool is_indexed_ = false;
  int64_t count_ = 0;           // of pieces
  int64_t* pieces_ = nullptr;   // three numbers each
  int32_t* indices_ = nullptr;  // panel_.width, if indexed
};

// Neighbouring panels that are packed together, channel after channel: what is read of a plane, or written to it, is
// then two kilobytes at a time. (One panel at a time, 64 -> 256 channels of 56 x 56 spent half its time waiting for
// memory.)
constexpr int64_t kMostPanels = 8;

// How many of them, so that panels of so many channels stay in L2.
template <typename T>
int64_t panels_at_once(int64_t channels) {
  constexpr int64_t l2 = 384 * 1024;
  const int64_t fit = l2 / (channels * Vector<T>::panel * int64_t(sizeof(T)) + 1);
  return fit < 1 ? 1 : smaller(fit, kMostPanels);
}

// The pixels of up to kMostPanels panels from `first` on, of all images together. Where they are as they are in memory,
// one list says what all panels have of a channel: 256 -> 128 channels of 56 x 56 take 7.0 ms so, and 8.8 panel by
// panel.
template <typename T>
class PixelMaps {
 public:
  PixelMaps(const Conv& g, int64_t first, int64_t count, MapScratch* scratch)
      : count_(count), plane_(g.height * g.width), is_plain_(is_plain(g)) {
    const int64_t tokens = g.batch * g.pixels();
    if (is_plain_) find_runs(g, first, tokens, scratch->runs);
    for (int64_t i = 0; i < count; ++i) {
      const Panel panel = panel_at<T>(first + i, tokens);
      width_[i] = panel.width, empty_ = panel.width - panel.count;
      if (!is_plain_) maps_[i] = PixelMap<T>(g, panel, scratch[i]);
    }
  }
  int64_t width(int64_t panel) const { return width_[panel]; }
  int64_t count() const { return count_; }

  // Channels [0, channels) of x: panel i at packed + i * panel_size, a channel every `width(i)` numbers.
  void pack(const T* x, int64_t channels, T* packed, int64_t panel_size) const {
    constexpr int64_t ahead = 8;
    for (int64_t c = 0; c < channels; ++c) {
      const bool asks = c + ahead < channels;
      for (int64_t i = 0; i < num_runs_; ++i)
        copy_run<T, true>(x + c * plane_ + runs_[i].from, runs_[i].length, at(packed, panel_size, runs_[i], c),
                          asks ? ahead * plane_ : 0);
      for (int64_t i = 0; !is_plain_ && i < count_; ++i) {
        if (asks) maps_[i].ask_for(x, c + ahead);
        maps_[i].pack(x, c, packed + i * panel_size + c * width(i));
      }
      T* end = packed + (count_ - 1) * panel_size + (c + 1) * width(count_ - 1);
      fill(end - empty_, end, T(0));
    }
  }
  // The other way for channels [first, first + channels), which begin at packed + i * panel_size.
  void unpack(const T* packed, int64_t panel_size, int64_t first, int64_t channels, bool past, T* y) const {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t i = 0; i < num_runs_; ++i) {
        const T* from = at(packed, panel_size, runs_[i], c);
        T* to = y + (first + c) * plane_ + runs_[i].from;
        past ? write_past(from, runs_[i].length, to) : copy_run(from, runs_[i].length, to);
      }
      for (int64_t i = 0; !is_plain_ && i < count_; ++i)
        maps_[i].unpack(packed + i * panel_size + c * width(i), first + c, past, y);
    }
  }

  // Asks for these channels of x while something else is computed: a run of pixels now and then, so that after so many
  // segments all is asked for.
  class Asker {
   public:
    Asker(const PixelMaps& maps, const T* x, int64_t channels, int64_t segments)
        : maps_(maps), x_(x), left_(maps.num_pieces() == 0 ? 0 : channels) {
      const int64_t wanted = left_ * maps.num_pieces();
      if (wanted > 0) every_ = segments / wanted < 1 ? 1 : segments / wanted;
    }
    TOPKAST_INLINE void operator()(int64_t segments) {
      for (since_ += segments; left_ > 0 && since_ >= every_; since_ -= every_) ask();
    }

   private:
    void ask() {
      maps_.ask_for(x_, piece_);
      if (++piece_ < maps_.num_pieces()) return;
      piece_ = 0, --left_, x_ += maps_.plane_;
    }
    const PixelMaps& maps_;
    const T* x_;
    int64_t left_, piece_ = 0, every_ = 1, since_ = 0;
  };

 private:
  int64_t num_pieces() const { return is_plain_ ? num_runs_ : count_; }
  // One run, or one panel, of the channel at `plane`.
  TOPKAST_INLINE void ask_for(const T* plane, int64_t piece) const {
    if (!is_plain_) return maps_[piece].ask_for(plane, 0);
    const T* from = plane + runs_[piece].from;
    for (int64_t i = 0; i < runs_[piece].length; i += 64 / int64_t(sizeof(T))) __builtin_prefetch(from + i, 0, 2);
  }
  template <typename P>
  static P* at(P* packed, int64_t panel_size, const Run& run, int64_t channel) {
    return packed + run.panel * panel_size + channel * run.width + run.token;
  }
  // A run ends with its image or its panel.
  void find_runs(const Conv& g, int64_t first, int64_t tokens, Scratch<Run>& scratch) {
    runs_ = scratch.get(count_ * (2 + Vector<T>::panel / g.pixels()));
    for (int64_t i = 0; i < count_; ++i) {
      const Panel panel = panel_at<T>(first + i, tokens);
      for (int64_t token = 0, length; token < panel.count; token += length) {
        const int64_t image = (panel.first + token) / g.pixels(), pixel = panel.first + token - image * g.pixels();
        length = smaller(g.pixels() - pixel, panel.count - token);
        runs_[num_runs_++] = {image * g.channels * plane_ + pixel, length, i, token, panel.width};
      }
    }
  }

  int64_t count_, plane_;
  bool is_plain_;
  int64_t empty_ = 0;  // tokens of the last panel that are none
  int64_t width_[kMostPanels];
  int64_t num_runs_ = 0;
  Run* runs_ = nullptr;
  PixelMap<T> maps_[kMostPanels];
};

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
