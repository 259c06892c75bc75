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

#define CUDART_INF_FP16 __ushort_as_half((unsigned short)0x7c00u)
#define CUDART_NAN_FP16 __ushort_as_half((unsigned short)0x7fffu)
#define CUDART_MIN_DENORM_FP16 __ushort_as_half((unsigned short)0x0001u)
#define CUDART_MAX_NORMAL_FP16 __ushort_as_half((unsigned short)0x7bffu)
#define CUDART_NEG_ZERO_FP16 __ushort_as_half((unsigned short)0x8000u)
#define CUDART_ZERO_FP16 __ushort_as_half((unsigned short)0x0000u)
#define CUDART_ONE_FP16 __ushort_as_half((unsigned short)0x3c00u)
