// Clusters: blocks that run at the same time and reach one another's shared memory, by PTX ISA, "Cluster of
// Cooperative Thread Arrays".
//
// What a block does in another one's shared memory is sent there, and happens when a thread of that block
// next comes to a barrier.
#pragma once

#include "interface.h"

namespace cuhost {

extern "C" {
// At an mbarrier of the own block or, by an address of cuhost_map_shared, of another one.
void cuhost_arrive_in_cluster(uint64_t* word, unsigned count);
}

}  // namespace cuhost
