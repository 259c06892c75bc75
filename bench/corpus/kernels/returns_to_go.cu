// Sum of the rewards from each step to the end of its episode, a warp an episode: chunks of 32 steps
// from the last one back, zero beyond the episode's length.
__global__ void returns_to_go(const float* x, const int* lengths, float* y, int episodes, int steps) {
  int episode = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
  if (episode >= episodes) return;
  const float* in = x + (size_t)episode * steps;
  float* out = y + (size_t)episode * steps;
  int length = lengths[episode];
  float carried = 0.0f;
  for (int start = (steps - 1) / 32 * 32; start >= 0; start -= 32) {
    int t = start + lane;
    float sum = t < length ? in[t] : 0.0f;
    for (int d = 1; d < 32; d *= 2) {
      float other = __shfl_down_sync(0xffffffff, sum, d);
      if (lane + d < 32) sum += other;
    }
    sum += carried;
    if (t < steps) out[t] = t < length ? sum : 0.0f;
    carried = __shfl_sync(0xffffffff, sum, 0);
  }
}
