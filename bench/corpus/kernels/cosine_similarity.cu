// Cosine of the angle between rows of a and of b, a warp a row; norms are at least epsilon.
__global__ void cosine_similarity(const float* a, const float* b, float* y, int rows, int columns,
                                  float epsilon) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  float product = 0.0f, of_a = 0.0f, of_b = 0.0f;
  for (int c = lane; c < columns; c += 32) {
    float p = a[(size_t)row * columns + c], q = b[(size_t)row * columns + c];
    product += p * q;
    of_a += p * p;
    of_b += q * q;
  }
  for (int d = 16; d > 0; d /= 2) {
    product += __shfl_xor_sync(0xffffffff, product, d);
    of_a += __shfl_xor_sync(0xffffffff, of_a, d);
    of_b += __shfl_xor_sync(0xffffffff, of_b, d);
  }
  if (lane == 0) y[row] = product / (fmaxf(sqrtf(of_a), epsilon) * fmaxf(sqrtf(of_b), epsilon));
}
