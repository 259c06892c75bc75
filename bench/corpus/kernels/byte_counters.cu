// Histogram of 16 bins, with a byte a bin and thread in shared memory: a thread may count up to 255
// elements. A second launch adds up what blocks have counted.
#define BINS 16
#define THREADS 64

__global__ void count_bytes(const unsigned char* x, unsigned* part, int n) {
  __shared__ unsigned char counter[BINS][THREADS];
  for (int b = 0; b < BINS; b++) counter[b][threadIdx.x] = 0;
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) counter[x[i] >> 4][threadIdx.x]++;
  __syncthreads();
  if (threadIdx.x < BINS) {
    unsigned sum = 0;
    for (int t = 0; t < THREADS; t++) sum += counter[threadIdx.x][t];
    part[blockIdx.x * BINS + threadIdx.x] = sum;
  }
}

__global__ void add_parts(const unsigned* part, unsigned* histogram, int parts) {
  unsigned sum = 0;
  for (int p = 0; p < parts; p++) sum += part[p * BINS + threadIdx.x];
  histogram[threadIdx.x] = sum;
}
