// Each token's place among those of its expert, in order, and how many each expert has: a block of
// four warps an expert goes through all tokens.
__global__ void moe_positions(const int* expert, int* position, int* counts, int n) {
  __shared__ int votes_of[4];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int base = 0;
  for (int start = 0; start < n; start += 128) {
    int i = start + threadIdx.x;
    bool mine = i < n && expert[i] == blockIdx.x;
    unsigned votes = __ballot_sync(0xffffffff, mine);
    if (lane == 0) votes_of[warp] = __popc(votes);
    __syncthreads();
    int before = base;
    for (int w = 0; w < warp; w++) before += votes_of[w];
    if (mine) position[i] = before + __popc(votes & ((1u << lane) - 1));
    for (int w = 0; w < 4; w++) base += votes_of[w];
    __syncthreads();  // all counts have been read
  }
  if (threadIdx.x == 0) counts[blockIdx.x] = base;
}
