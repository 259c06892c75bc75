// cuda_bf16.h: 7 bits of mantissa, 8 of exponent.
#pragma once

#include "half.h"  // as in CUDA

namespace cuda_device {

using __nv_bfloat16 = cuhost::Small<7, 8>;
using __nv_bfloat162 = cuhost::Pair<__nv_bfloat16>;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;
CUHOST_SMALL_FLOATS(__nv_bfloat16, __nv_bfloat162, bfloat16, bfloat162)
CUHOST_SMALL_RAW(__nv_bfloat16, __nv_bfloat162, __nv_bfloat16_raw, __nv_bfloat162_raw)

}  // namespace cuda_device

#define CUDART_INF_BF16 __ushort_as_bfloat16((unsigned short)0x7f80u)
#define CUDART_NAN_BF16 __ushort_as_bfloat16((unsigned short)0x7fffu)
#define CUDART_MIN_DENORM_BF16 __ushort_as_bfloat16((unsigned short)0x0001u)
#define CUDART_MAX_NORMAL_BF16 __ushort_as_bfloat16((unsigned short)0x7f7fu)
#define CUDART_NEG_ZERO_BF16 __ushort_as_bfloat16((unsigned short)0x8000u)
#define CUDART_ZERO_BF16 __ushort_as_bfloat16((unsigned short)0x0000u)
#define CUDART_ONE_BF16 __ushort_as_bfloat16((unsigned short)0x3f80u)
