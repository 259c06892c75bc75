// Adds x to a residual of bfloat16 in place, and normalizes what is there now (vLLM's fused kernel).
#include <cuda_bf16.h>
__global__ void add_norm(__nv_bfloat16* residual, const __nv_bfloat16* x, const __nv_bfloat16* gain, float* y, int n) {
    __shared__ float part[4];
    int t = threadIdx.x;
    __nv_bfloat16* r = residual + blockIdx.x * n;
    float s = 0.f;
    for (int i = t; i < n; i += blockDim.x) {
        __nv_bfloat16 v = __float2bfloat16(__bfloat162float(r[i]) + __bfloat162float(x[blockIdx.x * n + i]));
        r[i] = v;
        float f = __bfloat162float(v);
        s += f * f;
    }
    for (int o = 16; o > 0; o /= 2) s += __shfl_xor_sync(0xffffffff, s, o);
    if (t % 32 == 0) part[t / 32] = s;
    __syncthreads();
    float scale = rsqrtf((part[0] + part[1] + part[2] + part[3]) / n + 1e-6f);
    for (int i = t; i < n; i += blockDim.x) y[blockIdx.x * n + i] = __bfloat162float(r[i]) * scale * __bfloat162float(gain[i]);
}
