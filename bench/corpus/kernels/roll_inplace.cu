// Moves the elements of each row to the right, in place, around the end.
__global__ void roll_inplace(float* x, const int* by, int n) {
  float* row = x + blockIdx.x * n;
  const int t = threadIdx.x;
  const float v = row[t];
  __syncthreads();
  row[(t + by[blockIdx.x]) % n] = v;
}
