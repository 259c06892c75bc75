// Backward pass of RMS normalization: the gradients of the input, a block a row, and of the gain.
__global__ void rms_backward(const float* x, const float* gain, const float* dy, float* dx, float* inverse, int columns, float epsilon) {
  __shared__ float squares[4], products[4];
  const float* own = x + blockIdx.x * columns;
  const float* above = dy + blockIdx.x * columns;
  float square = 0.0f, product = 0.0f;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    square += own[c] * own[c];
    product += own[c] * gain[c] * above[c];
  }
  for (int step = 16; step > 0; step /= 2) {
    square += __shfl_xor_sync(0xffffffffu, square, step);
    product += __shfl_xor_sync(0xffffffffu, product, step);
  }
  if (threadIdx.x % 32 == 0) {
    squares[threadIdx.x / 32] = square;
    products[threadIdx.x / 32] = product;
  }
  __syncthreads();
  square = squares[0] + squares[1] + squares[2] + squares[3];
  product = products[0] + products[1] + products[2] + products[3];
  float r = 1.0f / sqrtf(square / columns + epsilon);
  float share = product * r * r / columns;
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    dx[blockIdx.x * columns + c] = r * (gain[c] * above[c] - own[c] * share);
  if (threadIdx.x == 0) inverse[blockIdx.x] = r;
}

__global__ void gain_gradient(const float* x, const float* dy, const float* inverse, float* dgain, int rows, int columns) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= columns) return;
  float sum = 0.0f;
  for (int r = 0; r < rows; r++) sum += dy[r * columns + c] * x[r * columns + c] * inverse[r];
  dgain[c] = sum;
}
