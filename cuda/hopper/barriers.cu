// What kernels for Hopper (sm_90a) share: barriers in shared memory, clusters, and how instructions find
// matrices in shared memory.
//
// The constants of this text are:
//   Element            type of the matrices' elements
//   STAGES             steps that are in shared memory or on the way there
//   CLUSTERED          whether clusters have several blocks

[[maybe_unused]] constexpr int ALIGNMENT = 1024;  // of swizzled boxes: eight lines of 128 bytes

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Fetch the description of a matrix, so that the first copy of a box of it need not wait for that.
__device__ __forceinline__ void prefetch_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
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

// Say that this thread has come here. What it did in shared memory becomes visible to the blocks of the
// cluster once they have waited for it.
__device__ __forceinline__ void arrive_in_cluster() {
#if CLUSTERED
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

// Wait until all threads of the cluster that have not ended have arrived.
__device__ __forceinline__ void wait_for_cluster() {
#if CLUSTERED
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#else
  __syncthreads();
#endif
}

__device__ __forceinline__ void meet() {
  arrive_in_cluster();
  wait_for_cluster();
}

#if CLUSTERED
// The same place in the shared memory of a block of the cluster.
template <class T>
__device__ __forceinline__ const T* place_in_block(const T* place, int rank) {
  const T* there;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(place), "r"(rank));
  return there;
}

// Read from the shared memory of a block of the cluster.
__device__ __forceinline__ float4 read_from(const float4* place, int rank) {
  float4 four;
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n"
      "}"
      : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
      : "r"(shared_address(place)), "r"(rank)
      : "memory");
  return four;
}
#endif

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

// At the same barrier of a block of the cluster. Reads need no fence before it: they have ended.
__device__ __forceinline__ void arrive_at(Barrier& barrier, int rank) {
#if CLUSTERED
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}"
      :: "r"(shared_address(&barrier)), "r"(rank) : "memory");
#else
  arrive(barrier);
#endif
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

// Before instructions or copies read what this thread has written to shared memory.
__device__ __forceinline__ void written_for_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- Matrices

[[maybe_unused]] constexpr int DESCRIBED_BYTES = 16;  // of one step of an address in a description

// A matrix in shared memory, as instructions expect it (PTX ISA, "Matrix Descriptor Format"). Its lines of
// SWIZZLED bytes have swizzled pieces of 16 bytes; eight lines follow each other after `eight_lines` bytes;
// where a line runs along the rows of C or its columns, the next line of the same k is `next_line` bytes
// away. If nothing is swizzled (0), lines have 16 bytes, and the next 16 bytes of a row are `next_line`
// bytes away. Another matrix of that form is described by adding the distance in DESCRIBED_BYTES.
template <int SWIZZLED = 128>
__device__ __forceinline__ unsigned long long described(const void* start, int next_line,
                                                        int eight_lines) {
  constexpr unsigned long long KIND = SWIZZLED == 0 ? 0 : SWIZZLED == 128 ? 1 : SWIZZLED == 64 ? 2 : 3;
  return (shared_address(start) & 0x3FFFF) >> 4 |
         static_cast<unsigned long long>(next_line >> 4) << 16 |
         static_cast<unsigned long long>(eight_lines >> 4) << 32 | KIND << 62;
}
