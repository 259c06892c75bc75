// Hue in sixths of a turn, saturation and value of colours. Gray has the hue 0.
__global__ void rgb_to_hsv(const unsigned char* rgb, float* hsv, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float r = rgb[3 * i], g = rgb[3 * i + 1], b = rgb[3 * i + 2];
  float most = fmaxf(r, fmaxf(g, b)), least = fminf(r, fminf(g, b)), range = most - least;
  float hue = 0.0f;
  if (range > 0.0f) {
    if (most == r) hue = (g - b) / range;
    else if (most == g) hue = 2.0f + (b - r) / range;
    else hue = 4.0f + (r - g) / range;
    if (hue < 0.0f) hue += 6.0f;
  }
  hsv[3 * i] = hue;
  hsv[3 * i + 1] = most > 0.0f ? range / most : 0.0f;
  hsv[3 * i + 2] = most;
}
