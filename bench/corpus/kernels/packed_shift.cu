// Mixes each token with the one before it in its sequence; sequences are packed, and what follows them is zero.
__global__ void begins(const int* length, int* begin, int sequences) {
  int sum = 0;
  for (int s = 0; s < sequences; ++s) {
    begin[s] = sum;
    sum += length[s];
  }
  begin[sequences] = sum;
}

__global__ void packed_shift(const float* x, const float* share, const int* begin, float* y, int sequences, int width) {
  const int t = blockIdx.x, d = threadIdx.x;
  if (t >= begin[sequences]) {
    y[t * width + d] = 0.f;
    return;
  }
  bool first = false;
  for (int s = 0; s < sequences; ++s) first = first || begin[s] == t;
  const float before = first ? 0.f : x[(t - 1) * width + d];
  y[t * width + d] = share[d] * x[t * width + d] + (1.f - share[d]) * before;
}
