// cuComplex.h, thrust/complex.h and cuda/std/complex.
#pragma once

#include <cmath>

#include "kernel.h"

namespace std {

// The host's <complex> has streams, and assembler with them.
template <class T>
class complex {
  T x, y;

 public:
  using value_type = T;
  constexpr complex(T x = T(), T y = T()) : x(x), y(y) {}
  template <class U>
  constexpr complex(const complex<U>& v) : x((T)v.real()), y((T)v.imag()) {}
  constexpr T real() const { return x; }
  constexpr T imag() const { return y; }
  void real(T v) { x = v; }
  void imag(T v) { y = v; }
  complex& operator+=(const complex& b) { return *this = *this + b; }
  complex& operator-=(const complex& b) { return *this = *this - b; }
  complex& operator*=(const complex& b) { return *this = *this * b; }
  complex& operator/=(const complex& b) { return *this = *this / b; }
  friend constexpr complex operator+(const complex& a, const complex& b) { return {a.x + b.x, a.y + b.y}; }
  friend constexpr complex operator-(const complex& a, const complex& b) { return {a.x - b.x, a.y - b.y}; }
  friend constexpr complex operator*(const complex& a, const complex& b) {
    return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};
  }
  friend complex operator/(const complex& a, const complex& b) {  // scaled against overflow
    T scale = 1 / (::fabs(b.x) + ::fabs(b.y));
    complex p(a.x * scale, a.y * scale), q(b.x * scale, b.y * scale);
    T size = 1 / (q.x * q.x + q.y * q.y);
    return {(p.x * q.x + p.y * q.y) * size, (p.y * q.x - p.x * q.y) * size};
  }
  friend constexpr complex operator-(const complex& a) { return {-a.x, -a.y}; }
  friend constexpr complex operator+(const complex& a) { return a; }
  friend constexpr bool operator==(const complex& a, const complex& b) { return a.x == b.x && a.y == b.y; }
  friend constexpr bool operator!=(const complex& a, const complex& b) { return !(a == b); }
};
template <class T>
constexpr T real(const complex<T>& v) { return v.real(); }
template <class T>
constexpr T imag(const complex<T>& v) { return v.imag(); }
template <class T>
constexpr complex<T> conj(const complex<T>& v) { return {v.real(), -v.imag()}; }
template <class T>
constexpr T norm(const complex<T>& v) { return v.real() * v.real() + v.imag() * v.imag(); }
template <class T>
T abs(const complex<T>& v) { return std::hypot(v.real(), v.imag()); }
template <class T>
T arg(const complex<T>& v) { return std::atan2(v.imag(), v.real()); }
template <class T>
complex<T> polar(T size, T angle = T()) { return {size * std::cos(angle), size * std::sin(angle)}; }
template <class T>
complex<T> exp(const complex<T>& v) { return polar(std::exp(v.real()), v.imag()); }
template <class T>
complex<T> log(const complex<T>& v) { return {std::log(abs(v)), arg(v)}; }
template <class T>
complex<T> sqrt(const complex<T>& v) { return polar(std::sqrt(abs(v)), arg(v) / 2); }
template <class T>
complex<T> pow(const complex<T>& v, T power) { return polar(std::pow(abs(v), power), arg(v) * power); }

}  // namespace std

namespace thrust {
using ::std::abs;
using ::std::arg;
using ::std::complex;
using ::std::conj;
using ::std::exp;
using ::std::log;
using ::std::norm;
using ::std::polar;
using ::std::pow;
using ::std::sqrt;
}  // namespace thrust

namespace cuda_device {

using cuFloatComplex = float2;
using cuDoubleComplex = double2;
using cuComplex = cuFloatComplex;

#define CUHOST_COMPLEX(T, C, f, make)                                                      \
  inline C make(T real, T imaginary) { return {real, imaginary}; }                         \
  inline T cuCreal##f(C v) { return v.x; }                                                 \
  inline T cuCimag##f(C v) { return v.y; }                                                 \
  inline C cuConj##f(C v) { return {v.x, -v.y}; }                                          \
  inline C cuCadd##f(C a, C b) { return {a.x + b.x, a.y + b.y}; }                          \
  inline C cuCsub##f(C a, C b) { return {a.x - b.x, a.y - b.y}; }                          \
  inline C cuCmul##f(C a, C b) { return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x}; }  \
  inline C cuCfma##f(C a, C b, C c) {                                                      \
    return {a.x * b.x + c.x - a.y * b.y, a.x * b.y + c.y + a.y * b.x};                     \
  }                                                                                        \
  inline C cuCdiv##f(C a, C b) { /* scaled against overflow */                             \
    T scale = 1 / (::fabs(b.x) + ::fabs(b.y));                                         \
    C p = {a.x * scale, a.y * scale}, q = {b.x * scale, b.y * scale};                      \
    T size = 1 / (q.x * q.x + q.y * q.y);                                                  \
    return {(p.x * q.x + p.y * q.y) * size, (p.y * q.x - p.x * q.y) * size};               \
  }                                                                                        \
  inline T cuCabs##f(C v) { return (T)::hypot(v.x, v.y); }
CUHOST_COMPLEX(float, cuFloatComplex, f, make_cuFloatComplex)
CUHOST_COMPLEX(double, cuDoubleComplex, , make_cuDoubleComplex)
#undef CUHOST_COMPLEX
inline cuComplex make_cuComplex(float real, float imaginary) { return {real, imaginary}; }
inline cuDoubleComplex cuComplexFloatToDouble(cuFloatComplex v) { return {v.x, v.y}; }
inline cuFloatComplex cuComplexDoubleToFloat(cuDoubleComplex v) { return {(float)v.x, (float)v.y}; }

}  // namespace cuda_device
