// Numbers of cells of a huge grid, modulo the size of a table.
__global__ void cell_hash(const int* cell, unsigned* slot, int cells, long long nx, long long ny, unsigned slots) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= cells) return;
  const int x = cell[3 * i], y = cell[3 * i + 1], z = cell[3 * i + 2];
  slot[i] = (unsigned)(((z * ny + y) * nx + x) % slots);
}
