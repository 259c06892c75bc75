// Transposes tiles of 32 through shared memory in which columns are permuted by row in groups of four, so that both ways are
// free of conflicts. Rows are read and written in vectors of four.
__device__ int place(int row, int column) { return row * 32 + ((column / 4 ^ row / 4) * 4 + column % 4); }

__global__ void swizzle_tile(const float* x, float* y, int rows, int columns) {
  __shared__ alignas(16) float tile[32 * 32];
  const int r0 = blockIdx.y * 32, c0 = blockIdx.x * 32, row = threadIdx.x / 8, four = threadIdx.x % 8 * 4;
  if (r0 + row < rows && c0 + four < columns)
    *reinterpret_cast<float4*>(&tile[place(row, four)]) =
        *reinterpret_cast<const float4*>(&x[(size_t)(r0 + row) * columns + c0 + four]);
  __syncthreads();
  if (c0 + row < columns)
    for (int k = 0; k < 4; ++k)
      if (r0 + four + k < rows) y[(size_t)(c0 + row) * rows + r0 + four + k] = tile[place(four + k, row)];
}
