// CUDA's mathematical functions that C++ does not have. The translator includes it for texts that name any.
//
// Single precision is rounded from double, in which the results are good to some units in the last place.
#pragma once

#include <cmath>

#include "kernel.h"

namespace cuhost {

constexpr double pi = 3.14159265358979323846, sqrt_of_2 = 1.41421356237309504880;
constexpr double slope_of_erf = 1.12837916709551257390;  // at 0: 2 / sqrt(pi)

inline double sine_of_pi(double x) {
  double rest = x - 2 * std::nearbyint(x / 2);
  if (std::fabs(rest) > 0.5) rest = std::copysign(1, rest) - rest;
  return std::sin(pi * rest);
}
inline double cosine_of_pi(double x) { return sine_of_pi(0.5 - std::fmod(std::fabs(x), 2.0)); }

// Halley's method, from the approximation of Abramowitz and Stegun (26.2.22).
inline double inverse_erfc(double y) {
  if (y > 1) return -inverse_erfc(2 - y);
  if (!(y > 0)) return y == 0 ? HUGE_VAL : NAN;
  double t = std::sqrt(-2 * std::log(y / 2));
  double x = (t - (2.30753 + t * 0.27061) / (1 + t * (0.99229 + t * 0.04481))) / sqrt_of_2;
  for (int step = 0; step < 3; ++step) {
    double off = std::erfc(x) - y;
    x += off / (slope_of_erf * std::exp(-x * x) - x * off);
  }
  return x;
}
inline double inverse_erf(double y) {
  double x = inverse_erfc(1 - y);
  if (std::fabs(y) < 0.5) x -= (std::erf(x) - y) / (slope_of_erf * std::exp(-x * x));  // 1 - y was rounded
  return x;
}
inline double scaled_erfc(double x) {
  if (x < 25) return std::exp(x * x) * std::erfc(x);
  double square = x * x;
  return slope_of_erf / (2 * x) * (1 - 0.5 / square + 0.75 / (square * square));
}
// The modified Bessel function of the first kind, by its series (NIST DLMF 10.25.2), whose terms are all
// positive: nothing cancels.
inline double modified_bessel(int order, double x) {
  double term = order ? x / 2 : 1, sum = term;
  for (int k = 1; term > sum * 1e-17; ++k) {
    term *= x / 2 / k * (x / 2 / (k + order));
    sum += term;
  }
  return sum;
}
inline double bessel_i0(double x) { return modified_bessel(0, std::fabs(x)); }
inline double bessel_i1(double x) { return std::copysign(modified_bessel(1, std::fabs(x)), x); }
inline double length(double a, double b, double c, double d) { return std::hypot(std::hypot(a, b, c), d); }

}  // namespace cuhost

namespace cuda_device {

#define CUHOST_SPECIAL(name, parameters, expression)                  \
  inline double name parameters(double) { return expression; }        \
  inline float name##f parameters(float) { return (float)(expression); }
#define CUHOST_OF_1(T) (T a)
#define CUHOST_OF_2(T) (T a, T b)
#define CUHOST_OF_3(T) (T a, T b, T c)
#define CUHOST_OF_4(T) (T a, T b, T c, T d)
CUHOST_SPECIAL(sinpi, CUHOST_OF_1, cuhost::sine_of_pi(a))
CUHOST_SPECIAL(cospi, CUHOST_OF_1, cuhost::cosine_of_pi(a))
CUHOST_SPECIAL(erfinv, CUHOST_OF_1, cuhost::inverse_erf(a))
CUHOST_SPECIAL(erfcinv, CUHOST_OF_1, cuhost::inverse_erfc(a))
CUHOST_SPECIAL(erfcx, CUHOST_OF_1, cuhost::scaled_erfc(a))
CUHOST_SPECIAL(normcdf, CUHOST_OF_1, 0.5 * std::erfc(-a / cuhost::sqrt_of_2))
CUHOST_SPECIAL(normcdfinv, CUHOST_OF_1, -cuhost::sqrt_of_2 * cuhost::inverse_erfc(2.0 * a))
CUHOST_SPECIAL(cyl_bessel_i0, CUHOST_OF_1, cuhost::bessel_i0(a))
CUHOST_SPECIAL(cyl_bessel_i1, CUHOST_OF_1, cuhost::bessel_i1(a))
CUHOST_SPECIAL(rcbrt, CUHOST_OF_1, 1 / std::cbrt((double)a))
CUHOST_SPECIAL(rhypot, CUHOST_OF_2, 1 / std::hypot((double)a, (double)b))
CUHOST_SPECIAL(norm3d, CUHOST_OF_3, cuhost::length(a, b, c, 0))
CUHOST_SPECIAL(rnorm3d, CUHOST_OF_3, 1 / cuhost::length(a, b, c, 0))
CUHOST_SPECIAL(norm4d, CUHOST_OF_4, cuhost::length(a, b, c, d))
CUHOST_SPECIAL(rnorm4d, CUHOST_OF_4, 1 / cuhost::length(a, b, c, d))
#undef CUHOST_OF_4
#undef CUHOST_OF_3
#undef CUHOST_OF_2
#undef CUHOST_OF_1
#undef CUHOST_SPECIAL

inline void sincospi(double v, double* sine, double* cosine) {
  *sine = sinpi(v);
  *cosine = cospi(v);
}
inline void sincospif(float v, float* sine, float* cosine) {
  *sine = sinpif(v);
  *cosine = cospif(v);
}

}  // namespace cuda_device
