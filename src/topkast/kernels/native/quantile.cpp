// Quantiles of the normal distribution from +, -, *, / and square roots alone. (The logarithm of one C library differs
// from another's in the last bit, which would make weights differ between machines.) Compiled without contraction
// of products and sums into one rounding, for the same reason.
#include <cmath>

#include "stream.hpp"

namespace topkast {
namespace {

// log(x) for normal x > 0: x = m 2^e with m in [sqrt(1/2), sqrt(2)), log m = 2 artanh((m - 1) / (m + 1)).
double logarithm(double x) {
  int exponent;
  double m = std::frexp(x, &exponent);
  if (m < 0.70710678118654752440) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1), square = s * s;
  double sum = 0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return exponent * 0.69314718055994530942 + 2 * s * sum;
}

template <int N>
double polynomial(const double (&coefficient)[N], double x) {
  double sum = coefficient[N - 1];
  for (int i = N - 2; i >= 0; --i) sum = sum * x + coefficient[i];
  return sum;
}

// Coefficients of Wichura's rational approximations (Applied Statistics 37, 1988, algorithm AS 241), good to 16 digits.
constexpr double kCentreTop[] = {3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
                                 1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
                                 3.3430575583588128105e4, 2.5090809287301226727e3};
constexpr double kCentreBottom[] = {1.0,
                                    4.2313330701600911252e1,
                                    6.8718700749205790830e2,
                                    5.3941960214247511077e3,
                                    2.1213794301586595867e4,
                                    3.9307895800092710610e4,
                                    2.8729085735721942674e4,
                                    5.2264952788528545610e3};
constexpr double kTailTop[] = {1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                               3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                               2.27238449892691845833e-2, 7.74545014278341407640e-4};
constexpr double kTailBottom[] = {1.0,
                                  2.05319162663775882187e0,
                                  1.67638483018380384940e0,
                                  6.89767334985100004550e-1,
                                  1.48103976427480074590e-1,
                                  1.51986665636164571966e-2,
                                  5.47593808499534494600e-4,
                                  1.05075007164441684324e-9};
constexpr double kFarTop[] = {6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
                              2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                              2.71155556874348757815e-5, 2.01033439929228813265e-7};
constexpr double kFarBottom[] = {1.0,
                                 5.99832206555887937690e-1,
                                 1.36929880922735805310e-1,
                                 1.48753612908506148525e-2,
                                 7.86869131145613259100e-4,
                                 1.84631831751005468180e-5,
                                 1.42151175831644588870e-7,
                                 2.04426310338993978564e-15};

// z with P(|Z| <= z) = inside and P(|Z| > z) = outside = 1 - inside, both given so that neither end loses digits.
double normal_magnitude(double inside, double outside) {
  const double q = inside / 2;
  if (q <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial(kCentreTop, r) / polynomial(kCentreBottom, r);
  }
  const double r = std::sqrt(-logarithm(outside / 2));
  return r <= 5 ? polynomial(kTailTop, r - 1.6) / polynomial(kTailBottom, r - 1.6)
                : polynomial(kFarTop, r - 5) / polynomial(kFarBottom, r - 5);
}

}  // namespace

double Magnitudes::at(int64_t rank, int64_t n) const {
  const double above = (static_cast<double>(rank) + 0.5) / static_cast<double>(n);
  const double below = (static_cast<double>(n - rank) - 0.5) / static_cast<double>(n);
  if (kind == Kind::uniform) return scale * below;
  return scale * normal_magnitude(mass * below, (1 - mass) + mass * above);
}

}  // namespace topkast
