// What kernels need of cuda.h: NVRTC cannot read CUDA's own, which includes headers of the host.
#pragma once

struct alignas(64) CUtensorMap {
  unsigned long long opaque[16];
};
