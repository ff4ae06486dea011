// The kernels for AVX-512. Compiled with flags of its own (CMakeLists.txt).
#define TOPKAST_ISA_NAMESPACE avx512
#define TOPKAST_VECTOR_BYTES 64
#include "kernels_impl.hpp"

namespace topkast::avx512 {
extern const Kernels<float> kFloat;
extern const Kernels<double> kDouble;
const Kernels<float> kFloat = table<float>("avx512");
const Kernels<double> kDouble = table<double>("avx512");
}  // namespace topkast::avx512
