// One kernel for each type of operands and sums: of mma from sm_80 on, of wgmma on sm_90a. The names say
// the type of the sums first.
//
//   nvcc -std=c++17 -arch=sm_80 -cubin -o types_sm_80.cubin tensor_core_types.cu && xz types_sm_80.cubin
//   nvcc -std=c++17 -arch=sm_90a -cubin -o types_sm_90a.cubin tensor_core_types.cu && xz types_sm_90a.cubin

extern "C" __global__ void f32_f16(unsigned* p,float* q){ float c[4]; unsigned a[4],b[2]; for(int i=0;i<4;i++)c[i]=q[i+threadIdx.x*8]; for(int i=0;i<4;i++)a[i]=p[i+threadIdx.x*8]; for(int i=0;i<2;i++)b[i]=p[i+threadIdx.x*4];
 asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
 for(int i=0;i<4;i++)q[i+threadIdx.x*8]=c[i]; }
extern "C" __global__ void f16_f16(unsigned* p,unsigned* q){ unsigned c[2]; unsigned a[4],b[2]; for(int i=0;i<2;i++)c[i]=q[i+threadIdx.x*8]; for(int i=0;i<4;i++)a[i]=p[i+threadIdx.x*8]; for(int i=0;i<2;i++)b[i]=p[i+threadIdx.x*4];
 asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};" : "+r"(c[0]), "+r"(c[1]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
 for(int i=0;i<2;i++)q[i+threadIdx.x*8]=c[i]; }
extern "C" __global__ void f32_bf16(unsigned* p,float* q){ float c[4]; unsigned a[4],b[2]; for(int i=0;i<4;i++)c[i]=q[i+threadIdx.x*8]; for(int i=0;i<4;i++)a[i]=p[i+threadIdx.x*8]; for(int i=0;i<2;i++)b[i]=p[i+threadIdx.x*4];
 asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
 for(int i=0;i<4;i++)q[i+threadIdx.x*8]=c[i]; }
extern "C" __global__ void f32_tf32(unsigned* p,float* q){ float c[4]; unsigned a[4],b[2]; for(int i=0;i<4;i++)c[i]=q[i+threadIdx.x*8]; for(int i=0;i<4;i++)a[i]=p[i+threadIdx.x*8]; for(int i=0;i<2;i++)b[i]=p[i+threadIdx.x*4];
 asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
 for(int i=0;i<4;i++)q[i+threadIdx.x*8]=c[i]; }
#if __CUDA_ARCH__ == 900
extern "C" __global__ void group_f32_f16(unsigned* p,float* q,unsigned long long da,unsigned long long db){ float c[4]; unsigned a[4]; for(int i=0;i<4;i++)c[i]=q[i+threadIdx.x*64]; for(int i=0;i<4;i++)a[i]=p[i+threadIdx.x*8];
 asm volatile("wgmma.fence.sync.aligned;");
 asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "l"(da), "l"(db));
 asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;");
 for(int i=0;i<4;i++)q[i+threadIdx.x*64]=c[i]; }
extern "C" __global__ void group_f32_tf32(unsigned* p,float* q,unsigned long long da,unsigned long long db){ float c[4]; unsigned a[4]; for(int i=0;i<4;i++)c[i]=q[i+threadIdx.x*64]; for(int i=0;i<4;i++)a[i]=p[i+threadIdx.x*8];
 asm volatile("wgmma.fence.sync.aligned;");
 asm volatile("wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%0, %1, %2, %3}, %4, %5, 1, 1, 1;" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "l"(da), "l"(db));
 asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;");
 for(int i=0;i<4;i++)q[i+threadIdx.x*64]=c[i]; }
extern "C" __global__ void group_f16_f16(unsigned* p,unsigned* q,unsigned long long da,unsigned long long db){ unsigned c[2]; unsigned a[4]; for(int i=0;i<2;i++)c[i]=q[i+threadIdx.x*64]; for(int i=0;i<4;i++)a[i]=p[i+threadIdx.x*8];
 asm volatile("wgmma.fence.sync.aligned;");
 asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, %6, 1, 1, 1, 0;" : "+r"(c[0]), "+r"(c[1]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(db));
 asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;");
 for(int i=0;i<2;i++)q[i+threadIdx.x*64]=c[i]; }
extern "C" __global__ void group_f32_bf16(unsigned* p,float* q,unsigned long long da,unsigned long long db){ float c[4]; unsigned a[4]; for(int i=0;i<4;i++)c[i]=q[i+threadIdx.x*64]; for(int i=0;i<4;i++)a[i]=p[i+threadIdx.x*8];
 asm volatile("wgmma.fence.sync.aligned;");
 asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, 1, 1, 0;" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(db));
 asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;");
 for(int i=0;i<4;i++)q[i+threadIdx.x*64]=c[i]; }
#endif
