// A step of the Game of Life on a torus, in tiles of 16 by 16 with a halo.
__global__ void step(const unsigned char* x, unsigned char* y, int rows, int columns) {
  __shared__ unsigned char tile[18][18];
  int top = blockIdx.y * 16 - 1, left = blockIdx.x * 16 - 1;
  for (int i = threadIdx.y * 16 + threadIdx.x; i < 18 * 18; i += 256) {
    int r = (top + i / 18 + rows) % rows, c = (left + i % 18 + columns) % columns;
    tile[i / 18][i % 18] = x[r * columns + c];
  }
  __syncthreads();
  int r = blockIdx.y * 16 + threadIdx.y, c = blockIdx.x * 16 + threadIdx.x;
  if (r >= rows || c >= columns) return;
  int count = 0;
  for (int i = 0; i < 3; i++)
    for (int j = 0; j < 3; j++) count += tile[threadIdx.y + i][threadIdx.x + j];
  bool alive = tile[threadIdx.y + 1][threadIdx.x + 1];
  count -= alive;
  y[r * columns + c] = count == 3 || (alive && count == 2);
}
