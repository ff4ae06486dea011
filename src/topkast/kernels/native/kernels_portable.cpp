// The kernels for any CPU: 16-byte vectors, SSE2 or NEON. Compiled with flags of its own (CMakeLists.txt).
#define TOPKAST_ISA_NAMESPACE portable
#define TOPKAST_VECTOR_BYTES 16
#include "conv_impl.hpp"
#include "few_impl.hpp"
#include "kernels_impl.hpp"

namespace topkast::portable {
extern const Kernels<float> kFloat;
extern const Kernels<double> kDouble;
const Kernels<float> kFloat = {
    &product<float>, &few<float>, &backward<float>, &conv<float>, &conv_input_grad<float>, &conv_weight_grad<float>,
    "portable"};
const Kernels<double> kDouble = {
    &product<double>, &few<double>, &backward<double>, &conv<double>, &conv_input_grad<double>, &conv_weight_grad<double>,
    "portable"};
}  // namespace topkast::portable
