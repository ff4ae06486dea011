// What Python sees: Plans, and functions on them. Tensors come as addresses and lengths; every length is checked here,
// every index was checked when its Plan was built.
#include "bindings.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <array>
#include <limits>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "penalty.hpp"
#include "plan.hpp"
#include "positions.hpp"
#include "rows.hpp"
#include "select.hpp"
#include "table.hpp"
#include "within.hpp"

namespace nb = nanobind;
using namespace topkast;

namespace {

// Python takes ownership.
Plan* make_plan(int64_t num_rows, int64_t num_columns, Address positions, int index_bytes, Address active,
                int64_t num_slots, bool explores, int64_t taps, bool gathers, int num_threads) {
  checked_threads(num_threads);
  if (num_slots < 0) throw std::invalid_argument("|B| must not be negative");
  if (num_slots > 0 && (positions == 0 || active == 0)) throw std::invalid_argument("indices have no memory");
  const auto* flags = reinterpret_cast<const uint8_t*>(active);
  if (index_bytes == 4)
    return new Plan(num_rows, num_columns, reinterpret_cast<const int32_t*>(positions), flags, num_slots, explores,
                    taps, gathers, num_threads);
  if (index_bytes == 8)
    return new Plan(num_rows, num_columns, reinterpret_cast<const int64_t*>(positions), flags, num_slots, explores,
                    taps, gathers, num_threads);
  throw std::invalid_argument("indices must be int32 or int64");
}

uint64_t inspect_positions(Address positions, int index_bytes, Address active, int64_t num_slots, int64_t numel,
                           int num_threads) {
  if (num_slots < 0 || numel < 0) throw std::invalid_argument("a size must not be negative");
  if (num_slots > 0 && (positions == 0 || active == 0)) throw std::invalid_argument("indices have no memory");
  const auto* flags = reinterpret_cast<const uint8_t*>(active);
  const int threads = checked_threads(num_threads);
  if (index_bytes == 4) return inspect(numel, reinterpret_cast<const int32_t*>(positions), flags, num_slots, threads);
  if (index_bytes == 8) return inspect(numel, reinterpret_cast<const int64_t*>(positions), flags, num_slots, threads);
  throw std::invalid_argument("indices must be int32 or int64");
}

uint64_t inspect_changed(Address slots, Address enters, int64_t count, int num_threads) {
  return inspect_change(checked<const int64_t>("slots", slots, count, count),
                        checked<const uint8_t>("enters", enters, count, count), count, checked_threads(num_threads));
}

// Gives slots of B the other flag; see positions.hpp.
void flip_flags(Address positions, int index_bytes, Address active, int64_t num_slots, Address slots, int64_t count,
                Address flipped_positions, Address enters, int num_threads) {
  if (index_bytes != 4 && index_bytes != 8) throw std::invalid_argument("indices must be int32 or int64");
  auto* flags = checked<uint8_t>("active", active, num_slots, num_slots);
  const auto* flipped = checked<const int64_t>("slots", slots, count, count);
  auto* at = checked<int64_t>("positions", flipped_positions, count, count);
  auto* entering = checked<uint8_t>("enters", enters, count, count);
  if (index_bytes == 4)
    flip(checked<const int32_t>("indices", positions, num_slots, num_slots), flags, num_slots, flipped, count, at,
         entering, checked_threads(num_threads));
  else
    flip(checked<const int64_t>("indices", positions, num_slots, num_slots), flags, num_slots, flipped, count, at,
         entering, checked_threads(num_threads));
}

uint64_t glance_at(Address positions, int index_bytes, Address active, int64_t num_slots) {
  if (num_slots < 0) throw std::invalid_argument("a size must not be negative");
  if (num_slots > 0 && (positions == 0 || active == 0)) throw std::invalid_argument("indices have no memory");
  if (index_bytes != 4 && index_bytes != 8) throw std::invalid_argument("indices must be int32 or int64");
  return glance(reinterpret_cast<const void*>(positions), index_bytes, reinterpret_cast<const uint8_t*>(active),
                num_slots);
}

// The matrices of a convolution's Plan do not all have the sizes that the products of a linear layer take for granted.
void checked_linear(const Plan& plan) {
  if (plan.taps() != 1) throw std::invalid_argument("this Plan is for a convolution with more than one tap");
}

// Takes elements into the A of a Plan, or out of it.
void update_plan(Plan& plan, Address slots, Address positions, Address enters, int64_t count, int num_threads) {
  plan.update({checked<const int64_t>("slots", slots, count, count),
               checked<const int64_t>("positions", positions, count, count),
               checked<const uint8_t>("enters", enters, count, count), count},
              checked_threads(num_threads));
}

void update_table(Table& table, Address slots, Address enters, int64_t count) {
  table.update(checked<const int64_t>("slots", slots, count, count),
               checked<const uint8_t>("enters", enters, count, count), count);
}

template <typename T>
bool choose_within(Within& within, Address values, Address active, int64_t n, int64_t k, double favour,
                   int num_threads) {
  if (n < 0) throw std::invalid_argument("a size must not be negative");
  if (!(favour >= 1)) throw std::invalid_argument("what is in A must not count less than what is not");
  return within.choose(checked<const T>("values", values, n, n), checked<const uint8_t>("active", active, n, n), n, k,
                       favour, checked_threads(num_threads));
}

void write_changed(const Within& within, Address slots, int64_t count) {
  const std::vector<int64_t>& changed = within.changed();
  int64_t* out = checked<int64_t>("slots", slots, count, static_cast<int64_t>(changed.size()));
  std::copy(changed.begin(), changed.end(), out);
}

template <typename T>
double penalty_of(Address values, Address active, int64_t n, double outside, int power, int num_threads) {
  if (n < 0 || power < 1 || power > 2) throw std::invalid_argument("a penalty has a size, and a power of 1 or 2");
  return penalty(checked<const T>("values", values, n, n), checked<const uint8_t>("active", active, n, n), n, outside,
                 power, checked_threads(num_threads));
}

template <typename T>
void penalty_grad_of(Address values, Address active, int64_t n, double outside, int power, double factor, Address out,
                     int num_threads) {
  if (n < 0 || power < 1 || power > 2) throw std::invalid_argument("a penalty has a size, and a power of 1 or 2");
  penalty_grad(checked<const T>("values", values, n, n), checked<const uint8_t>("active", active, n, n), n, outside,
               power, factor, output<T>("out", out, n, n), checked_threads(num_threads));
}

template <typename T>
void shorten_step_of(Address values, Address before, Address active, int64_t n, double factor, int num_threads) {
  if (n < 0) throw std::invalid_argument("a size must not be negative");
  shorten_step(checked<T>("values", values, n, n), checked<const T>("before", before, n, n),
               checked<const uint8_t>("active", active, n, n), n, factor, checked_threads(num_threads));
}

template <typename T>
void decay_of(Address values, Address active, int64_t n, double inside, double outside, int num_threads) {
  if (n < 0) throw std::invalid_argument("a size must not be negative");
  decay(checked<T>("values", values, n, n), checked<const uint8_t>("active", active, n, n), n, inside, outside,
        checked_threads(num_threads));
}

// What has the products of linear layers.
template <typename T>
const auto& linear_kernels() {
  return kernels<T>();
}
template <>
const auto& linear_kernels<Half>() {
  if (const HalfKernels* kernels = half_kernels()) return *kernels;
  throw std::invalid_argument("the instruction set in use has no products of 16-bit numbers");
}

template <typename T>
void product(const Plan& plan, bool transpose, Address values, int64_t num_values, Address x, int64_t x_length,
             int64_t tokens, Address bias, int64_t bias_length, Address y, int64_t y_length, int num_threads) {
  const std::shared_lock<std::shared_mutex> together(plan.mutex());
  checked_linear(plan);
  const Sweep& s = transpose ? plan.columns() : plan.rows();
  linear_kernels<T>().product(s, checked<const T>("values", values, num_values, plan.num_slots()),
                              checked<const T>("x", x, x_length, checked_product(tokens, s.num_columns)), tokens,
                              bias ? checked<const Sum<T>>("bias", bias, bias_length, s.num_rows) : nullptr,
                              output<T>("y", y, y_length, checked_product(tokens, s.num_rows)),
                              checked_threads(num_threads));
}

// Python takes ownership.
Rows* make_rows(int64_t num_rows, int64_t num_columns, Address positions, int index_bytes, Address active,
                int64_t num_slots) {
  if (num_slots < 0) throw std::invalid_argument("|B| must not be negative");
  if (num_slots > 0 && (positions == 0 || active == 0)) throw std::invalid_argument("indices have no memory");
  const auto* flags = reinterpret_cast<const uint8_t*>(active);
  if (index_bytes == 4)
    return new Rows(num_rows, num_columns, reinterpret_cast<const int32_t*>(positions), flags, num_slots);
  if (index_bytes == 8)
    return new Rows(num_rows, num_columns, reinterpret_cast<const int64_t*>(positions), flags, num_slots);
  throw std::invalid_argument("indices must be int32 or int64");
}

template <typename T>
void few(const Rows& rows, Address values, int64_t num_values, Address x, int64_t x_length, int64_t tokens,
         Address bias, int64_t bias_length, Address y, int64_t y_length, int num_threads) {
  kernels<T>().few(rows, checked<const T>("values", values, num_values, rows.num_slots()),
                   checked<const T>("x", x, x_length, checked_product(tokens, rows.num_columns())), tokens,
                   bias ? checked<const T>("bias", bias, bias_length, rows.num_rows()) : nullptr,
                   output<T>("y", y, y_length, checked_product(tokens, rows.num_rows())), checked_threads(num_threads));
}

template <typename T>
void backward(const Plan& plan, bool transpose, Address values, int64_t num_values, Address x, int64_t x_length,
              Address dy, int64_t dy_length, int64_t tokens, Address dx, int64_t dx_length, Address dvalues,
              int64_t dvalues_length, Address dbias, int64_t dbias_length, int num_threads) {
  const std::shared_lock<std::shared_mutex> together(plan.mutex());
  checked_linear(plan);
  // The input gradient sweeps the other way than the forward product did.
  const Sweep& s = transpose ? plan.rows() : plan.columns();
  const int64_t inputs = checked_product(tokens, s.num_rows);
  linear_kernels<T>().backward(
      s, plan.samples(), !transpose, checked<const T>("values", values, num_values, plan.num_slots()),
      checked<const T>("x", x, x_length, inputs),
      checked<const T>("dy", dy, dy_length, checked_product(tokens, s.num_columns)), tokens,
      dx ? output<T>("dx", dx, dx_length, inputs) : nullptr,
      dvalues ? checked<Sum<T>>("dvalues", dvalues, dvalues_length, plan.samples().num_elements) : nullptr,
      dbias ? checked<Sum<T>>("dbias", dbias, dbias_length, s.num_columns) : nullptr, checked_threads(num_threads));
}

// The sizes of a convolution, in the order of Conv.
using Sizes = std::array<int64_t, 14>;

Conv checked_conv(const Plan& plan, const Sizes& n) {
  const Conv g{n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11], n[12], n[13]};
  for (int64_t size : n)
    if (size < 0 || size > std::numeric_limits<int32_t>::max())
      throw std::invalid_argument("a size of the convolution is out of range: " + std::to_string(size));
  if (g.stride_height < 1 || g.stride_width < 1 || g.dilation_height < 1 || g.dilation_width < 1)
    throw std::invalid_argument("stride and dilation must be at least 1");
  // Every tap of every output pixel lies within the padded input.
  auto reaches = [](int64_t out, int64_t stride, int64_t kernel, int64_t dilation) {
    return out == 0 ? 0 : (out - 1) * stride + (kernel - 1) * dilation + 1;
  };
  if (reaches(g.out_height, g.stride_height, g.kernel_height, g.dilation_height) > g.height + 2 * g.padding_height ||
      reaches(g.out_width, g.stride_width, g.kernel_width, g.dilation_width) > g.width + 2 * g.padding_width)
    throw std::invalid_argument("the output of the convolution is larger than its input allows");
  if (g.taps() != plan.taps() || g.num_columns() != plan.rows().num_columns)
    throw std::invalid_argument("the convolution does not fit its Plan");
  return g;
}

