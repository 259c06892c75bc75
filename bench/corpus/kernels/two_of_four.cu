// Keeps the two numbers of largest magnitude of each four, of equal ones the earlier, and their places in two bits each:
// the places of eight fours a word, in rising order.
__global__ void two_of_four(const float* x, float* kept, unsigned* places, int fours) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned own = 0;
  if (i < fours) {
    const float4 v = reinterpret_cast<const float4*>(x)[i];
    const float in[4] = {v.x, v.y, v.z, v.w};
    int first = 0;
    for (int k = 1; k < 4; ++k)
      if (fabsf(in[k]) > fabsf(in[first])) first = k;
    int second = first == 0 ? 1 : 0;
    for (int k = second + 1; k < 4; ++k)
      if (k != first && fabsf(in[k]) > fabsf(in[second])) second = k;
    const int low = min(first, second), high = max(first, second);
    kept[2 * i] = in[low];
    kept[2 * i + 1] = in[high];
    own = (low | high << 2) << (i % 8 * 4);
  }
  for (int m = 4; m; m >>= 1) own |= __shfl_xor_sync(0xffffffff, own, m);
  if (i < fours && i % 8 == 0) places[i / 8] = own;
}
