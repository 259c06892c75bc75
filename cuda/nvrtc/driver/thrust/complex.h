// Complex numbers of Thrust, whose own header needs headers of the host that NVRTC lacks.
#pragma once
#include <cuda/std/complex>

namespace thrust {
using cuda::std::complex;

using cuda::std::abs;
using cuda::std::arg;
using cuda::std::conj;
using cuda::std::norm;
using cuda::std::polar;

using cuda::std::exp;
using cuda::std::log;
using cuda::std::log10;
using cuda::std::pow;
using cuda::std::sqrt;

using cuda::std::acos;
using cuda::std::asin;
using cuda::std::atan;
using cuda::std::cos;
using cuda::std::cosh;
using cuda::std::sin;
using cuda::std::sinh;
using cuda::std::tan;
using cuda::std::tanh;
}  // namespace thrust
