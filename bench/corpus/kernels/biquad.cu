// Filters each channel with two coefficients back and three ahead, from rest, in double precision.
__global__ void biquad(const float* x, float* y, float b0, float b1, float b2, float a1, float a2, int channels,
                       int samples) {
  int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= channels) return;
  double x1 = 0.0, x2 = 0.0, y1 = 0.0, y2 = 0.0;
  for (int t = 0; t < samples; t++) {
    double now = x[c * samples + t];
    double out = b0 * now + b1 * x1 + b2 * x2 - a1 * y1 - a2 * y2;
    x2 = x1;
    x1 = now;
    y2 = y1;
    y1 = out;
    y[c * samples + t] = (float)out;
  }
}
