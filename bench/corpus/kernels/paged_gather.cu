// Copies the rows of each sequence from pages of eight rows, which a table names, and sets the
// rows after its length to zero.
__global__ void paged_gather(const float* pages, const int* table, const int* lengths, float* y,
                             int most, int each, int width) {
  int t = blockIdx.x, sequence = blockIdx.y;
  float* out = y + ((size_t)sequence * most + t) * width;
  if (t < lengths[sequence]) {
    int page = table[sequence * ((most + each - 1) / each) + t / each];
    const float* in = pages + ((size_t)page * each + t % each) * width;
    for (int c = threadIdx.x; c < width; c += blockDim.x) out[c] = in[c];
  } else {
    for (int c = threadIdx.x; c < width; c += blockDim.x) out[c] = 0.0f;
  }
}
