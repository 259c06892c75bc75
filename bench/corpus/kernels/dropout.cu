// Adds to a residual what random words keep of x, times a factor, and writes which elements are
// kept, 32 bits a word.
__global__ void dropout(const float* x, const float* residual, const unsigned* word, float* y,
                        unsigned* kept, int n, unsigned threshold, float factor) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  bool keep = i < n && word[i] < threshold;
  unsigned bits = __ballot_sync(0xffffffff, keep);
  if (i >= n) return;
  y[i] = residual[i] + (keep ? x[i] * factor : 0.0f);
  if (threadIdx.x % 32 == 0) kept[i / 32] = bits;
}
