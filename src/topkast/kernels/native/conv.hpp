// A 2-D convolution as the sparse product on patches: columns are (channel, kernel row, kernel column), tokens are
// pixels.
#pragma once

#include <cstdint>

namespace topkast {

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

}  // namespace topkast