// The convolution of dy that gives dx, for stride 1: the padding is what is left of the kernel's reach.
Conv turned(const Conv& g, const Plan& plan) {
  const Conv t{g.batch,
               plan.rows().num_rows,
               g.out_height,
               g.out_width,
               g.height,
               g.width,
               g.kernel_height,
               g.kernel_width,
               1,
               1,
               g.dilation_height * (g.kernel_height - 1) - g.padding_height,
               g.dilation_width * (g.kernel_width - 1) - g.padding_width,
               g.dilation_height,
               g.dilation_width};
  if (g.stride_height != 1 || g.stride_width != 1 || t.padding_height < 0 || t.padding_width < 0)
    throw std::invalid_argument("a Plan that gathers needs stride 1 and a padding within the kernel's reach");
  if (g.out_height != g.height + 2 * g.padding_height - g.dilation_height * (g.kernel_height - 1) ||
      g.out_width != g.width + 2 * g.padding_width - g.dilation_width * (g.kernel_width - 1))
    throw std::invalid_argument("a Plan that gathers needs the whole output of the convolution");
  return t;
}

int64_t input_length(const Conv& g) {
  return checked_product(checked_product(g.batch, g.channels), checked_product(g.height, g.width));
}

int64_t output_length(const Conv& g, const Plan& plan) {
  return checked_product(checked_product(g.batch, plan.rows().num_rows), g.pixels());
}

