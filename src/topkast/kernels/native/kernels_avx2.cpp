// The kernels for AVX2 with FMA. Compiled with flags of its own (CMakeLists.txt).
#define TOPKAST_ISA_NAMESPACE avx2
#define TOPKAST_VECTOR_BYTES 32
#include "kernels_impl.hpp"

namespace topkast::avx2 {
extern const Kernels<float> kFloat;
extern const Kernels<double> kDouble;
const Kernels<float> kFloat = table<float>("avx2");
const Kernels<double> kDouble = table<double>("avx2");
}  // namespace topkast::avx2
