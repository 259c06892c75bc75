// A step of a long short-term memory: gates of input, forgetting, candidate and output.
__device__ float sigmoid(float v) { return 1.f / (1.f + expf(-v)); }

__global__ void lstm_cell(const float* gate, const float* bias, float* c, float* h, int batch, int hidden) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= batch * hidden) return;
  const int b = i / hidden, j = i % hidden;
  float g[4];
  for (int k = 0; k < 4; ++k) g[k] = gate[(b * 4 + k) * hidden + j] + bias[k * hidden + j];
  const float next = sigmoid(g[1]) * c[i] + sigmoid(g[0]) * tanhf(g[2]);
  c[i] = next;
  h[i] = sigmoid(g[3]) * tanhf(next);
}
