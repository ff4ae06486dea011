// Products in 16 bits; compiled for AVX-512 with its instructions for bfloat16. dispatch.cpp chooses.
#include "half_impl.hpp"

namespace topkast::TOPKAST_ISA_NAMESPACE {

extern const HalfKernels kHalf;
const HalfKernels kHalf = {&product<Half>, &backward<Half>};

}  // namespace topkast::TOPKAST_ISA_NAMESPACE