template <typename T>
void conv(const Plan& plan, const Sizes& sizes, Address values, int64_t num_values, Address x, int64_t x_length,
          Address bias, int64_t bias_length, Address y, int64_t y_length, int num_threads) {
  const std::shared_lock<std::shared_mutex> together(plan.mutex());
  const Conv g = checked_conv(plan, sizes);
  kernels<T>().conv(plan.rows(), g, checked<const T>("values", values, num_values, plan.num_slots()),
                    checked<const T>("x", x, x_length, input_length(g)),
                    bias ? checked<const T>("bias", bias, bias_length, plan.rows().num_rows) : nullptr,
                    output<T>("y", y, y_length, output_length(g, plan)), checked_threads(num_threads));
}

template <typename T>
void conv_backward(const Plan& plan, const Sizes& sizes, Address values, int64_t num_values, Address x,
                   int64_t x_length, Address dy, int64_t dy_length, Address dx, int64_t dx_length, Address dvalues,
                   int64_t dvalues_length, int num_threads) {
  const std::shared_lock<std::shared_mutex> together(plan.mutex());
  const Conv g = checked_conv(plan, sizes);
  const int64_t inputs = input_length(g);
  const T* out = checked<const T>("dy", dy, dy_length, output_length(g, plan));
  const Conv back = dx && plan.gathers() ? turned(g, plan) : g;
  kernels<T>().conv_backward(
      plan.columns(), plan.samples(), g, plan.gathers() ? &back : nullptr,
      dx ? checked<const T>("values", values, num_values, plan.num_slots()) : nullptr,
      dvalues ? checked<const T>("x", x, x_length, inputs) : nullptr, out,
      dx ? output<T>("dx", dx, dx_length, inputs) : nullptr,
      dvalues ? checked<T>("dvalues", dvalues, dvalues_length, plan.samples().num_elements) : nullptr,
      checked_threads(num_threads));
}

