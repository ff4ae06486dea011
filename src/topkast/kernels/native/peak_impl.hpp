// How fast multiply-adds are at best, for one instruction set: what products are measured against.
#pragma once

#include "panels_impl.hpp"

namespace topkast {
namespace TOPKAST_ISA_NAMESPACE {

// Independent sums: as many as registers hold beside what is multiplied.
constexpr int kPeakSums = TOPKAST_VECTOR_BYTES == 64 ? 16 : 12;
constexpr int64_t kPeakRows = 8;  // of the memory that is read, 8 KB at most

// sum = sum * factor + addend, over and over. With `Loads` each addend comes from memory, which is in L1.
template <typename T, bool Loads>
T multiply_add(const typename Vector<T>::type* memory, int64_t rounds) {
  using vec = typename Vector<T>::type;
  const vec factor = memory[0], addend = memory[1];
  vec sum[kPeakSums];
  for (int s = 0; s < kPeakSums; ++s) sum[s] = memory[s];
  for (int64_t r = 0; r < rounds; ++r) {
    const vec* row = memory + r % kPeakRows * kPeakSums;
#pragma GCC unroll 16
    for (int s = 0; s < kPeakSums; ++s) sum[s] = sum[s] * factor + (Loads ? row[s] : addend);
  }
  T all = 0;
  for (int s = 0; s < kPeakSums; ++s) all += sum[s][0];
  return all;
}

// See `Kernels::peak`.
template <typename T>
double peak(bool loads, int num_threads) {
  using vec = typename Vector<T>::type;
  constexpr int64_t rounds = 1 << 18;
  // Over a third of a second: for so long two threads may share a core before the machine parts them, and half of the
  // peak would be measured.
  constexpr int repeats = 96;
  double best = 0;
  [[maybe_unused]] volatile T kept = 0;  // what is computed, so that it has to be
  for (int repeat = 0; repeat < repeats; ++repeat) {
    double seconds = 0;
#pragma omp parallel num_threads(num_threads) reduction(max : seconds)
    {
      vec memory[kPeakRows * kPeakSums];
      for (vec& each : memory)
        for (int i = 0; i < Vector<T>::lanes; ++i) each[i] = T(0.5);
#pragma omp barrier
      const double start = omp_get_wtime();
      kept = loads ? multiply_add<T, true>(memory, rounds) : multiply_add<T, false>(memory, rounds);
      seconds = omp_get_wtime() - start;
    }
    const double flops = 2.0 * Vector<T>::lanes * kPeakSums * rounds * num_threads;
    best = seconds > 0 && flops / seconds > best ? flops / seconds : best;
  }
  return best;
}

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
