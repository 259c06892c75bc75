// NVRTC 12.9 made the file beside this one, with --gpu-architecture=sm_90; then xz -9.
__device__ float kept[64];
__device__ float begun[4] = {1, 2, 3, 4};
__constant__ float table[4] = {1, 2, 3, 4};

extern "C" __global__ void counts(float* x, int n) {
  static __device__ int launches;
  __shared__ float tile[32];
  tile[n] = x[n] * table[n & 3];
  __syncthreads();
  x[n] = tile[31 - n] + kept[n]++ + begun[n & 3] + launches++;
}
