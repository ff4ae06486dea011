// The kernels for AVX-512. Compiled with flags of its own (CMakeLists.txt).
#define TOPKAST_ISA_NAMESPACE avx512
#define TOPKAST_VECTOR_BYTES 64
#include "conv_impl.hpp"
#include "few_impl.hpp"
#include "kernels_impl.hpp"

namespace topkast::avx512 {
extern const Kernels<float> kFloat;
extern const Kernels<double> kDouble;
const Kernels<float> kFloat = {
    &product<float>, &few<float>, &backward<float>, &conv<float>, &conv_input_grad<float>, &conv_weight_grad<float>,
    "avx512"};
const Kernels<double> kDouble = {
    &product<double>, &few<double>, &backward<double>, &conv<double>, &conv_input_grad<double>, &conv_weight_grad<double>,
    "avx512"};
}  // namespace topkast::avx512
