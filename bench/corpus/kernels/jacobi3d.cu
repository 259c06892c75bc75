// One Jacobi step in three dimensions: the plane in shared memory, z in registers; edges copied.
__global__ void jacobi3d(const float* u, float* v, int nx, int ny, int nz) {
    __shared__ float plane[10][18];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
    int sx = threadIdx.x + 1, sy = threadIdx.y + 1;
    bool in = x < nx && y < ny;
    int at = y * nx + x, step = nx * ny;
    float below = 0.f, here = in ? u[at] : 0.f, above = in ? u[at + step] : 0.f;
    if (in) v[at] = here;
    for (int z = 1; z < nz - 1; z++) {
        below = here;
        here = above;
        above = in ? u[at + (z + 1) * step] : 0.f;
        __syncthreads();
        plane[sy][sx] = here;
        if (threadIdx.x == 0 && x > 0 && in) plane[sy][0] = u[at + z * step - 1];
        if (threadIdx.x == 15 && x + 1 < nx && in) plane[sy][17] = u[at + z * step + 1];
        if (threadIdx.y == 0 && y > 0 && in) plane[0][sx] = u[at + z * step - nx];
        if (threadIdx.y == 7 && y + 1 < ny && in) plane[9][sx] = u[at + z * step + nx];
        __syncthreads();
        if (in) {
            bool edge = x == 0 || y == 0 || x == nx - 1 || y == ny - 1;
            v[at + z * step] = edge ? here : (below + above + plane[sy][sx - 1] + plane[sy][sx + 1] + plane[sy - 1][sx] + plane[sy + 1][sx]) / 6.f;
        }
    }
    if (in) v[at + (nz - 1) * step] = above;
}
