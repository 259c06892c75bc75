// Product of matrices of 8-bit integers with a zero point of the first, a bias, and requantization by a
// fixed-point factor: half a unit is added before the shift. Four products an instruction.
__global__ void dp4a_requant(const int* a, const int* w, const int* bias, signed char* out, int rows, int columns, int depth,
                             int zero_a, int zero_out, int factor, int shift) {
  int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= rows || column >= columns) return;
  int sum = 0, weights = 0;
  for (int k = 0; k < depth / 4; k++) {
    int packed = w[column * (depth / 4) + k];
    sum = __dp4a(a[row * (depth / 4) + k], packed, sum);
    weights = __dp4a(0x01010101, packed, weights);
  }
  long long scaled = (long long)(sum - zero_a * weights + bias[column]) * factor;
  int value = (int)((scaled + (1ll << (shift - 1))) >> shift) + zero_out;
  out[row * columns + column] = (signed char)max(-128, min(127, value));
}
