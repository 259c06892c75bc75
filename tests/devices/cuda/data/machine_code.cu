// nvcc 13.0 made the files beside this one, with -cubin -arch=sm_80 and -arch=sm_90a; then xz -9.
extern "C" __global__ void sums(float* c, const float* a) { c[threadIdx.x] += a[threadIdx.x]; }

__device__ __noinline__ float product(const unsigned* a) {
  float d[4] = {};
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]));
  return d[0] + d[1] + d[2] + d[3];
}

extern "C" __global__ void products(float* c, const unsigned* a) { *c = product(a) + product(a + 6); }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
extern "C" __global__ void group_products(float* c, unsigned long long a) {
  float d[4] = {};
  asm volatile("wgmma.fence.sync.aligned;");
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %4, 1, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(a));
  asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;");
  *c = d[0] + d[1] + d[2] + d[3];
}
#endif
