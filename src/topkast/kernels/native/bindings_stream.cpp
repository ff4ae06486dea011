// What Python sees of streams; see bindings.cpp.
#include <nanobind/nanobind.h>

#include "bindings.hpp"
#include "stream.hpp"

namespace nb = nanobind;

namespace topkast {
namespace {

void positions(const Stream& stream, int64_t first, int64_t count, Address out, int64_t out_length, int num_threads) {
  stream.positions(first, count, checked<int64_t>("out", out, out_length, count), checked_threads(num_threads));
}

template <typename T>
void look_up(const Stream& stream, Address positions, int64_t count, Address ranks, int64_t num_ranks, Address values,
             int64_t num_values, int num_threads) {
  stream.look_up<T>(checked<const int64_t>("positions", positions, count, count), count,
                    checked<int64_t>("ranks", ranks, num_ranks, count),
                    values == 0 ? nullptr : checked<T>("values", values, num_values, count),
                    checked_threads(num_threads));
}

template <typename T>
void dense(const Stream& stream, Address out, int64_t length, int num_threads) {
  stream.dense<T>(checked<T>("out", out, length, stream.size()), checked_threads(num_threads));
}

template <typename T>
void merge(Address a, int64_t num_a, Address a_values, int64_t num_a_values, Address b, int64_t num_b, Address b_values,
           int64_t num_b_values, Address out, int64_t num_out, Address out_values, int64_t num_out_values) {
  merge_sorted<T>(checked<const int64_t>("a", a, num_a, num_a),
                  checked<const T>("a's values", a_values, num_a_values, num_a), num_a,
                  checked<const int64_t>("b", b, num_b, num_b),
                  checked<const T>("b's values", b_values, num_b_values, num_b), num_b,
                  checked<int64_t>("out", out, num_out, num_a + num_b),
                  checked<T>("out's values", out_values, num_out_values, num_a + num_b));
}

template <typename T>
void bind(nb::module_& m, nb::class_<Stream>& stream, const char* suffix) {
  const std::string end = std::string("_") + suffix;
  stream.def(("count_at_least" + end).c_str(), &Stream::count_at_least<T>);
  stream.def(("look_up" + end).c_str(), &look_up<T>, nb::call_guard<nb::gil_scoped_release>());
  stream.def(("dense" + end).c_str(), &dense<T>, nb::call_guard<nb::gil_scoped_release>());
  m.def(("merge" + end).c_str(), &merge<T>, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

void bind_stream(nb::module_& m) {
  nb::class_<Stream> stream(m, "Stream");
  stream.def(nb::init<int64_t, uint64_t, int, double, double>());
  stream.def("positions", &positions, nb::call_guard<nb::gil_scoped_release>());
  bind<float>(m, stream, "float");
  bind<double>(m, stream, "double");
}

}  // namespace topkast
