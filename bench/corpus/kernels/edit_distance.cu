// Edit distance of pairs of strings, along diagonals of the table; a block a pair, a thread a row.
__global__ void edit_distance(const unsigned char* a, const unsigned char* b, int* y, int m, int n) {
  __shared__ int diagonal[3][128];
  int i = threadIdx.x;
  a += blockIdx.x * m;
  b += blockIdx.x * n;
  for (int d = 0; d <= m + n; d++) {
    int j = d - i, cost;
    const int* last = diagonal[(d + 2) % 3];
    const int* before = diagonal[(d + 1) % 3];
    if (i <= m && j >= 0 && j <= n) {
      if (i == 0 || j == 0) {
        cost = i + j;
      } else {
        cost = min(last[i - 1], last[i]) + 1;
        cost = min(cost, before[i - 1] + (a[i - 1] != b[j - 1]));
      }
      diagonal[d % 3][i] = cost;
      if (i == m && j == n) y[blockIdx.x] = cost;
    }
    __syncthreads();
  }
}
