// Unsigned activations with a zero point times signed weights, with dp4a-like products of bytes.
__global__ void u8_linear(const unsigned char* x, const signed char* w, int* y, int k, int n, int zero) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (column >= n) return;
    int sum = 0;
    for (int p = 0; p < k; p++) sum += ((int)x[row * k + p] - zero) * (int)w[column * k + p];
    y[row * n + column] = sum;
}
