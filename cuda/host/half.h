// cuda_fp16.h: 10 bits of mantissa, 5 of exponent.
#pragma once

#include "small_floats.h"

namespace cuda_device {

using __half = cuhost::Small<10, 5>;
using __half2 = cuhost::Pair<__half>;
using half = __half;
using half2 = __half2;
CUHOST_SMALL_FLOATS(__half, __half2, half, half2)
CUHOST_SMALL_RAW(__half, __half2, __half_raw, __half2_raw)

}  // namespace cuda_device
