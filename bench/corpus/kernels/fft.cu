// Fourier transforms of rows of 64 complex numbers, by butterflies in shared memory.
__global__ void fft(const float* re, const float* im, float* out_re, float* out_im) {
  __shared__ float a[64], b[64];
  int t = threadIdx.x;
  for (int k = t; k < 64; k += 32) {
    int from = __brev(k) >> 26;
    a[k] = re[blockIdx.x * 64 + from];
    b[k] = im[blockIdx.x * 64 + from];
  }
  for (int half = 1; half < 64; half *= 2) {
    __syncwarp();  // the stage before is done
    int j = t % half, p = t / half * 2 * half + j, q = p + half;
    float s, c;
    sincospif(-(float)j / half, &s, &c);
    float u = a[q] * c - b[q] * s, v = a[q] * s + b[q] * c;
    a[q] = a[p] - u;
    b[q] = b[p] - v;
    a[p] += u;
    b[p] += v;
  }
  __syncwarp();  // all stages are done
  for (int k = t; k < 64; k += 32) {
    out_re[blockIdx.x * 64 + k] = a[k];
    out_im[blockIdx.x * 64 + k] = b[k];
  }
}
