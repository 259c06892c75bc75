// What products for Hopper (sm_90a) share: the tiles of a block, and copies of boxes by the tensor memory
// accelerator.
//
// Besides those of tiles.cu and barriers.cu, the constants of this text are:
//   CONSUMERS          warpgroups that multiply; one more copies
//   OTHER_REGISTERS, CONSUMER_REGISTERS   of a thread of that one, and of the others
//   BOXED_C            whether the tensor memory accelerator stores C, too

#include <cuda.h>

constexpr int LINE = 128 / sizeof(Element);  // elements of a line, whose pieces of 16 bytes are swizzled
constexpr int A_STAGE = TILE_M * TILE_K, B_STAGE = TILE_K * TILE_N;
// Rows of A that are copied of a tile: if there are fewer, those that exist, up to the end of a pattern.
// Instructions do not mind what the others hold, but threads that prepare A would.
constexpr int PATTERN_M = 8 * CLUSTER_N;
constexpr int COPIED_M = A_TRANSPOSED || sizeof(Element) > 2 || M >= TILE_M
                             ? TILE_M
                             : (M + PATTERN_M - 1) / PATTERN_M * PATTERN_M;
constexpr int STAGE_BYTES = (COPIED_M * TILE_K + B_STAGE) * sizeof(Element);
static_assert(THREADS == 128 * (CONSUMERS + 1), "one warpgroup copies");

// ---- What a block computes

// Some steps of a tile; without any, the block is done.
struct Work {
  int tile, begin, end;

  __device__ __forceinline__ bool any() const { return begin < end; }
  __device__ __forceinline__ bool whole() const { return begin == 0 && end == STEPS; }
};

__device__ __forceinline__ Work divided_work(int step, int block) {
  int begin = step % STEPS;
  return {WHOLE_TILES + step / STEPS, begin, min(STEPS, begin + first_step(block + 1) - step)};
}

// While they compute whole tiles, blocks are at neighbouring ones at a time, which share rows and columns
// in the L2.
__device__ __forceinline__ Work work_from(int tile, int block) {
  if (tile < WHOLE_TILES) return {tile, 0, STEPS};
  return DIVIDED_STEPS ? divided_work(first_step(block), block) : Work{};
}

__device__ __forceinline__ Work first_work(int block) {
#if TILE_BLOCKS > 1
  return {block, STEPS * own_part() / TILE_BLOCKS, STEPS * (own_part() + 1) / TILE_BLOCKS};
#endif
  return work_from(block, block);
}

__device__ __forceinline__ Work next_work(const Work& work, int block) {
  if (TILE_BLOCKS > 1) return {};
  if (work.tile < WHOLE_TILES) return work_from(work.tile + BLOCKS, block);
  return divided_work((work.tile - WHOLE_TILES) * STEPS + work.end, block);
}

// Compute steps of which each is begun before the one before it ends, with what two of them keep in registers:
// `begin` and `end` are called with that, and with the step, or with whether it is the last one.
template <class Kept, class Begin, class End>
__device__ __forceinline__ void overlap_steps(const Work& work, const Begin& begin, const End& end) {
  Kept even, odd;
  begin(even, work.begin);
  int step = work.begin + 1;
  for (; step + 1 < work.end; step += 2) {
    begin(odd, step);
    end(even, false);
    begin(even, step + 1);
    end(odd, false);
  }
  if (step < work.end) {
    begin(odd, step);
    end(even, false);
    end(odd, true);
  } else {
    end(even, true);
  }
}

// ---- Clusters: blocks of the same rows share A, and those of the same columns share B

constexpr int SHARERS = CLUSTER_M + CLUSTER_N - 1;  // blocks that copy for this one, with itself
constexpr int A_SLICE = COPIED_M / CLUSTER_N, B_SLICE = TILE_N / CLUSTER_M;  // that a block copies
static_assert(A_SLICE % (A_TRANSPOSED ? LINE : 8) == 0 && B_SLICE % (B_TRANSPOSED ? 8 : LINE) == 0,
              "slices must consist of boxes, whose patterns repeat after eight lines");

__device__ __forceinline__ int own_rank() { return blockIdx.x % CLUSTER; }

