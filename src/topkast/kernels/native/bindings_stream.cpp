// What Python sees of streams; see bindings.cpp.
#include <nanobind/nanobind.h>

#include <algorithm>

#include "bindings.hpp"
#include "known.hpp"
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

// What is not known, checked: a wrong rank would lead the permutation anywhere.
Unknown unknown(const Stream& stream, int64_t cursor, Address early, int64_t num_early) {
  const int64_t n = stream.size();
  if (cursor < 0 || cursor > n) throw std::invalid_argument("cursor must lie in [0, " + std::to_string(n) + "]");
  const auto* ranks = checked<const int64_t>("early", early, num_early, num_early);
  for (int64_t i = 0; i < num_early; ++i)
    if (ranks[i] < (i ? ranks[i - 1] + 1 : cursor) || ranks[i] >= n)
      throw std::invalid_argument("early must be increasing ranks from the cursor on");
  return {stream, cursor, ranks, num_early};
}

template <typename T>
void largest_of(const Stream& stream, int64_t cursor, Address early, int64_t num_early, Address b, Address b_values,
                int64_t num_b, Address returned, Address returned_values, int64_t num_returned, int index_bytes,
                int64_t k, Address positions, Address values, int num_threads) {
  if (k < 1 || k > stream.size()) throw std::invalid_argument("k must lie in [1, n], got " + std::to_string(k));
  with_integer(index_bytes, [&](auto number) {
    using P = decltype(number);
    const List<T, P> mine{checked<const P>("B", b, num_b, num_b), checked<const T>("values", b_values, num_b, num_b),
                          num_b};
    const List<T, P> left{checked<const P>("returned", returned, num_returned, num_returned),
                          checked<const T>("returned values", returned_values, num_returned, num_returned),
                          num_returned};
    largest<T, P>(unknown(stream, cursor, early, num_early), mine, left, k,
                  output<int64_t>("positions", positions, k, k), output<T>("values", values, k, k),
                  checked_threads(num_threads));
  });
}

// Python takes ownership.
template <typename T>
Entrants* make_entrants(const Stream& stream, int64_t cursor, Address early, int64_t num_early, Address positions,
                        int64_t count, Address source, int source_bytes, Address returned_values, int64_t num_returned,
                        Address values, int num_threads) {
  return with_integer(source_bytes, [&](auto number) {
    using S = decltype(number);
    return new Entrants(unknown(stream, cursor, early, num_early),
                        checked<const int64_t>("positions", positions, count, count), count,
                        checked<const S>("source", source, count, count),
                        checked<const T>("returned values", returned_values, num_returned, num_returned), num_returned,
                        output<T>("values", values, count, count), checked_threads(num_threads));
  });
}

void write_early(const Entrants& entrants, Address out, int64_t length) {
  const auto& early = entrants.early();
  int64_t* to = checked<int64_t>("out", out, length, static_cast<int64_t>(early.size()));
  std::copy(early.begin(), early.end(), to);
}

template <typename T>
void bind(nb::module_& m, nb::class_<Stream>& stream, const char* suffix) {
  const std::string end = std::string("_") + suffix;
  stream.def(("count_at_least" + end).c_str(), &Stream::count_at_least<T>);
  stream.def(("look_up" + end).c_str(), &look_up<T>, nb::call_guard<nb::gil_scoped_release>());
  stream.def(("dense" + end).c_str(), &dense<T>, nb::call_guard<nb::gil_scoped_release>());
  stream.def(("largest" + end).c_str(), &largest_of<T>, nb::call_guard<nb::gil_scoped_release>());
  m.def(("entrants" + end).c_str(), &make_entrants<T>, nb::call_guard<nb::gil_scoped_release>(),
        nb::rv_policy::take_ownership);
}

}  // namespace

void bind_stream(nb::module_& m) {
  nb::class_<Entrants>(m, "Entrants")
      .def_prop_ro("cursor", &Entrants::cursor)
      .def_prop_ro("num_early", [](const Entrants& e) { return static_cast<int64_t>(e.early().size()); })
      .def("write_early", &write_early);
  nb::class_<Stream> stream(m, "Stream");
  stream.def(nb::init<int64_t, uint64_t, int, double, double>());
  stream.def("positions", &positions, nb::call_guard<nb::gil_scoped_release>());
  bind<float>(m, stream, "float");
  bind<double>(m, stream, "double");
}

}  // namespace topkast
