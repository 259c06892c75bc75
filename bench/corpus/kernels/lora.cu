// A linear layer's result plus a correction of low rank: alpha / rank times B A x, a block a row.
__global__ void lora(const float* base, const float* x, const float* down, const float* up, float* y,
                     int inner, int outer, int rank, float alpha) {
  __shared__ float small[8];
  int row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int r = warp; r < rank; r += blockDim.x / 32) {
    float sum = 0.0f;
    for (int c = lane; c < inner; c += 32) sum += x[row * inner + c] * down[r * inner + c];
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffff, sum, d);
    if (lane == 0) small[r] = sum;
  }
  __syncthreads();
  for (int o = threadIdx.x; o < outer; o += blockDim.x) {
    float sum = 0.0f;
    for (int r = 0; r < rank; r++) sum += small[r] * up[o * rank + r];
    y[row * outer + o] = base[row * outer + o] + alpha / rank * sum;
  }
}
