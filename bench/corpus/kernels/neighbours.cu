// How many other points lie within 64 of each point, by lists of cells of 64 by 64.
__global__ void clear(int* heads) { heads[threadIdx.x] = -1; }

__global__ void enlist(const int* points, int* heads, int* next, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int cell = points[2 * i + 1] / 64 * 16 + points[2 * i] / 64;
  next[i] = atomicExch(&heads[cell], i);
}

__global__ void neighbours(const int* points, const int* heads, const int* next, int* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int u = points[2 * i], v = points[2 * i + 1], count = 0;
  for (int b = max(v / 64 - 1, 0); b <= min(v / 64 + 1, 15); b++)
    for (int a = max(u / 64 - 1, 0); a <= min(u / 64 + 1, 15); a++)
      for (int j = heads[b * 16 + a]; j >= 0; j = next[j]) {
        int du = points[2 * j] - u, dv = points[2 * j + 1] - v;
        count += j != i && du * du + dv * dv <= 4096;
      }
  y[i] = count;
}
