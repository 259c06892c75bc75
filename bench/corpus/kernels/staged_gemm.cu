// Product with tiles that arrive asynchronously in three stages.
#include <cuda_pipeline.h>
__device__ void load(float* as, float* bs, const float* a, const float* b, int p, int row0, int column0, int k, int n) {
    int t = threadIdx.x;
    int r = t / 4, c = t % 4 * 4;
    __pipeline_memcpy_async(&as[r * 16 + c], &a[(row0 + r) * k + p + c], 16);
    r = t / 8; c = t % 8 * 4;
    __pipeline_memcpy_async(&bs[r * 32 + c], &b[(p + r) * n + column0 + c], 16);
}
__global__ void staged_gemm(const float* a, const float* b, float* c, int k, int n) {
    __shared__ __align__(16) float as[3][512], bs[3][512];
    int t = threadIdx.x, row0 = blockIdx.y * 32, column0 = blockIdx.x * 32, steps = k / 16;
    float sum[8] = {};
    for (int s = 0; s < 2; s++) {
        if (s < steps) load(as[s], bs[s], a, b, s * 16, row0, column0, k, n);
        __pipeline_commit();
    }
    for (int s = 0; s < steps; s++) {
        __pipeline_wait_prior(1);
        __syncthreads();
        if (s + 2 < steps) load(as[(s + 2) % 3], bs[(s + 2) % 3], a, b, (s + 2) * 16, row0, column0, k, n);
        __pipeline_commit();
        for (int q = 0; q < 16; q++)
            for (int j = 0; j < 8; j++) sum[j] += as[s % 3][(t / 32 * 8 + j) * 16 + q] * bs[s % 3][q * 32 + t % 32];
    }
    for (int j = 0; j < 8; j++) c[(row0 + t / 32 * 8 + j) * n + column0 + t % 32] = sum[j];
}
