// The recurrence h = a h + x along time, a warp a channel: 32 times at once by composing steps, and
// a carry from one group of 32 to the next.
__global__ void ssm_scan(const float* a, const float* x, float* h, int channels, int length) {
  int channel = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (channel >= channels) return;
  size_t row = (size_t)channel * length;
  float carry = 0.0f;
  for (int start = 0; start < length; start += 32) {
    int t = start + lane;
    float decay = t < length ? a[row + t] : 1.0f;
    float sum = t < length ? x[row + t] : 0.0f;
    for (int step = 1; step < 32; step *= 2) {
      float before = __shfl_up_sync(0xffffffff, sum, step);
      float its_decay = __shfl_up_sync(0xffffffff, decay, step);
      if (lane >= step) {
        sum += decay * before;
        decay *= its_decay;
      }
    }
    sum += decay * carry;
    if (t < length) h[row + t] = sum;
    carry = __shfl_sync(0xffffffff, sum, 31);
  }
}
