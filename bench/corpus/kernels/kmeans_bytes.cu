// The nearest of 50 centroids of 20 bytes for each point; of equally near ones the first.
#define DIMENSIONS 20
#define AT_ONCE 16

__global__ void kmeans_bytes(const unsigned char* x, const unsigned char* centroid, int* nearest, int* distance, int points,
                             int centroids) {
  __shared__ unsigned char tile[AT_ONCE][DIMENSIONS];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  int best = 0x7fffffff, at = -1;
  for (int first = 0; first < centroids; first += AT_ONCE) {
    const int count = min(AT_ONCE, centroids - first);
    for (int k = threadIdx.x; k < count * DIMENSIONS; k += blockDim.x) tile[k / DIMENSIONS][k % DIMENSIONS] = centroid[first * DIMENSIONS + k];
    __syncthreads();
    if (i < points)
      for (int c = 0; c < count; ++c) {
        int d = 0;
        for (int k = 0; k < DIMENSIONS; ++k) {
          const int apart = (int)x[i * DIMENSIONS + k] - (int)tile[c][k];
          d += apart * apart;
        }
        if (d < best) {
          best = d;
          at = first + c;
        }
      }
    __syncthreads();
  }
  if (i < points) {
    nearest[i] = at;
    distance[i] = best;
  }
}