template <typename T>
void select(Address x, int64_t n, int64_t k, Address out, int64_t out_length, int num_threads) {
  if (n < 0 || k < 0 || k > n)
    throw std::invalid_argument("k must be between 0 and " + std::to_string(n) + ", got " + std::to_string(k));
  top_k<T>(checked<const T>("x", x, n, n), n, k, checked<int64_t>("out", out, out_length, k),
           checked_threads(num_threads));
}

// Python takes ownership.
Table* make_table(int64_t num_rows, int64_t num_columns, Address positions, Address active, int64_t num_slots,
                  bool explores) {
  if (num_slots < 0) throw std::invalid_argument("|B| must not be negative");
  return new Table(num_rows, num_columns, checked<const int64_t>("indices", positions, num_slots, num_slots),
                   checked<const uint8_t>("active", active, num_slots, num_slots), num_slots, explores);
}

const int64_t* checked_ids(const Table& table, Address ids, int64_t tokens) {
  const int64_t* rows = checked<const int64_t>("ids", ids, tokens, tokens);
  for (int64_t t = 0; t < tokens; ++t)
    if (rows[t] < 0 || rows[t] >= table.num_rows())
      throw std::invalid_argument("ids must lie in [0, " + std::to_string(table.num_rows()) + "), got " +
                                  std::to_string(rows[t]));
  return rows;
}

