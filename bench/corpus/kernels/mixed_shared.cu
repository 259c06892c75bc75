// Mean and largest number of each row, with sums in double precision; dynamic shared memory holds both kinds.
__global__ void mixed_shared(const float* x, float* mean, float* most, int width) {
  extern __shared__ unsigned char raw[];
  double* sums = reinterpret_cast<double*>(raw);
  float* tops = reinterpret_cast<float*>(sums + blockDim.x);
  const int t = threadIdx.x;
  const float* row = x + (size_t)blockIdx.x * width;
  double s = 0.0;
  float top = -INFINITY;
  for (int i = t; i < width; i += blockDim.x) {
    s += row[i];
    top = fmaxf(top, row[i]);
  }
  sums[t] = s;
  tops[t] = top;
  __syncthreads();
  for (int n = blockDim.x; n > 1;) {
    const int half = (n + 1) / 2;
    if (t + half < n) {
      sums[t] += sums[t + half];
      tops[t] = fmaxf(tops[t], tops[t + half]);
    }
    n = half;
    __syncthreads();
  }
  if (t == 0) {
    mean[blockIdx.x] = (float)(sums[0] / width);
    most[blockIdx.x] = tops[0];
  }
}
