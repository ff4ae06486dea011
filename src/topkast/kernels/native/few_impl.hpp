// y = x A^T for one token, or for as many as a vector has lanes, for one instruction set. See rows.hpp.
#pragma once

#include "panels_impl.hpp"
#include "rows.hpp"

namespace topkast {
namespace TOPKAST_ISA_NAMESPACE {

// Sums that do not wait for each other.
constexpr int kChains = 8;
// Below this many multiplications a second thread is not worth waking.
constexpr int64_t kWorthThreads = 1 << 15;

// Keeps the compiler from making one vector of sums whose terms have to be fetched one by one: putting them together
// would take longer than adding them up (gcc 12 does it: 1024 x 4096 at 90 % takes 0.9 ms then and 0.6 without).
template <typename S>
inline void keep_apart(S& sum) {
#if defined(__x86_64__)
  asm("" : "+x"(sum));
#elif defined(__aarch64__)
  asm("" : "+w"(sum));
#else
  (void)sum;
#endif
}

// The sum over a row's elements of value * x[column]; S is a number (one token) or a vector of tokens.
template <typename T, typename S>
inline S row_sum(const uint32_t* element, int64_t count, const T* values, const S* x) {
  S sum[kChains] = {};
  int64_t e = 0;
  for (; e + kChains <= count; e += kChains)
    for (int c = 0; c < kChains; ++c) {
      sum[c] += values[Rows::offset(element[e + c])] * x[Rows::column(element[e + c])];
      keep_apart(sum[c]);
    }
  for (; e < count; ++e) sum[0] += values[Rows::offset(element[e])] * x[Rows::column(element[e])];
  return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

template <typename T>
void product_of_one(const Rows& rows, const T* values, const T* x, const T* bias, T* y, int num_threads) {
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t r = 0; r < rows.num_rows(); ++r)
    y[r] = row_sum(rows.begin(r), rows.count(r), values + rows.first_slot(r), x) + (bias ? bias[r] : T(0));
}

// At most as many tokens as lanes: x is packed so that those of one column are a vector.
template <typename T>
void product_of_few(const Rows& rows, const T* values, const T* x, int64_t tokens, const T* bias, T* y,
                    int num_threads) {
  using vec = typename Vector<T>::type;
  thread_local Scratch<T> scratch;
  T* packed = scratch.get(rows.num_columns() * Vector<T>::lanes);
  pack(x, rows.num_columns(), Panel{0, tokens, Vector<T>::lanes}, 0, rows.num_columns(), packed);
  const vec* columns = reinterpret_cast<const vec*>(packed);
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t r = 0; r < rows.num_rows(); ++r) {
    const vec sum = row_sum(rows.begin(r), rows.count(r), values + rows.first_slot(r), columns);
    for (int64_t t = 0; t < tokens; ++t) y[t * rows.num_rows() + r] = sum[t] + (bias ? bias[r] : T(0));
  }
}

template <typename T>
void few(const Rows& rows, const T* values, const T* x, int64_t tokens, const T* bias, T* y, int num_threads) {
  if (tokens * rows.num_elements() < kWorthThreads) num_threads = 1;
  int64_t t = 0;
  for (; tokens - t > 1; t += Vector<T>::lanes) {
    const int64_t count = smaller(Vector<T>::lanes, tokens - t);
    product_of_few(rows, values, x + t * rows.num_columns(), count, bias, y + t * rows.num_rows(), num_threads);
    if (count < Vector<T>::lanes) return;
  }
  if (t < tokens) product_of_one(rows, values, x + t * rows.num_columns(), bias, y + t * rows.num_rows(), num_threads);
}

}  // namespace TOPKAST_ISA_NAMESPACE
}  // namespace topkast