template <typename T>
void lookup(const Table& table, Address values, int64_t num_values, Address ids, int64_t tokens, Address out,
            int64_t out_length, int num_threads) {
  table.lookup(checked<const T>("values", values, num_values, table.num_slots()), checked_ids(table, ids, tokens),
               tokens, output<T>("out", out, out_length, checked_product(tokens, table.num_columns())),
               checked_threads(num_threads));
}

template <typename T>
void lookup_grad(const Table& table, Address ids, int64_t tokens, Address grad, int64_t grad_length, Address dvalues,
                 int64_t dvalues_length, int num_threads) {
  table.lookup_grad(checked_ids(table, ids, tokens), tokens,
                    checked<const T>("grad", grad, grad_length, checked_product(tokens, table.num_columns())),
                    checked<T>("dvalues", dvalues, dvalues_length, table.num_slots()), checked_threads(num_threads));
}

// Scratch memory of this thread, and what malloc keeps of memory that was freed in small pieces: after lists as long as
// B were compared, that is hundreds of megabytes for a layer of 10^9 weights.
void release_scratch(int64_t least) {
  kernels<float>().release(least);
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

nb::dict plan_sizes() {
  nb::dict sizes;
  sizes["look_ahead"] = PlanSizes::look_ahead;
  sizes["group"] = PlanSizes::group;
  sizes["narrow_row"] = PlanSizes::narrow_row;
  sizes["small_block"] = PlanSizes::small_block;
  sizes["large_block"] = PlanSizes::large_block;
  sizes["sweep_density"] = PlanSizes::sweep_density;
  sizes["samples_density"] = PlanSizes::samples_density;
  sizes["taps_block"] = PlanSizes::taps_block;
  sizes["taps_sweep_density"] = PlanSizes::taps_sweep_density;
  sizes["taps_samples_density"] = PlanSizes::taps_samples_density;
  sizes["small_tile"] = PlanSizes::small_tile;
  sizes["large_tile"] = PlanSizes::large_tile;
  sizes["many_rows"] = PlanSizes::many_rows;
  sizes["samples_tiles"] = PlanSizes::samples_tiles;
  sizes["least_samples_tile"] = PlanSizes::least_samples_tile;
  sizes["most_samples_tile"] = PlanSizes::most_samples_tile;
  sizes["slack_share"] = PlanSizes::slack_share;
  sizes["least_slack"] = PlanSizes::least_slack;
  return sizes;
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "The compiled core of topkast.";
  // A model that lives until the interpreter ends is normal in a script, and its Plans with it.
  nb::set_leak_warnings(false);
  nb::class_<Plan>(m, "Plan")
      .def(nb::new_(&make_plan), nb::arg("num_rows"), nb::arg("num_columns"), nb::arg("positions"),
           nb::arg("index_bytes"), nb::arg("active"), nb::arg("num_slots"), nb::arg("explores"), nb::arg("taps"),
           nb::arg("gathers"), nb::arg("num_threads"), nb::call_guard<nb::gil_scoped_release>())
      .def("update", &update_plan, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("num_slots", &Plan::num_slots)
      .def_prop_ro("explores", &Plan::explores)
      .def_prop_ro("num_samples", [](const Plan& p) { return p.samples().num_elements; })
      .def_prop_ro("num_bytes", &Plan::num_bytes);
  nb::class_<Table>(m, "Table")
      .def(nb::new_(&make_table), nb::call_guard<nb::gil_scoped_release>())
      .def("update", &update_table)
      .def_prop_ro("num_bytes", &Table::num_bytes);
  nb::class_<Within>(m, "Within")
      .def(nb::init<>())
      .def("choose_float", &choose_within<float>, nb::call_guard<nb::gil_scoped_release>())
      .def("choose_double", &choose_within<double>, nb::call_guard<nb::gil_scoped_release>())
      .def("write", &write_changed)
      .def_prop_ro("threshold", &Within::threshold)
      .def_prop_ro("num_changed", [](const Within& w) { return static_cast<int64_t>(w.changed().size()); });
  nb::class_<Rows>(m, "Rows")
      .def(nb::new_(&make_rows), nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("num_bytes", &Rows::num_bytes);
  m.def("penalty_float", &penalty_of<float>, nb::call_guard<nb::gil_scoped_release>());
  m.def("penalty_double", &penalty_of<double>, nb::call_guard<nb::gil_scoped_release>());
  m.def("penalty_grad_float", &penalty_grad_of<float>, nb::call_guard<nb::gil_scoped_release>());
  m.def("penalty_grad_double", &penalty_grad_of<double>, nb::call_guard<nb::gil_scoped_release>());
  m.def("shorten_step_float", &shorten_step_of<float>, nb::call_guard<nb::gil_scoped_release>());
  m.def("shorten_step_double", &shorten_step_of<double>, nb::call_guard<nb::gil_scoped_release>());
  m.def("decay_float", &decay_of<float>, nb::call_guard<nb::gil_scoped_release>());
  m.def("decay_double", &decay_of<double>, nb::call_guard<nb::gil_scoped_release>());
  m.def("few_float", &few<float>, nb::call_guard<nb::gil_scoped_release>());
  m.def("few_double", &few<double>, nb::call_guard<nb::gil_scoped_release>());
  m.def("lookup_float", &lookup<float>, nb::call_guard<nb::gil_scoped_release>());
  m.def("lookup_double", &lookup<double>, nb::call_guard<nb::gil_scoped_release>());
  m.def("lookup_grad_float", &lookup_grad<float>, nb::call_guard<nb::gil_scoped_release>());
  m.def("lookup_grad_double", &lookup_grad<double>, nb::call_guard<nb::gil_scoped_release>());
  m.def("product_float", &product<float>, nb::call_guard<nb::gil_scoped_release>());
  m.def("product_double", &product<double>, nb::call_guard<nb::gil_scoped_release>());
  m.def("product_bfloat16", &product<Half>, nb::call_guard<nb::gil_scoped_release>());
  m.def("backward_bfloat16", &backward<Half>, nb::call_guard<nb::gil_scoped_release>());
  m.def("backward_float", &backward<float>, nb::call_guard<nb::gil_scoped_release>());
  m.def("backward_double", &backward<double>, nb::call_guard<nb::gil_scoped_release>());
  m.def("top_k_float", &select<float>, nb::call_guard<nb::gil_scoped_release>());
  m.def("top_k_double", &select<double>, nb::call_guard<nb::gil_scoped_release>());
  m.def("conv_float", &conv<float>, nb::call_guard<nb::gil_scoped_release>());
  m.def("conv_double", &conv<double>, nb::call_guard<nb::gil_scoped_release>());
  m.def("conv_backward_float", &conv_backward<float>, nb::call_guard<nb::gil_scoped_release>());
  m.def("conv_backward_double", &conv_backward<double>, nb::call_guard<nb::gil_scoped_release>());
  bind_lists(m);
  bind_stream(m);
  m.def("inspect", &inspect_positions, nb::call_guard<nb::gil_scoped_release>());
  m.def("inspect_change", &inspect_changed);
  m.def("flip", &flip_flags);
  m.def("glance", &glance_at);
  m.def("plan_sizes", &plan_sizes);
  m.def("release_scratch", &release_scratch);
  m.def(
      "peak", [](bool loads, int num_threads) { return kernels<float>().peak(loads, checked_threads(num_threads)); },
      nb::call_guard<nb::gil_scoped_release>());
  m.def("has_bfloat16", [] { return half_kernels() != nullptr; });
  m.def("isa", [] { return std::string(kernels<float>().name); });
}
