// Panels of tokens and how they are packed, for one instruction set.
//
// Like every *_impl.hpp this is included by one .cpp per instruction set, each compiled with its own flags and with
// TOPKAST_ISA_NAMESPACE and TOPKAST_VECTOR_BYTES defined; everything is in that namespace, so that no inline function
// of one instruction set is ever linked into another.
#pragma once

#include <omp.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels.hpp"

namespace topkast {
namespace TOPKAST_ISA_NAMESPACE {

// In place of the standard library's: an inline function of its, compiled here with this instruction set, could be
// the copy that the linker keeps for all of them.
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
template <typename T>
inline void fill(T* first, T* last, T value) {
  for (; first != last; ++first) *first = value;
}

// gcc 12 calls the inner loops of some widths as functions, and then keeps in memory what belongs into registers: the
// weight gradient of 1024 x 1024 at 95/90 took 4.1 ms so and takes 3.4 (AVX2: 5.2 and 3.5).
#define TOPKAST_INLINE __attribute__((always_inline)) inline
#define TOPKAST_INLINE_LAMBDA __attribute__((always_inline))

constexpr int kSums = 8;  // accumulators: enough to hide the latency of a multiply-add
// Vectors of tokens in a full panel. 128 columns of it, a block, fill 32 KB. With longer vectors twice as many tokens
// would miss L1 for half of all loads: on Zen 4 a step of 1024 x 1024 took 35.4, 18.0, 11.5 and 6.0 ms at 80/50, 90/80,
// 95/90 and 98/95 so, and takes 28.3, 14.3, 8.8 and 5.2. (Blocks of 64 columns: 28.1, 15.4, 10.7, 5.6. Two vectors and
// blocks of 256: 34.0, 16.0, 9.5, 5.2.)
constexpr int kPanel = TOPKAST_VECTOR_BYTES == 64 ? 4 : 8;

template <typename T>
struct Lane {
  typedef T type;
};
template <>
struct Lane<Half> {
  typedef uint16_t type;
};

template <typename T>
struct Vector {
  static constexpr int lanes = TOPKAST_VECTOR_BYTES / sizeof(T);
  typedef typename Lane<T>::type type
      __attribute__((vector_size(TOPKAST_VECTOR_BYTES), aligned(TOPKAST_VECTOR_BYTES), may_alias));
  static constexpr int panel = kPanel * lanes;  // tokens in a full panel
};

// Vectors of sums with the products of two vectors, or the numbers of one, added.
template <typename T>
TOPKAST_INLINE typename Vector<Sum<T>>::type added(typename Vector<Sum<T>>::type sum, typename Vector<T>::type a,
                                                   typename Vector<T>::type b) {
  return sum + a * b;
}
template <typename T>
TOPKAST_INLINE typename Vector<Sum<T>>::type added(typename Vector<Sum<T>>::type sum, typename Vector<T>::type a) {
  return sum + a;
}

// All scratch memory of one thread, in a list.
class ScratchBase {
 public:
  ScratchBase() : next_(first_) { first_ = this; }
  ScratchBase(const ScratchBase&) = delete;
  virtual ~ScratchBase() {
    std::free(data_);
    for (ScratchBase** at = &first_; *at; at = &(*at)->next_) {
      if (*at != this) continue;
      *at = next_;
      break;
    }
  }
  // Gives back what this thread keeps in pieces of at least so many bytes.
  static void release(int64_t least) {
    for (ScratchBase* one = first_; one; one = one->next_) {
      if (one->num_bytes() < least) continue;
      std::free(one->data_);
      one->data_ = nullptr;
      one->capacity_ = 0;
    }
  }

 protected:
  virtual int64_t num_bytes() const = 0;
  void* data_ = nullptr;
  int64_t capacity_ = 0;

