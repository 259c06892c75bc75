// What kernels for Hopper (sm_90a) share: the tiles of a block, barriers in shared memory, copies of
// boxes by the tensor memory accelerator, and how instructions find matrices in shared memory.
//
// Besides those of tiles.cu, the constants of this text are:
//   WHOLE_TILES        whether blocks compute whole tiles in turn, rather than equal parts of all
//   CONSUMERS          warpgroups that multiply; one more copies
//   OTHER_REGISTERS, CONSUMER_REGISTERS   of a thread of that one, and of the others
//   BOXED_C            whether the tensor memory accelerator stores C, too

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

// The warpgroup of a thread, of which the compiler then knows that it is the same for a whole warp.
__device__ __forceinline__ int own_warpgroup() {
  return __shfl_sync(~0u, threadIdx.x / 128, 0);
}

// ---- What a block computes

// Some steps of a tile; without any, the block is done.
struct Work {
  int tile, begin, end;

  __device__ __forceinline__ bool any() const { return begin < end; }
  __device__ __forceinline__ bool whole() const { return begin == 0 && end == STEPS; }
};

__device__ __forceinline__ Work work_at(int step, int last) {
  int begin = step % STEPS;
  return {step / STEPS, begin, min(STEPS, begin + last - step)};
}

__device__ __forceinline__ Work whole_tile(int tile) {
  return {tile, 0, tile < ROWS * COLUMNS ? STEPS : 0};
}

// With whole tiles, all blocks are at neighbouring ones at a time, which share rows and columns in
// the L2.
__device__ __forceinline__ Work first_work(int block) {
  return WHOLE_TILES ? whole_tile(block) : work_at(first_step(block), first_step(block + 1));
}

__device__ __forceinline__ Work next_work(const Work& work, int block) {
  return WHOLE_TILES ? whole_tile(work.tile + BLOCKS)
                     : work_at(work.tile * STEPS + work.end, first_step(block + 1));
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

// Before instructions or copies read what this thread has written to shared memory.
__device__ __forceinline__ void written_for_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Copy a box to `map`. It may be filled again after wait_for_boxes.
__device__ __forceinline__ void store_box(const CUtensorMap& map, int x, int y,
                                          const Element* from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n"
      "cp.async.bulk.commit_group;"
      :: "l"(&map), "r"(x), "r"(y), "r"(shared_address(from)) : "memory");
}

// Wait until all boxes that this thread stores have been read, but the latest `others`.
template <int OTHERS>
__device__ __forceinline__ void wait_for_boxes() {
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(OTHERS) : "memory");
}

// ---- Matrices

constexpr int DESCRIBED_BYTES = 16;  // of one step of an address in a description

// A matrix in swizzled lines of shared memory, as instructions expect it (PTX ISA, "Matrix
// Descriptor Format"): eight lines follow each other after `eight_lines` bytes; where a line runs
// along the rows of C or its columns, the next line of the same k is `next_line` bytes away. Another
// matrix of that form is described by adding the distance in DESCRIBED_BYTES.
__device__ __forceinline__ unsigned long long described(const Element* start, int next_line,
                                                        int eight_lines) {
  constexpr unsigned long long SWIZZLED_128_BYTES = 1ULL << 62;
  return (shared_address(start) & 0x3FFFF) >> 4 |
         static_cast<unsigned long long>(next_line >> 4) << 16 |
         static_cast<unsigned long long>(eight_lines >> 4) << 32 | SWIZZLED_128_BYTES;
}
