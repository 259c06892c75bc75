// Sobel filter of an 8-bit image: half the sum of both gradients' magnitudes, at most 255.
// Pixels beyond the border are those of the border.
#define TILE 16

__global__ void sobel(const unsigned char* image, unsigned char* edges, int height, int width) {
  __shared__ unsigned char tile[TILE + 2][TILE + 2];
  int left = blockIdx.x * TILE - 1, top = blockIdx.y * TILE - 1;
  for (int i = threadIdx.y * TILE + threadIdx.x; i < (TILE + 2) * (TILE + 2); i += TILE * TILE) {
    int row = i / (TILE + 2), column = i % (TILE + 2);
    int y = min(max(top + row, 0), height - 1);
    int x = min(max(left + column, 0), width - 1);
    tile[row][column] = image[y * width + x];
  }
  __syncthreads();
  int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
  if (x >= width || y >= height) return;
  int r = threadIdx.y + 1, c = threadIdx.x + 1;
  int gx = tile[r - 1][c + 1] + 2 * tile[r][c + 1] + tile[r + 1][c + 1]
         - tile[r - 1][c - 1] - 2 * tile[r][c - 1] - tile[r + 1][c - 1];
  int gy = tile[r + 1][c - 1] + 2 * tile[r + 1][c] + tile[r + 1][c + 1]
         - tile[r - 1][c - 1] - 2 * tile[r - 1][c] - tile[r - 1][c + 1];
  edges[y * width + x] = (unsigned char)min(255, (abs(gx) + abs(gy)) / 2);
}
