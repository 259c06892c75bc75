// Labels of the connected parts of images of 24 by 24: the smallest index in each, -1 outside.
__global__ void labels(const unsigned char* image, int* y) {
  __shared__ int label[2][576];
  int t = threadIdx.x, r = t / 24, c = t % 24, from = 0, changed;
  bool on = image[blockIdx.x * 576 + t] != 0;
  int own = on ? t : -1;
  label[0][t] = own;
  __syncthreads();  // labels are set
  do {
    int best = own;
    if (on) {
      if (r > 0 && label[from][t - 24] >= 0) best = min(best, label[from][t - 24]);
      if (r < 23 && label[from][t + 24] >= 0) best = min(best, label[from][t + 24]);
      if (c > 0 && label[from][t - 1] >= 0) best = min(best, label[from][t - 1]);
      if (c < 23 && label[from][t + 1] >= 0) best = min(best, label[from][t + 1]);
    }
    changed = best != own;
    own = best;
    from ^= 1;
    label[from][t] = own;
  } while (__syncthreads_or(changed));
  y[blockIdx.x * 576 + t] = own;
}
