// Convolution with filters of 3 x 3 by Winograd's F(2 x 2, 3 x 3): a thread computes 2 x 2 outputs.
__global__ void winograd(const float* x, const float* taps, float* y, int channels, int height, int width) {
  int rows = height - 2, columns = width - 2;
  int tile_column = blockIdx.x * blockDim.x + threadIdx.x, tile_row = blockIdx.y * blockDim.y + threadIdx.y, k = blockIdx.z;
  int r0 = 2 * tile_row, c0 = 2 * tile_column;
  if (r0 >= rows || c0 >= columns) return;
  float m[4][4] = {};
  for (int c = 0; c < channels; c++) {
    float d[4][4], t[4][4], g[3][3], u[4][3], v[4][4];
    for (int i = 0; i < 4; i++)
      for (int j = 0; j < 4; j++)
        d[i][j] = r0 + i < height && c0 + j < width ? x[(c * height + r0 + i) * width + c0 + j] : 0.0f;
    for (int j = 0; j < 4; j++) {
      t[0][j] = d[0][j] - d[2][j];
      t[1][j] = d[1][j] + d[2][j];
      t[2][j] = d[2][j] - d[1][j];
      t[3][j] = d[1][j] - d[3][j];
    }
    for (int i = 0; i < 3; i++)
      for (int j = 0; j < 3; j++) g[i][j] = taps[((k * channels + c) * 3 + i) * 3 + j];
    for (int j = 0; j < 3; j++) {
      u[0][j] = g[0][j];
      u[1][j] = 0.5f * (g[0][j] + g[1][j] + g[2][j]);
      u[2][j] = 0.5f * (g[0][j] - g[1][j] + g[2][j]);
      u[3][j] = g[2][j];
    }
    for (int i = 0; i < 4; i++) {
      v[i][0] = u[i][0];
      v[i][1] = 0.5f * (u[i][0] + u[i][1] + u[i][2]);
      v[i][2] = 0.5f * (u[i][0] - u[i][1] + u[i][2]);
      v[i][3] = u[i][2];
      m[i][0] += v[i][0] * (t[i][0] - t[i][2]);
      m[i][1] += v[i][1] * (t[i][1] + t[i][2]);
      m[i][2] += v[i][2] * (t[i][2] - t[i][1]);
      m[i][3] += v[i][3] * (t[i][1] - t[i][3]);
    }
  }
  for (int i = 0; i < 2; i++) {
    float s[4];
    for (int j = 0; j < 4; j++) s[j] = i == 0 ? m[0][j] + m[1][j] + m[2][j] : m[1][j] - m[2][j] - m[3][j];
    if (r0 + i < rows) {
      float* out = y + (k * rows + r0 + i) * columns + c0;
      out[0] = s[0] + s[1] + s[2];
      if (c0 + 1 < columns) out[1] = s[1] - s[2] - s[3];
    }
  }
}
