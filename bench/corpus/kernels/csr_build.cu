// Where each key's elements begin once they are sorted by key, and each element's place there; equal
// keys keep their order. One block.
#define KEYS 64

__global__ void csr_build(const int* key, int* offset, int* place, int n, int keys) {
  __shared__ int count[KEYS], begin[KEYS];
  int t = threadIdx.x, lane = t % 32, warp = t / 32;
  if (t < KEYS) count[t] = 0;
  __syncthreads();
  for (int i = t; i < n; i += blockDim.x) atomicAdd(&count[key[i]], 1);
  __syncthreads();
  if (t < KEYS) begin[t] = count[t];
  __syncthreads();
  for (int step = 1; step < KEYS; step *= 2) {
    int before = t < KEYS && t >= step ? begin[t - step] : 0;
    __syncthreads();
    if (t < KEYS) begin[t] += before;
    __syncthreads();
  }
  if (t < keys) offset[t + 1] = begin[t];
  if (t == 0) offset[0] = 0;
  for (int k = warp; k < keys; k += blockDim.x / 32) {
    int next = begin[k] - count[k];
    for (int first = 0; first < n; first += 32) {
      int i = first + lane;
      bool own = i < n && key[i] == k;
      unsigned mask = __ballot_sync(0xffffffffu, own);
      if (own) place[i] = next + __popc(mask & ((1u << lane) - 1));
      next += __popc(mask);
    }
  }
}
