// A warp that fills two buffers and one that empties them, with four barriers of the library.
#include <cuda/barrier>
using Barrier = cuda::barrier<cuda::thread_scope_block>;
#pragma nv_diag_suppress static_var_with_dynamic_init

extern "C" __global__ void barrier_relay(const float* x, float* y, int steps) {
    __shared__ float buffer[2][32];
    __shared__ Barrier barriers[4];  // two that say empty, two that say full
    int t = threadIdx.x;
    if (t < 4) init(&barriers[t], 64);
    __syncthreads();
    if (t < 32) {
        for (int i = 0; i < steps; i++) {
            barriers[i % 2].arrive_and_wait();
            buffer[i % 2][t] = 2.0f * x[(blockIdx.x * steps + i) * 32 + t];
            Barrier::arrival_token token = barriers[2 + i % 2].arrive();
            (void)token;
        }
    } else {
        Barrier::arrival_token first = barriers[0].arrive(), second = barriers[1].arrive();
        (void)first, (void)second;
        float sum = 0.0f;
        for (int i = 0; i < steps; i++) {
            barriers[2 + i % 2].arrive_and_wait();
            sum += buffer[i % 2][63 - t] * (i + 1);
            Barrier::arrival_token token = barriers[i % 2].arrive();
            (void)token;
        }
        y[blockIdx.x * 32 + t - 32] = sum;
    }
}
