// The products of a sparse layer. Row-major dense operands; no torch, no Python.
//
// Every output element has one owner and a fixed order of summation: results are the same to the last bit for
// every number of threads. Outputs are overwritten and must not alias inputs. All pointers may be unaligned.
#pragma once

#include <cstdint>

#include "keys.hpp"
#include "plan.hpp"
#include "rows.hpp"
#include "stream.hpp"

namespace topkast {

// A 2-D convolution as the sparse product on patches: columns are (channel, kernel row, kernel column), tokens are
// pixels.
//
// x is batch x channels x height x width, y is batch x rows x out_height x out_width, all contiguous. The sparse matrix
// has channels * kernel_height * kernel_width columns (groups are a matter of where its elements are).
struct Conv {
  int64_t batch, channels, height, width;
  int64_t out_height, out_width;
  int64_t kernel_height, kernel_width;
  int64_t stride_height, stride_width;
  int64_t padding_height, padding_width;
  int64_t dilation_height, dilation_width;

  int64_t taps() const { return kernel_height * kernel_width; }
  int64_t num_columns() const { return channels * taps(); }
  int64_t pixels() const { return out_height * out_width; }
};

// A number of 16 bits: the upper half of a float (bfloat16).
struct Half {
  uint16_t bits;
};

// What products of numbers of a type are added up in.
template <typename T>
struct SumOf {
  typedef T type;
};
template <>
struct SumOf<Half> {
  typedef float type;
};
template <typename T>
using Sum = typename SumOf<T>::type;

struct ScanResult {
  int64_t above;
  bool is_finite;
};

template <typename T>
struct Kernels {
  // y[t, r] = bias[r] + sum over elements (r, c) of values[slot] * x[t, c].
  //   x: tokens x sweep.num_columns;  y: tokens x sweep.num_rows;  bias: sweep.num_rows or null.
  void (*product)(const Sweep& sweep, const T* values, const T* x, int64_t tokens, const T* bias, T* y,
                  int num_threads);
  // The same for few tokens; their number is not bounded, but many are faster by the Sweep.
  void (*few)(const Rows& rows, const T* values, const T* x, int64_t tokens, const T* bias, T* y, int num_threads);
  // The backward pass of the product, for y = x A^T (`rows_are_outputs`) or y = x A; packs dy once for all results.
  //   dx[t, r] = sum over elements (r, c) of sweep of values[slot] * dy[t, c]: tokens x sweep.num_rows, or null.
  //   dvalues[e] = (dy^T x, or x^T dy) at element e of samples: samples.num_elements, or null.
  //   dbias[c] = sum over t of dy[t, c]: sweep.num_columns, or null.
  void (*backward)(const Sweep& sweep, const Samples& samples, bool rows_are_outputs, const T* values, const T* x,
                   const T* dy, int64_t tokens, T* dx, T* dvalues, T* dbias, int num_threads);
  // y[b, r, pixel] = bias[r] + sum over elements (r, c) of values[slot] * patch[c, pixel].
  void (*conv)(const Sweep& sweep, const Conv& geometry, const T* values, const T* x, const T* bias, T* y,
               int num_threads);
  // Its backward pass; dx and dvalues may be null.
  //   dx by the sweep: if `turned` is given, it is the convolution of dy that gives dx, and the sweep its matrix. Else
  //     the sweep is the transposed matrix, (channel, tap) x rows, and its tiles hold whole channels.
  //   dvalues[e] = sum over images and pixels of dy[row(e)] * patch[column(e)].
  void (*conv_backward)(const Sweep& sweep, const Samples& samples, const Conv& geometry, const Conv* turned,
                        const T* values, const T* x, const T* dy, T* dx, T* dvalues, int num_threads);
  // Compares magnitudes with a band, 64 to a word, and with their flags. Sets the bits in `inside` of those within the
  // band, and in `wrong` of those above it that are not active, or below it that are. Active ones count `favour` times.
  ScanResult (*scan)(const T* values, const uint8_t* active, int64_t n, Band<typename Key<T>::type> band, T favour,
                     uint64_t* inside, uint64_t* wrong);
  // One pass of the network of a Permutation, or of its inverse, over numbers below a * b, in place.
  void (*permute)(const Rounds& rounds, bool inverse, int64_t* x, int64_t count);
  // Gives back scratch memory that the calling thread keeps between products, in pieces of at least so many bytes.
  void (*release)(int64_t least);
  // FLOP/s of all threads doing nothing but multiply-adds, in registers or with a load from L1 each.
  double (*peak)(bool loads, int num_threads);
  const char* name;
};

// Products of linear layers with inputs, outputs and values of 16 bits. Sums, the bias and the gradients of values and
// of the bias have 32. Otherwise as in Kernels.
struct HalfKernels {
  void (*product)(const Sweep& sweep, const Half* values, const Half* x, int64_t tokens, const float* bias, Half* y,
                  int num_threads);
  void (*backward)(const Sweep& sweep, const Samples& samples, bool rows_are_outputs, const Half* values, const Half* x,
                   const Half* dy, int64_t tokens, Half* dx, float* dvalues, float* dbias, int num_threads);
};

// Null where the instruction set in use has no products of 16-bit numbers.
const HalfKernels* half_kernels();

// The best instruction set this CPU has, or the one named by TOPKAST_ISA ("avx2", "avx512", "portable").
template <typename T>
const Kernels<T>& kernels();

}  // namespace topkast
