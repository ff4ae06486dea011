// The kernels for one instruction set. CMakeLists.txt compiles this file once for each, with its flags and with
//   TOPKAST_ISA_NAMESPACE  its name: portable (16-byte vectors, SSE2 or NEON), avx2 (with FMA), avx512;
//   TOPKAST_VECTOR_BYTES   how long its vectors are.
#include "conv_impl.hpp"
#include "few_impl.hpp"
#include "kernels_impl.hpp"
#include "peak_impl.hpp"
#include "permute_impl.hpp"
#include "scan_impl.hpp"

#define TOPKAST_TEXT(name) #name
#define TOPKAST_NAME(isa) TOPKAST_TEXT(isa)

namespace topkast::TOPKAST_ISA_NAMESPACE {
namespace {

template <typename T>
constexpr Kernels<T> all() {
  return {&product<T>, &few<T>,  &backward<T>,          &conv<T>, &conv_backward<T>,
          &scan<T>,    &permute, &ScratchBase::release, &peak<T>, TOPKAST_NAME(TOPKAST_ISA_NAMESPACE)};
}

}  // namespace

extern const Kernels<float> kFloat;
extern const Kernels<double> kDouble;
const Kernels<float> kFloat = all<float>();
const Kernels<double> kDouble = all<double>();

}  // namespace topkast::TOPKAST_ISA_NAMESPACE
