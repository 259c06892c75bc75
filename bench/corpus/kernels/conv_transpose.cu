// A transposed convolution over one dimension, with stride 2, a border of 1 and taps of 5: gathers
// for each output the inputs that reach it.
__global__ void conv_transpose(const float* x, const float* w, float* y, int inputs, int outputs,
                               int length, int longer) {
  int p = blockIdx.x * blockDim.x + threadIdx.x, o = blockIdx.y;
  if (p >= longer) return;
  float sum = 0.0f;
  for (int k = 0; k < 5; k++) {
    int t = p + 1 - k;
    if (t < 0 || t % 2 != 0 || t / 2 >= length) continue;
    for (int c = 0; c < inputs; c++) sum += x[c * length + t / 2] * w[(c * outputs + o) * 5 + k];
  }
  y[o * longer + p] = sum;
}
