// One step of a star stencil of radius 2 in three dimensions. A thread goes through z with five
// planes in registers; a plane of x and y lies in shared memory. Points within 2 of a face are copied.
#define RADIUS 2
#define BX 16
#define BY 8

__constant__ float coefficient[RADIUS + 1] = {-2.5f, 1.25f, -0.0625f};

__global__ void wave3d(const float* u, float* next, int nx, int ny, int nz) {
  __shared__ float plane[BY + 2 * RADIUS][BX + 2 * RADIUS];
  int x = blockIdx.x * BX + threadIdx.x, y = blockIdx.y * BY + threadIdx.y;
  int stride = nx * ny;
  bool inside = x < nx && y < ny;
  bool inner = x >= RADIUS && x < nx - RADIUS && y >= RADIUS && y < ny - RADIUS;
  int tx = threadIdx.x + RADIUS, ty = threadIdx.y + RADIUS;
  int at = y * nx + x;
  float behind2 = 0.0f, behind1 = 0.0f, here = 0.0f, ahead1 = 0.0f, ahead2 = 0.0f;
  if (inside) {
    here = u[at];
    ahead1 = u[at + stride];
    ahead2 = u[at + 2 * stride];
  }
  for (int z = 0; z < nz; z++) {
    __syncthreads();
    plane[ty][tx] = here;
    if (threadIdx.x < RADIUS) {
      int left = x - RADIUS, right = x + BX;
      plane[ty][tx - RADIUS] = left >= 0 && y < ny ? u[z * stride + y * nx + left] : 0.0f;
      plane[ty][tx + BX] = right < nx && y < ny ? u[z * stride + y * nx + right] : 0.0f;
    }
    if (threadIdx.y < RADIUS) {
      int up = y - RADIUS, down = y + BY;
      plane[ty - RADIUS][tx] = up >= 0 && x < nx ? u[z * stride + up * nx + x] : 0.0f;
      plane[ty + BY][tx] = down < ny && x < nx ? u[z * stride + down * nx + x] : 0.0f;
    }
    __syncthreads();
    if (inside) {
      float value = here;
      if (inner && z >= RADIUS && z < nz - RADIUS) {
        value = 3.0f * coefficient[0] * here;
        value += coefficient[1] * (plane[ty][tx - 1] + plane[ty][tx + 1] + plane[ty - 1][tx]
                                   + plane[ty + 1][tx] + behind1 + ahead1);
        value += coefficient[2] * (plane[ty][tx - 2] + plane[ty][tx + 2] + plane[ty - 2][tx]
                                   + plane[ty + 2][tx] + behind2 + ahead2);
      }
      next[z * stride + at] = value;
    }
    behind2 = behind1;
    behind1 = here;
    here = ahead1;
    ahead1 = ahead2;
    if (inside && z + 3 < nz) ahead2 = u[(z + 3) * stride + at];
  }
}
