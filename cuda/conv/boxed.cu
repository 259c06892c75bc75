// Copies of lines by the tensor memory accelerator, from inputs in NHWC whose channels fill pieces of 16
// bytes. It finds the windows of pixels itself (im2col); what is outside the input becomes 0.
//
// A box has a line of channels of one tap. All taps of the same channels follow each other, so that blocks that compute
// at the same time find what they share in the L2, however large the input is. One thread starts all copies. Others
// write the smaller parts of split weights.
//
// The constants of this text are:
//   EARLY              whether a launch before this one, which packs, may not have ended
//   WEIGHT_IN          channels of a tap of the weights; if they were split before, as many of what is left follow

#include <cuda.h>

constexpr int CHANNEL_BOXES = (GROUP_IN + LINE - 1) / LINE;
constexpr int STEPS = (TAPS * CHANNEL_BOXES + BOXES - 1) / BOXES;
constexpr int FULL_ARRIVALS = 1;
constexpr int PREPARERS = 32 * WARPS - 32;

// Copy lines of TILE_P pixels, of which the first one's window begins at `at`: of its tap at (x, y).
__device__ __forceinline__ void copy_windows(Element* to, const CUtensorMap& map, int channel,
                                             const Origin& at, int x, int y, Barrier& full) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};"
      :: "r"(shared_address(to)), "l"(&map), "r"(channel), "r"(at.x), "r"(at.y), "r"(at.image),
         "r"(shared_address(&full)), "h"(static_cast<short>(x)), "h"(static_cast<short>(y))
      : "memory");
}

__device__ __forceinline__ void copy_weights(Element* to, const CUtensorMap& map, int channel,
                                             int tap, int row, Barrier& full) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];"
      :: "r"(shared_address(to)), "l"(&map), "r"(channel), "r"(tap), "r"(row),
         "r"(shared_address(&full))
      : "memory");
}

// Copy the steps of all tiles of a block, in the warps that copy.
__device__ __forceinline__ void produce(const CUtensorMap& data, const CUtensorMap& weight,
                                        Element* stages, Barrier* full, Barrier* ready,
                                        Barrier* empty, int begin, int end) {
  int thread = threadIdx.x % 128, begun = 0;
  Ring ring;
  if (thread == 0) {
#if EARLY
    asm volatile("griddepcontrol.wait;" ::: "memory");  // for the launch that packs
#endif
    for (int number = blockIdx.x / SPLITS; number < TILES; number += BLOCKS) {
      Tile tile = tile_at(number);
      Origin at = origin_of(tile.pixel);
      for (int step = begin; step < end; ++step) {
        wait(empty[ring.stage], ring.parity ^ 1);
        Stage stage = stage_at(stages, ring.stage);
        bool weights = has_new_weights(begun++);
        constexpr int WEIGHTS = (1 + SPLIT_BEFORE) * C_STAGE;
        arrive_expecting(full[ring.stage], (P_STAGE + (weights ? WEIGHTS : 0)) * static_cast<int>(sizeof(Element)));
#pragma unroll
        for (int i = 0; i < BOXES; ++i) {
          int box = step * BOXES + i, tap = box % TAPS, first = box / TAPS * LINE;
          bool any = (TAPS * CHANNEL_BOXES) % BOXES == 0 || box < TAPS * CHANNEL_BOXES;
          copy_windows(stage.pixels + i * TILE_P * LINE, data,
                       any ? tile.group * GROUP_IN + first : CI, at, tap % KW * X_DILATION,
                       tap / KW * DILATION, full[ring.stage]);
          if (!weights) continue;
          int filter = tile.group * GROUP_OUT + tile.channel;
          copy_weights(stage.weights + i * TILE_C * LINE, weight, any ? first : 2 * WEIGHT_IN, tap, filter,
                       full[ring.stage]);
#if SPLIT_BEFORE
          copy_weights(stage.rest_of_weights + i * TILE_C * LINE, weight, any ? WEIGHT_IN + first : 2 * WEIGHT_IN, tap,
                       filter, full[ring.stage]);
#endif
        }
        ring.advance();
      }
    }
  } else if (SPLIT && !SPLIT_BEFORE && thread >= 32) {
#if SPLIT && !SPLIT_BEFORE
    for (int number = blockIdx.x / SPLITS; number < TILES; number += BLOCKS) {
      for (int step = begin; step < end; ++step) {
        wait(full[ring.stage], ring.parity);
        Stage stage = stage_at(stages, ring.stage);
        if (has_new_weights(begun++)) {
          write_rest<1, C_STAGE, C_STAGE, PREPARERS>(stage.rest_of_weights, stage.weights,
                                                     thread - 32);
          written_for_async();
        }
        arrive_as_warp(ready[ring.stage]);
        ring.advance();
      }
    }
#endif
  }
}
