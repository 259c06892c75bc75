// Two steps of heat conduction in a box; its faces keep their temperature. Blocks go along z.
__global__ void conduct(const float* x, float* y, int nx, int ny, int nz, float rate) {
  __shared__ float plane[10][18];
  int i = blockIdx.x * 16 + threadIdx.x, j = blockIdx.y * 8 + threadIdx.y;
  int c = threadIdx.x + 1, r = threadIdx.y + 1, sheet = nx * ny, at = j * nx + i;
  bool in = i < nx && j < ny;
  bool inner = i > 0 && i < nx - 1 && j > 0 && j < ny - 1;
  float below = 0.0f, here = in ? x[at] : 0.0f, above = in ? x[at + sheet] : 0.0f;
  if (in) {
    y[at] = here;
    y[at + (nz - 1) * sheet] = x[at + (nz - 1) * sheet];
  }
  for (int k = 1; k < nz - 1; k++) {
    below = here;
    here = above;
    above = in ? x[at + (k + 1) * sheet] : 0.0f;
    const float* now = x + k * sheet;
    plane[r][c] = here;
    if (threadIdx.x == 0 && i > 0 && j < ny) plane[r][0] = now[at - 1];
    if (threadIdx.x == 15 && i < nx - 1 && j < ny) plane[r][17] = now[at + 1];
    if (threadIdx.y == 0 && j > 0 && i < nx) plane[0][c] = now[at - nx];
    if (threadIdx.y == 7 && j < ny - 1 && i < nx) plane[9][c] = now[at + nx];
    __syncthreads();  // the plane is there
    if (inner) {
      float around = plane[r][c - 1] + plane[r][c + 1] + plane[r - 1][c] + plane[r + 1][c] + below + above;
      y[at + k * sheet] = here + rate * (around - 6.0f * here);
    } else if (in) {
      y[at + k * sheet] = here;
    }
    __syncthreads();  // the plane has been read
  }
}
