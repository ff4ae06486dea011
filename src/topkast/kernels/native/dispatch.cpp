// Which instruction set is used: decided once, here.
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels.hpp"

namespace topkast {

#define TOPKAST_DECLARE(isa)            \
  namespace isa {                       \
  extern const Kernels<float> kFloat;   \
  extern const Kernels<double> kDouble; \
  }
TOPKAST_DECLARE(portable)
#if defined(__x86_64__)
TOPKAST_DECLARE(avx2)
TOPKAST_DECLARE(avx512)
namespace avx512bf16 {
extern const HalfKernels kHalf;
}
#endif

namespace {

struct Choice {
  const Kernels<float>* single;
  const Kernels<double>* twice;
};

bool cpu_has(const char* isa) {
#if defined(__x86_64__)
  if (!std::strcmp(isa, "avx512"))
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
  if (!std::strcmp(isa, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return !std::strcmp(isa, "portable");
}

Choice named(const std::string& isa) {
#if defined(__x86_64__)
  if (isa == "avx512") return {&avx512::kFloat, &avx512::kDouble};
  if (isa == "avx2") return {&avx2::kFloat, &avx2::kDouble};
#endif
  return {&portable::kFloat, &portable::kDouble};
}

Choice choose() {
  if (const char* wanted = std::getenv("TOPKAST_ISA")) {
    if (!cpu_has(wanted))
      throw std::runtime_error(std::string("TOPKAST_ISA names ") + wanted +
                               ", which this CPU or build does not have; there are avx512, avx2, portable");
    return named(wanted);
  }
  for (const char* isa : {"avx512", "avx2"})
    if (cpu_has(isa)) return named(isa);
  return named("portable");
}

const Choice& chosen() {
  static const Choice choice = choose();
  return choice;
}

}  // namespace

template <>
const Kernels<float>& kernels<float>() {
  return *chosen().single;
}
template <>
const Kernels<double>& kernels<double>() {
  return *chosen().twice;
}

const HalfKernels* half_kernels() {
#if defined(__x86_64__)
  static const bool has_half =
      chosen().single == &avx512::kFloat && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512bf16");
  if (has_half) return &avx512bf16::kHalf;
#endif
  return nullptr;
}

}  // namespace topkast
