// Bulk copies between global and shared memory: of bytes, and of tiles of tensors.
#pragma once

#include "interface.h"

namespace cuhost {

extern "C" {
// To shared memory; their bytes arrive at the barrier's phase. With `blocks`, to the same place and barrier of
// each block of the cluster whose rank is set there.
void cuhost_bulk_load(void* to, const void* from, unsigned bytes, uint64_t* word, unsigned blocks);
void cuhost_tile_load(void* to, const void* map, int rank, const int* at, uint64_t* word, unsigned blocks);
// Of pixels from `at` on, each of them moved by the offsets in W, H and D.
void cuhost_im2col_load(void* to, const void* map, int rank, const int* at, const int* offsets, uint64_t* word,
                        unsigned blocks);
// From shared memory; they are done when the thread waits for their group.
void cuhost_bulk_store(void* to, const void* from, unsigned bytes);
void cuhost_tile_store(const void* map, int rank, const int* at, const void* from);
void cuhost_bulk_commit();
void cuhost_bulk_wait(unsigned long long but_latest);
}

}  // namespace cuhost