 private:
  inline static thread_local ScratchBase* first_ = nullptr;
  ScratchBase* next_;
};

// Scratch memory that a thread keeps between calls.
template <typename T>
class Scratch : ScratchBase {
 public:
  T* get(int64_t size) {
    if (size > capacity_) {
      std::free(data_);
      capacity_ = size;
      const size_t bytes = (static_cast<size_t>(size) * sizeof(T) + 63) / 64 * 64;
      data_ = std::aligned_alloc(64, bytes);
      if (!data_) {
        capacity_ = 0;
        std::abort();  // out of memory inside a parallel region: there is no way to report it
      }
    }
    return static_cast<T*>(data_);
  }

 private:
  int64_t num_bytes() const override { return capacity_ * static_cast<int64_t>(sizeof(T)); }
};

// Tokens [first, first + count) padded to `width`, a multiple of the vector length.
struct Panel {
  int64_t first;
  int64_t count;
  int64_t width;
};

template <typename T>
int64_t num_panels(int64_t tokens) {
  return (tokens + Vector<T>::panel - 1) / Vector<T>::panel;
}

template <typename T>
Panel panel_at(int64_t index, int64_t tokens) {
  const int64_t first = index * Vector<T>::panel;
  const int64_t count = smaller(Vector<T>::panel, tokens - first);
  int64_t width = Vector<T>::panel;
  while (width / 2 >= count && width / 2 >= Vector<T>::lanes) width /= 2;
  return {first, count, width};
}

#if defined(__AVX2__)
inline void transpose_8x8(const float* in, int64_t in_stride, float* out, int64_t out_stride) {
  __m256 r0 = _mm256_loadu_ps(in + 0 * in_stride), r1 = _mm256_loadu_ps(in + 1 * in_stride);
  __m256 r2 = _mm256_loadu_ps(in + 2 * in_stride), r3 = _mm256_loadu_ps(in + 3 * in_stride);
  __m256 r4 = _mm256_loadu_ps(in + 4 * in_stride), r5 = _mm256_loadu_ps(in + 5 * in_stride);
  __m256 r6 = _mm256_loadu_ps(in + 6 * in_stride), r7 = _mm256_loadu_ps(in + 7 * in_stride);
  __m256 a0 = _mm256_unpacklo_ps(r0, r1), a1 = _mm256_unpackhi_ps(r0, r1);
  __m256 a2 = _mm256_unpacklo_ps(r2, r3), a3 = _mm256_unpackhi_ps(r2, r3);
  __m256 a4 = _mm256_unpacklo_ps(r4, r5), a5 = _mm256_unpackhi_ps(r4, r5);
  __m256 a6 = _mm256_unpacklo_ps(r6, r7), a7 = _mm256_unpackhi_ps(r6, r7);
  __m256 b0 = _mm256_shuffle_ps(a0, a2, 0x44), b1 = _mm256_shuffle_ps(a0, a2, 0xEE);
  __m256 b2 = _mm256_shuffle_ps(a1, a3, 0x44), b3 = _mm256_shuffle_ps(a1, a3, 0xEE);
  __m256 b4 = _mm256_shuffle_ps(a4, a6, 0x44), b5 = _mm256_shuffle_ps(a4, a6, 0xEE);
  __m256 b6 = _mm256_shuffle_ps(a5, a7, 0x44), b7 = _mm256_shuffle_ps(a5, a7, 0xEE);
  _mm256_storeu_ps(out + 0 * out_stride, _mm256_permute2f128_ps(b0, b4, 0x20));
  _mm256_storeu_ps(out + 1 * out_stride, _mm256_permute2f128_ps(b1, b5, 0x20));
  _mm256_storeu_ps(out + 2 * out_stride, _mm256_permute2f128_ps(b2, b6, 0x20));
  _mm256_storeu_ps(out + 3 * out_stride, _mm256_permute2f128_ps(b3, b7, 0x20));
  _mm256_storeu_ps(out + 4 * out_stride, _mm256_permute2f128_ps(b0, b4, 0x31));
  _mm256_storeu_ps(out + 5 * out_stride, _mm256_permute2f128_ps(b1, b5, 0x31));
  _mm256_storeu_ps(out + 6 * out_stride, _mm256_permute2f128_ps(b2, b6, 0x31));
  _mm256_storeu_ps(out + 7 * out_stride, _mm256_permute2f128_ps(b3, b7, 0x31));
}
#endif

template <typename T>
inline void transpose_8x8(const T* in, int64_t in_stride, T* out, int64_t out_stride) {
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 8; ++j) out[j * out_stride + i] = in[i * in_stride + j];
}

// out[c * out_stride + r] = in[r * in_stride + c] for up to 8 rows and 8 columns.
template <typename T>
inline void transpose_block(const T* in, int64_t in_stride, int64_t rows, int64_t columns, T* out, int64_t out_stride) {
  if (rows >= 8 && columns >= 8) return transpose_8x8(in, in_stride, out, out_stride);
  for (int64_t r = 0; r < smaller(rows, 8); ++r)
    for (int64_t c = 0; c < smaller(columns, 8); ++c) out[c * out_stride + r] = in[r * in_stride + c];
}

// Tokens of x are often a multiple of 4096 bytes apart, so that their lines of one column fall into the same set of a
// cache, and it holds only 8 of them. Both loops below therefore have no more than 8 tokens under way at a time, and
// finish with their lines before they go on. (Taking 16 columns of all tokens before the next 16, as one would to write
// whole lines, packs at half and unpacks at two thirds of this speed.)

// Columns [c0, c1) of a panel of x: packed[c * width + t]. Padding tokens are zero.
template <typename T>
void pack(const T* x, int64_t num_columns, const Panel& p, int64_t c0, int64_t c1, T* packed) {
  constexpr int64_t strip = 64, line = 64 / int64_t(sizeof(T));  // 16 KB of `packed` stay in L1 until they are full
  x += p.first * num_columns;
  for (; c0 < c1; c0 += strip) {
    const int64_t end = smaller(c1, c0 + strip);
    for (int64_t t = 0; t < p.count; t += 8) {
      for (int64_t i = t; i < smaller(t + 8, p.count); ++i)  // the next strip, into L2: L1 has no room for it
        for (int64_t c = end; c < end + strip; c += line) __builtin_prefetch(x + i * num_columns + c, 0, 2);
      for (int64_t c = c0; c < end; c += 8)
        transpose_block(x + t * num_columns + c, num_columns, p.count - t, end - c, packed + c * p.width + t, p.width);
    }
    for (int64_t c = c0; p.count < p.width && c < end; ++c)
      fill(packed + c * p.width + p.count, packed + (c + 1) * p.width, T(0));
  }
}

// The reverse, for a tile of outputs: y[t * num_columns + c] = packed[c * width + t] for the panel's tokens, c <
// columns.
template <typename T>
void unpack(const Sum<T>* packed, const Panel& p, int64_t columns, T* y, int64_t num_columns) {
  constexpr int64_t line = 64 / int64_t(sizeof(T));
  y += p.first * num_columns;
  for (int64_t t = 0; t < p.count; t += 8)
    for (int64_t c0 = 0; c0 < columns; c0 += line) {
      for (int64_t i = t; i < smaller(t + 8, p.count); ++i) __builtin_prefetch(y + i * num_columns + c0 + 2 * line, 1);
      for (int64_t c = c0; c < smaller(columns, c0 + line); c += 8)
        transpose_block(packed + c * p.width + t, p.width, columns - c, p.count - t, y + t * num_columns + c,
                        num_columns);
    }
}

// From so many bytes on an output is written past the caches: it would not stay in them until somebody reads it, and
// lines need not be read before they are written. (64 -> 256 channels of 56 x 56, batch 32: 11.5 ms, so 7.7.)
constexpr int64_t kPastCaches = int64_t(16) << 20;

// Copies numbers to where nobody will look for them soon. `finish_writes` comes last, in each thread.
template <typename T>
inline void write_past(const T* from, int64_t count, T* to) {
  int64_t i = 0;
#if defined(__AVX2__)
  const int64_t head = (64 - reinterpret_cast<uintptr_t>(to) % 64) % 64 / int64_t(sizeof(T));
  for (; i < smaller(head, count); ++i) to[i] = from[i];
  constexpr int64_t line = 64 / int64_t(sizeof(T));
  for (; i + line <= count; i += line)
    for (int64_t k = 0; k < line; k += 32 / int64_t(sizeof(T)))
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + k),
                          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + k)));
