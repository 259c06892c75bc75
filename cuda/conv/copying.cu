// How threads copy the steps of tiles, some of them ahead: after gathered.cu or blocked.cu.

// Steps whose copies are under way. A stage becomes empty when the products of the next step have begun,
// so that the step before the one whose stage is waited for has to be full.
constexpr int AHEAD = STAGES - 2;

// The copies of this thread for the oldest step are in shared memory: it is full after all threads.
__device__ __forceinline__ void finish_stage(const Stage& stage, bool weights, int thread,
                                             Barrier& full) {
#if SPLIT
  if (weights) {
    meet_copying();
    write_rest_of_weights(stage, thread);
  }
#endif
  written_for_async();
  arrive_as_warp(full);
}

// Copy the steps of all tiles of a block, in the warps that copy.
__device__ __forceinline__ void produce(const Element* data, const Element* weight, Element* stages,
                                        Barrier* full, Barrier*, Barrier* empty, int begin,
                                        int end) {
  __shared__ Corner corners[CORNERS ? TILE_P : 1];
  int thread = threadIdx.x % 128, under_way = 0, begun = 0, finished = 0;
  Ring ring, oldest;
  for (int number = blockIdx.x / SPLITS; number < TILES; number += BLOCKS) {
    Tile tile = tile_at(number);
    if (CORNERS) {
      meet_copying();  // all have read those of the last tile
      for (int i = thread; i < TILE_P; i += 32 * WARPS) corners[i] = corner_of(tile, i);
      meet_copying();
    }
    for (int step = begin; step < end; ++step) {
      wait(empty[ring.stage], ring.parity ^ 1);
      copy_step(stage_at(stages, ring.stage), data, weight, corners, tile, step,
                has_new_weights(begun++), thread);
      commit();
      ring.advance();
      if (++under_way > AHEAD) {
        wait_for_copies<AHEAD>();
        finish_stage(stage_at(stages, oldest.stage), has_new_weights(finished++), thread,
                     full[oldest.stage]);
        oldest.advance();
        --under_way;
      }
    }
  }
  wait_for_copies<0>();
  for (; under_way > 0; --under_way) {
    finish_stage(stage_at(stages, oldest.stage), has_new_weights(finished++), thread,
                 full[oldest.stage]);
    oldest.advance();
  }
}
