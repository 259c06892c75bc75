// By how much the other classes come within a margin of the label's: the mean over all classes, a
// warp a sample.
__global__ void multi_margin(const float* x, const int* label, float* y, int rows, int classes,
                             float margin) {
  int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
  if (row >= rows) return;
  const float* scores = x + (size_t)row * classes;
  int own = label[row];
  float least = scores[own], sum = 0.0f;
  for (int c = lane; c < classes; c += 32) {
    if (c != own) sum += fmaxf(scores[c] - least + margin, 0.0f);
  }
  for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffff, sum, d);
  if (lane == 0) y[row] = sum / classes;
}
