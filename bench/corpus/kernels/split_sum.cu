// Sums of equal shares of a vector: a block takes the elements from b n / blocks up to (b + 1) n / blocks.
__global__ void split_sum(const signed char* x, int* y, int n) {
  __shared__ int part[2];
  const int first = (int)((long long)blockIdx.x * n / gridDim.x), last = (int)((long long)(blockIdx.x + 1) * n / gridDim.x);
  int s = 0;
  for (int i = first + threadIdx.x; i < last; i += blockDim.x) s += x[i];
  s = __reduce_add_sync(0xffffffff, s);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x == 0) y[blockIdx.x] = part[0] + part[1];
}
