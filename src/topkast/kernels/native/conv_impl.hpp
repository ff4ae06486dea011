// The convolution kernels, for one instruction set: one tap by pixels, several by images.
#pragma once

#include "image_conv_impl.hpp"
#include "pixel_conv_impl.hpp"

namespace topkast {
namespace TOPKAST_ISA_NAMESPACE {

template <typename T>
void conv(const Sweep& s, const Conv& g, const T* values, const T* x, const T* bias, T* y, int num_threads) {
  g.taps() == 1 ? pixel_conv(s, g, values, x, bias, y, num_threads) : image_conv(s, g, values, x, bias, y, num_threads);
}

template <typename T>
void conv_backward(const Sweep& s, const Samples& m, const Conv& g, const Conv* turned, const T* values, const T* x,
                   const T* dy, T* dx, T* dvalues, int num_threads) {
  if (g.taps() == 1) return pixel_backward(s, m, g, values, x, dy, dx, dvalues, num_threads);
  if (dx && turned)
    image_conv(s, *turned, values, dy, static_cast<const T*>(nullptr), dx, num_threads);
  else if (dx)
    image_input_grad(s, g, values, dy, dx, num_threads);
  if (dvalues) image_weight_grad(m, g, x, dy, dvalues, num_threads);
}

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
