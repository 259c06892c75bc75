// What kernels for Hopper (sm_90a) share: barriers in shared memory, copies of boxes by the tensor
// memory accelerator, and how instructions of a warpgroup find matrices in shared memory.

#include <cuda.h>

constexpr int ALIGNMENT = 1024;  // of swizzled boxes: eight lines of 128 bytes

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// The first element in dynamic shared memory where a swizzled box can be, which is ALIGNMENT longer.
template <class T>
__device__ __forceinline__ T* aligned(void* memory) {
  unsigned above = shared_address(memory) % ALIGNMENT;
  return reinterpret_cast<T*>(static_cast<char*>(memory) + (above ? ALIGNMENT - above : 0));
}

// ---- Barriers: a phase ends with the last arrival, and when all expected bytes are there.

using Barrier = unsigned long long;

__device__ __forceinline__ void initialize(Barrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
               :: "r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive(Barrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
               :: "r"(shared_address(&barrier)) : "memory");
}

// One arrival, after what all threads of the warp have done.
__device__ __forceinline__ void arrive_as_warp(Barrier& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(barrier);
}

__device__ __forceinline__ void arrive_expecting(Barrier& barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(shared_address(&barrier)), "r"(bytes) : "memory");
}

// Wait until the phase of this parity has ended.
__device__ __forceinline__ void wait(Barrier& barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
      "@ended bra done;\n"
      "bra again;\n"
      "done:\n"
      "}"
      :: "r"(shared_address(&barrier)), "r"(parity) : "memory");
}

// The stages in rotation.
struct Ring {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Copy the box of `map` whose first element is at (x, y), x being the inner dimension.
__device__ __forceinline__ void copy_box(Element* to, const CUtensorMap& map, int x, int y,
                                         Barrier& full) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];"
      :: "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(shared_address(&full))
      : "memory");
}

// A matrix in swizzled lines of shared memory, as instructions expect it (PTX ISA, "Matrix
// Descriptor Format"): eight lines follow each other after `eight_lines` bytes; where a line runs
// along the rows of C or its columns, the next line of the same k is `next_line` bytes away.
__device__ __forceinline__ unsigned long long described(const Element* start, int next_line,
                                                        int eight_lines) {
  constexpr unsigned long long SWIZZLED_128_BYTES = 1ULL << 62;
  return (shared_address(start) & 0x3FFFF) >> 4 |
         static_cast<unsigned long long>(next_line >> 4) << 16 |
         static_cast<unsigned long long>(eight_lines >> 4) << 32 | SWIZZLED_128_BYTES;
}
