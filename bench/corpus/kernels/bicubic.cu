// Rows resized by cubic convolution (a = -0.75), half-pixel centres, border pixels repeated.
__device__ float near(float t) { return ((-0.75f + 2.f) * t - (-0.75f + 3.f)) * t * t + 1.f; }
__device__ float far(float t) { return ((-0.75f * t + 5.f * 0.75f) * t - 8.f * 0.75f) * t + 4.f * 0.75f; }

__global__ void bicubic(const float* picture, float* out, int in_width, int out_width, float scale) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x >= out_width) return;
  const float at = (x + 0.5f) * scale - 0.5f;
  const int first = (int)floorf(at);
  const float t = at - first;
  const float weight[4] = {far(t + 1.f), near(t), near(1.f - t), far(2.f - t)};
  float s = 0.f;
  for (int k = 0; k < 4; ++k)
    s += weight[k] * picture[y * in_width + min(max(first - 1 + k, 0), in_width - 1)];
  out[y * out_width + x] = s;
}
