// A block goes through the tokens of a sequence, and divides each by its Euclidean norm.
__global__ void token_l2(const float* x, const float* gain, float* y, int tokens, int width, float epsilon) {
  __shared__ float part[8];
  const int t = threadIdx.x, warps = blockDim.x / 32;
  for (int token = 0; token < tokens; ++token) {
    const size_t at = ((size_t)blockIdx.x * tokens + token) * width + t;
    const float v = t < width ? x[at] : 0.f;
    float s = v * v;
    for (int m = 16; m; m >>= 1) s += __shfl_xor_sync(0xffffffff, s, m);
    if ((t & 31) == 0) part[t >> 5] = s;
    __syncthreads();
    if (t < 32) {
      float all = t < warps ? part[t] : 0.f;
      for (int m = 4; m; m >>= 1) all += __shfl_xor_sync(0xffffffff, all, m);
      if (t == 0) part[0] = rsqrtf(all + epsilon);
    }
    __syncthreads();
    if (t < width) y[at] = v * part[0] * gain[t];
    __syncthreads();
  }
}
