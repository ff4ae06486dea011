// What Python sees of lists of positions; see bindings.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <vector>

#include "bindings.hpp"
#include "floor.hpp"
#include "positions.hpp"
#include "slots.hpp"

namespace nb = nanobind;

namespace topkast {
namespace {

// A list as Python gives it: where it is, how long, and the bytes of a position.
struct Positions {
  Address address;
  int64_t length;
  int bytes;

  template <typename P>
  const P* as(const char* name) const {
    return checked<const P>(name, address, length, length);
  }
};

void locate_in(Address before, int64_t num_before, int before_bytes, Address after, int64_t num_after, int after_bytes,
               Address source, int64_t source_length, int source_bytes, int num_threads) {
  const Positions from{before, num_before, before_bytes}, to{after, num_after, after_bytes};
  if (source_bytes == 4 && num_before > INT32_MAX) throw std::invalid_argument("int32 does not hold these places");
  with_integer(before_bytes, [&](auto p) {
    with_integer(after_bytes, [&](auto q) {
      with_integer(source_bytes, [&](auto s) {
        using S = decltype(s);
        locate(from.as<decltype(p)>("before"), num_before, to.as<decltype(q)>("after"), num_after,
               output<S>("source", source, source_length, num_after), checked_threads(num_threads));
      });
    });
  });
}

// Python takes ownership.
Absent* make_absent(Address list, int64_t num_list, int list_bytes, Address other, int64_t num_other, int other_bytes,
                    int num_threads) {
  const Positions mine{list, num_list, list_bytes}, theirs{other, num_other, other_bytes};
  return with_integer(list_bytes, [&](auto p) {
    return with_integer(other_bytes, [&](auto q) {
      return new Absent(mine.as<decltype(p)>("list"), num_list, theirs.as<decltype(q)>("other"), num_other,
                        checked_threads(num_threads));
    });
  });
}

void write_absent(const Absent& absent, Address out, int64_t length, int bytes, int num_threads) {
  with_integer(bytes, [&](auto s) {
    absent.write(output<decltype(s)>("out", out, length, absent.size()), checked_threads(num_threads));
  });
}

// Python takes ownership.
Union* make_union(Address a, int64_t num_a, Address b, int64_t num_b, int bytes, Address dropped, int64_t num_dropped,
                  int dropped_bytes, int num_threads) {
  const Positions first{a, num_a, bytes}, second{b, num_b, bytes}, places{dropped, num_dropped, dropped_bytes};
  return with_integer(bytes, [&](auto p) {
    return with_integer(dropped_bytes, [&](auto s) {
      using P = decltype(p);
      auto made = std::make_unique<Union>(first.as<P>("a"), num_a, places.as<decltype(s)>("dropped"), num_dropped,
                                          second.as<P>("b"), num_b, checked_threads(num_threads));
      if (!made->is_valid()) throw std::invalid_argument("dropped must lie in [-1, " + std::to_string(num_a) + ")");
      return made.release();
    });
  });
}

void write_positions(Union& both, Address a, int64_t num_a, Address b, int64_t num_b, Address out, int64_t length,
                     int bytes, int num_threads) {
  with_integer(bytes, [&](auto p) {
    using P = decltype(p);
    both.write_positions(checked<const P>("a", a, num_a, both.num_a()), checked<const P>("b", b, num_b, both.num_b()),
                         output<P>("out", out, length, both.size()), checked_threads(num_threads));
  });
}

template <typename T>
void write_numbers(const Union& both, Address a, int64_t num_a, Address b, int64_t num_b, Address out, int64_t length,
                   int num_threads) {
  if (!both.has_order()) throw std::invalid_argument("positions are written before numbers");
  both.write_numbers(checked<const T>("a", a, num_a, both.num_a()), checked<const T>("b", b, num_b, both.num_b()),
                     output<T>("out", out, length, both.size()), checked_threads(num_threads));
}

void mark_bits(Address positions, int64_t count, int bytes, Address bits, int64_t num_bytes, int64_t numel,
               int num_threads) {
  const Positions mine{positions, count, bytes};
  auto* out = checked<uint8_t>("bits", bits, num_bytes, (numel + 7) / 8);
  with_integer(bytes, [&](auto p) {
    const auto* list = mine.as<decltype(p)>("positions");
    check_positions(numel, list, count);
    mark(list, count, out, checked_threads(num_threads));
  });
}

// Python takes ownership.
Marked* make_marked(Address bits, int64_t num_bytes, int num_threads) {
  return new Marked(checked<const uint8_t>("bits", bits, num_bytes, num_bytes), num_bytes,
                    checked_threads(num_threads));
}

void write_marked(const Marked& marked, Address bits, int64_t num_bytes, Address out, int64_t length, int bytes,
                  int num_threads) {
  with_integer(bytes, [&](auto p) {
    using P = decltype(p);
    if (sizeof(P) == 4 && num_bytes > INT32_MAX / 8) throw std::invalid_argument("int32 does not hold these positions");
    marked.write(checked<const uint8_t>("bits", bits, num_bytes, marked.num_bytes()),
                 output<P>("out", out, length, marked.size()), checked_threads(num_threads));
  });
}

template <typename T>
void gather_places(Address from, int64_t num_from, Address source, int64_t count, int source_bytes, Address fill,
                   Address out, int64_t out_length, int num_threads) {
  const bool is_good = with_integer(source_bytes, [&](auto s) {
    return gather(checked<const T>("from", from, num_from, num_from), num_from,
                  checked<const decltype(s)>("source", source, count, count), count,
                  *checked<const T>("fill", fill, 1, 1), output<T>("out", out, out_length, count),
                  checked_threads(num_threads));
  });
  if (!is_good) throw std::invalid_argument("source must lie in [-1, " + std::to_string(num_from) + ")");
}

// `lines` are rows, columns, taps, groups, and how many a row and a column keep.
using Sizes = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>;

Lines checked_lines(const Sizes& sizes) {
  const auto [rows, columns, taps, groups, per_row, per_column] = sizes;
  checked_product(checked_product(rows, columns), taps);
  checked_product(columns, groups);
  if (std::min({rows, columns, taps, groups}) < 1 || rows % groups != 0)
    throw std::invalid_argument("lines must have positive sizes, and groups of one size");
  return {rows, columns, taps, groups, per_row, per_column};
}

template <typename T>
void choose_floored(Floored& floored, const Sizes& sizes, double least, double bound, Address values, int64_t n,
                    Address positions, int64_t num_positions, int bytes, Address active, int64_t num_active,
                    Address wrong, int64_t num_wrong) {
  if (n < 0 || num_wrong < 0) throw std::invalid_argument("a size must not be negative");
  const Lines lines = checked_lines(sizes);
  with_integer(bytes, [&](auto p) {
    floored.choose(checked<const T>("values", values, n, n),
                   checked<const decltype(p)>("positions", positions, num_positions, n),
                   checked<const uint8_t>("active", active, num_active, n), n,
                   checked<const int64_t>("wrong", wrong, num_wrong, num_wrong), num_wrong, lines, least, bound);
  });
}

void write_floored(const Floored& floored, Address slots, int64_t count) {
  const std::vector<int64_t>& changed = floored.changed();
  int64_t* out = checked<int64_t>("slots", slots, count, static_cast<int64_t>(changed.size()));
  std::copy(changed.begin(), changed.end(), out);
}

}  // namespace

void bind_lists(nb::module_& m) {
  const auto release = nb::call_guard<nb::gil_scoped_release>();
  m.def("locate", &locate_in, release);
  nb::class_<Absent>(m, "Absent")
      .def(nb::new_(&make_absent), release)
      .def_prop_ro("size", &Absent::size)
      .def("write", &write_absent, release);
  nb::class_<Union>(m, "Union")
      .def(nb::new_(&make_union), release)
      .def_prop_ro("size", &Union::size)
      .def("write_positions", &write_positions, release)
      .def("write_float", &write_numbers<float>, release)
      .def("write_double", &write_numbers<double>, release);
  m.def("mark", &mark_bits, release);
  nb::class_<Marked>(m, "Marked")
      .def(nb::new_(&make_marked), release)
      .def_prop_ro("size", &Marked::size)
      .def("write", &write_marked, release);
  nb::class_<Floored>(m, "Floored")
      .def(nb::init<>())
      .def("choose_float", &choose_floored<float>, release)
      .def("choose_double", &choose_floored<double>, release)
      .def("write", &write_floored)
      .def_prop_ro("least", &Floored::least)
      .def_prop_ro("num_changed", [](const Floored& f) { return static_cast<int64_t>(f.changed().size()); });
  m.def("gather_1", &gather_places<uint8_t>, release);
  m.def("gather_2", &gather_places<uint16_t>, release);
  m.def("gather_4", &gather_places<uint32_t>, release);
  m.def("gather_8", &gather_places<uint64_t>, release);
}

}  // namespace topkast