// The rank of one of the SHARERS of a block.
__device__ __forceinline__ int sharer_of(int rank, int number) {
  int m = rank % CLUSTER_M, n = rank / CLUSTER_M;
  return number < CLUSTER_N ? m + number * CLUSTER_M
                            : (m + 1 + number - CLUSTER_N) % CLUSTER_M + n * CLUSTER_M;
}

// Meet when barriers have been initialized. Blocks that divide the steps of a tile copy for themselves alone: they first
// meet when they add their sums.
__device__ __forceinline__ void begin_together() {
  if (TILE_BLOCKS > 1) {
    __syncthreads();
  } else {
    meet();
  }
}

// Tell one of the SHARERS of a block that it has read a stage.
__device__ __forceinline__ void empty_for(Barrier& empty, int rank, int number) {
#if TILE_BLOCKS > 1
  arrive(empty);  // a block copies for itself alone
#else
  arrive_at(empty, sharer_of(rank, number));
#endif
}

// Copy the box of `map` whose first element is at (x, y) of matrix z, x being the inner dimension, to the
// same place of all blocks of the cluster whose ranks are set in `ranks`, or only to this block.
template <bool TO_SEVERAL>
__device__ __forceinline__ void copy_box(Element* to, const CUtensorMap& map, int x, int y, int z,
                                         Barrier& full, unsigned short ranks) {
#if PRODUCTS > 1
  if (TO_SEVERAL) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;"
        :: "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&full)),
           "h"(ranks)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];"
        :: "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&full))
        : "memory");
  }
#else
  if (TO_SEVERAL) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
        :: "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(shared_address(&full)), "h"(ranks)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];"
        :: "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(shared_address(&full))
        : "memory");
  }
#endif
}

// Copy what a block of this rank copies of a step, of which `place` and `k` are the beginning. A stage
// consists of boxes as high as the tile, in each of which a row is a line.
__device__ __forceinline__ void copy_step(Element* a_stage, Element* b_stage,
                                          const CUtensorMap& a_map, const CUtensorMap& b_map,
                                          Place place, int k, int rank, Barrier& full) {
  int m = rank % CLUSTER_M * B_SLICE, n = rank / CLUSTER_M * A_SLICE;
  int of_a = matrix_of(place), of_b = place.product;
  unsigned short of_rows = 0;
#pragma unroll
  for (int i = 0; i < CLUSTER_N; ++i) of_rows |= 1 << (rank % CLUSTER_M + i * CLUSTER_M);
  unsigned short of_columns = ((1 << CLUSTER_M) - 1) << (rank / CLUSTER_M * CLUSTER_M);
  arrive_expecting(full, STAGE_BYTES);
#if A_TRANSPOSED
  for (int i = n; i < n + A_SLICE; i += LINE) {
    copy_box<(CLUSTER_N > 1)>(a_stage + i * TILE_K, a_map, place.row + i, k, of_a, full, of_rows);
  }
#else
  for (int i = 0; i < TILE_K; i += LINE) {
    copy_box<(CLUSTER_N > 1)>(a_stage + i * TILE_M + n * LINE, a_map, k + i, place.row + n, of_a,
                              full, of_rows);
  }
#endif
#if B_TRANSPOSED
  for (int i = 0; i < TILE_K; i += LINE) {
    copy_box<(CLUSTER_M > 1)>(b_stage + i * TILE_N + m * LINE, b_map, k + i, place.column + m, of_b,
                              full, of_columns);
  }
#else
  for (int i = m; i < m + B_SLICE; i += LINE) {
    copy_box<(CLUSTER_M > 1)>(b_stage + i * TILE_K, b_map, place.column + i, k, of_b, full,
                              of_columns);
  }
#endif
}

// Copy a box to `map`. It may be filled again after wait_for_boxes.
__device__ __forceinline__ void store_box(const CUtensorMap& map, int x, int y, int z,
                                          const void* from) {
#if PRODUCTS > 1
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];\n"
      "cp.async.bulk.commit_group;"
      :: "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(from)) : "memory");
#else
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n"
      "cp.async.bulk.commit_group;"
      :: "l"(&map), "r"(x), "r"(y), "r"(shared_address(from)) : "memory");
#endif
}

// Wait until all boxes that this thread stores have been read, but the latest `others`.
template <int OTHERS>
__device__ __forceinline__ void wait_for_boxes() {
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(OTHERS) : "memory");
}