#endif
  for (; i < count; ++i) to[i] = from[i];
}

inline void finish_writes() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

// A dense operand and room for some of its panels.
template <typename T>
struct Operand {
  const T* data;
  int64_t columns;
  T* packed;
  Operand(const T* data, int64_t columns, int64_t panels, Scratch<T>& scratch)
      : data(data), columns(columns), packed(scratch.get(panels * columns * Vector<T>::panel)) {}
  T* panel(int64_t i) const { return packed + i * columns * Vector<T>::panel; }
};

template <int N>
struct Number {
  static constexpr int value = N;
};

// Calls f with `vectors` as a Number: `most`, half of it, a quarter, ... A panel has no other widths.
template <int most, typename F>
inline void with_vectors(int64_t vectors, F&& f) {
  if (most == 1 || vectors == most) return f(Number<most>{});
  if constexpr (most > 1) with_vectors<most / 2>(vectors, f);
}

// Where rows of vectors are, by their number: `width` numbers apart, known when compiled; `stride` numbers apart; or at
// offsets from a table, counted in vectors. from(i) has row i for its first.
template <typename T, int64_t width>
struct Even {
  T* data;
  T* at(int64_t i) const { return data + i * width; }
  Even from(int64_t i) const { return {at(i)}; }
};
template <typename T>
struct Apart {
  T* data;
  int64_t stride;
  T* at(int64_t i) const { return data + i * stride; }
  Apart from(int64_t i) const { return {at(i), stride}; }
};
template <typename T, int64_t lanes>
struct Listed {
  T* data;
  const uint32_t* offset;
  T* at(int64_t i) const { return data + offset[i] * lanes; }
};
// The same by the offset itself.
template <typename T, int64_t lanes>
struct Offset {
  T* data;
  T* at(int64_t i) const { return data + i * lanes; }
  Offset from(int64_t) const { return *this; }
};

