// How many of 500 random points of each row lie within a quarter of a circle of radius 65536.
__global__ void in_circle(const unsigned* draws, int* y, int columns) {
  __shared__ int counts[4];
  int t = threadIdx.x, count = 0;
  for (int i = t; i < columns; i += 128) {
    unsigned long long u = draws[blockIdx.x * columns + i] & 0xffff, v = draws[blockIdx.x * columns + i] >> 16;
    count += u * u + v * v < 4294967296ull;
  }
  for (int step = 16; step > 0; step /= 2) count += __shfl_down_sync(0xffffffff, count, step);
  if (t % 32 == 0) counts[t / 32] = count;
  __syncthreads();
  if (t == 0) y[blockIdx.x] = counts[0] + counts[1] + counts[2] + counts[3];
}
