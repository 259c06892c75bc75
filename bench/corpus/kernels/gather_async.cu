// Weighted sums of rows of a table, which come asynchronously, one ahead; each thread waits for its own part only.
#include <cuda_pipeline.h>

__global__ void gather_async(const float4* table, const int* index, const float* weight, float4* y, int many) {
  __shared__ float4 stage[2][32];
  const int t = threadIdx.x;
  index += blockIdx.x * many;
  weight += blockIdx.x * many;
  __pipeline_memcpy_async(&stage[0][t], &table[index[0] * 32 + t], 16);
  __pipeline_commit();
  float4 s = make_float4(0.f, 0.f, 0.f, 0.f);
  for (int k = 0; k < many; ++k) {
    if (k + 1 < many) __pipeline_memcpy_async(&stage[(k + 1) % 2][t], &table[index[k + 1] * 32 + t], 16);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    const float4 v = stage[k % 2][t];
    const float w = weight[k];
    s.x += w * v.x;
    s.y += w * v.y;
    s.z += w * v.z;
    s.w += w * v.w;
  }
  y[blockIdx.x * 32 + t] = s;
}