// Something to be done after so many segments: by default nothing.
struct Nothing {
  TOPKAST_INLINE void operator()(int64_t) const {}
};

// Calls f(from, to) for pieces of [first, end), and meanwhile(to - from) after each. (Once for each segment,
// `meanwhile` would have a part in what a short one costs.)
template <typename Meanwhile, typename F>
TOPKAST_INLINE void for_some(int64_t first, int64_t end, Meanwhile&& meanwhile, F&& f) {
  constexpr int64_t some = 8;
  while (first < end) {
    const int64_t to = smaller(first + some, end);
    f(first, to);
    meanwhile(to - first);
    first = to;
  }
}

// Four numbers of a list, in two loads or one: loads of single numbers take turns with those of vectors, of which the
// inner loops have as many as there can be. (Zen 5, multiply-adds of 8 rows of 7 vectors: 47 cycles, so 35.)
template <typename Index>
struct Four {
  static_assert(sizeof(Index) == 2 || sizeof(Index) == 4, "a word has two or four of them");
  static constexpr int per_word = 8 / sizeof(Index);
  uint64_t word[4 / per_word];
  TOPKAST_INLINE explicit Four(const Index* list) { std::memcpy(word, list, sizeof word); }
  TOPKAST_INLINE int64_t operator[](int i) const {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    const int from_the_end = i % per_word;
#else
    const int from_the_end = per_word - 1 - i % per_word;
#endif
    return static_cast<Index>(word[i / per_word] >> (8 * sizeof(Index) * from_the_end));
  }
};

// Rows are visited in order of their number of elements: what comes next is not what follows in memory.
template <typename T, int V>
inline void prefetch_row(const T* row) {
  const char* line = reinterpret_cast<const char*>(row);
  for (int i = 0; i < V * TOPKAST_VECTOR_BYTES; i += 64) __builtin_prefetch(line + i);
}

// How many elements ahead a row of x is asked for when its block does not fit into L1.
constexpr int kAhead = 8;
constexpr int64_t kL1 = 32 * 1024;

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
