// The kernels for any CPU: 16-byte vectors, SSE2 or NEON. Compiled with flags of its own (CMakeLists.txt).
#define TOPKAST_ISA_NAMESPACE portable
#define TOPKAST_VECTOR_BYTES 16
#include "kernels_impl.hpp"

namespace topkast::portable {
extern const Kernels<float> kFloat;
extern const Kernels<double> kDouble;
const Kernels<float> kFloat = table<float>("portable");
const Kernels<double> kDouble = table<double>("portable");
}  // namespace topkast::portable
