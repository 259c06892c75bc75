// Root and depth of each node of a forest by pointer jumping: a node's parent has a smaller number, or it is a root.
#define NODES 200

__global__ void root_jump(const unsigned* draw, int* root, int* depth) {
  __shared__ int up[2][NODES], far[2][NODES];
  const int t = threadIdx.x;
  if (t < NODES) {
    const unsigned d = draw[blockIdx.x * NODES + t];
    const bool is_root = t == 0 || d % 16 == 0;
    up[0][t] = is_root ? t : (int)(d / 16 % t);
    far[0][t] = is_root ? 0 : 1;
  }
  __syncthreads();
  for (int round = 0; round < 8; ++round) {
    const int now = round & 1, next = now ^ 1;
    if (t < NODES) {
      const int parent = up[now][t];
      up[next][t] = up[now][parent];
      far[next][t] = far[now][t] + far[now][parent];
    }
    __syncthreads();
  }
  if (t < NODES) {
    root[blockIdx.x * NODES + t] = up[0][t];
    depth[blockIdx.x * NODES + t] = far[0][t];
  }
}
