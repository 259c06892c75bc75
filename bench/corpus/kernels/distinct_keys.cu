// Number of different keys among each 100, by a table with open addressing.
#define SLOTS 256

__global__ void distinct_keys(const int* keys, int* distinct, int each) {
  __shared__ int table[SLOTS];
  __shared__ int found, has_empty;
  const int t = threadIdx.x;
  for (int s = t; s < SLOTS; s += blockDim.x) table[s] = -1;
  if (t == 0) found = has_empty = 0;
  __syncthreads();
  for (int i = t; i < each; i += blockDim.x) {
    const int key = keys[blockIdx.x * each + i];
    if (key == -1) {
      atomicExch(&has_empty, 1);
      continue;
    }
    unsigned slot = ((unsigned)key * 2654435761u) >> 24;
    while (true) {
      const int before = atomicCAS(&table[slot], -1, key);
      if (before == -1) atomicAdd(&found, 1);
      if (before == -1 || before == key) break;
      slot = (slot + 1) % SLOTS;
    }
  }
  __syncthreads();
  if (t == 0) distinct[blockIdx.x] = found + has_empty;
}
