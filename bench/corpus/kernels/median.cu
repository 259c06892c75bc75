// Median of three by three pixels; pixels beyond an edge are those at the edge.
__device__ void order(int& a, int& b) {
  int c = min(a, b);
  b = max(a, b);
  a = c;
}

__global__ void median(const unsigned char* x, unsigned char* y, int rows, int columns) {
  __shared__ unsigned char tile[10][34];
  int top = blockIdx.y * 8 - 1, left = blockIdx.x * 32 - 1;
  for (int k = threadIdx.y * 32 + threadIdx.x; k < 340; k += 256) {
    int r = min(max(top + k / 34, 0), rows - 1), c = min(max(left + k % 34, 0), columns - 1);
    tile[k / 34][k % 34] = x[r * columns + c];
  }
  __syncthreads();  // the tile is there
  int r = blockIdx.y * 8 + threadIdx.y, c = blockIdx.x * 32 + threadIdx.x, p[9];
  if (r >= rows || c >= columns) return;
  for (int k = 0; k < 9; k++) p[k] = tile[threadIdx.y + k / 3][threadIdx.x + k % 3];
  order(p[1], p[2]); order(p[4], p[5]); order(p[7], p[8]);
  order(p[0], p[1]); order(p[3], p[4]); order(p[6], p[7]);
  order(p[1], p[2]); order(p[4], p[5]); order(p[7], p[8]);
  order(p[0], p[3]); order(p[5], p[8]); order(p[4], p[7]);
  order(p[3], p[6]); order(p[1], p[4]); order(p[2], p[5]);
  order(p[4], p[7]); order(p[4], p[2]); order(p[6], p[4]);
  order(p[4], p[2]);
  y[r * columns + c] = p[4];
}
