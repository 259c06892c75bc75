// Causal softmax of scores with a bias that falls with the distance, by a slope a head: a warp of 32
// lanes a row, at most as many positions; positions after the row's own get zero.
__global__ void alibi(const float* x, const float* slope, float* y, int heads, int length) {
  int row = blockIdx.x * blockDim.y + threadIdx.y, j = threadIdx.x;
  if (row >= heads * length) return;
  int i = row % length, head = row / length;
  bool shown = j <= i;
  float score = shown ? x[(size_t)row * length + j] - slope[head] * (i - j) : -INFINITY;
  float largest = score;
  for (int d = 16; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, d));
  float power = shown ? expf(score - largest) : 0.0f;
  float sum = power;
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffff, sum, d);
  if (j < length) y[(size_t)row * length + j] = power / sum;
}
