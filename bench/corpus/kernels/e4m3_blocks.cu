// Numbers of 8 bits (4 of the exponent, 3 of the significand), each times the scale of its block of
// 32. The two patterns that are no numbers count as zero.
__device__ float e4m3(unsigned char byte) {
  int exponent = (byte >> 3) & 15, mantissa = byte & 7;
  if (exponent == 15 && mantissa == 7) return 0.0f;
  float magnitude = exponent == 0 ? ldexpf((float)mantissa, -9) : ldexpf(8.0f + mantissa, exponent - 10);
  return byte & 0x80 ? -magnitude : magnitude;
}

__global__ void e4m3_blocks(const unsigned char* codes, const float* scale, float* y, int columns) {
  int row = blockIdx.x;
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    y[row * columns + c] = e4m3(codes[row * columns + c]) * scale[row * ((columns + 31) / 32) + c / 32];
}
