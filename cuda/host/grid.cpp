// In which order the blocks of a launch begin.
#include "grid.h"

#include <iterator>
#include <numeric>

namespace cuhost {

uint64_t blocks_of(Index grid) { return (uint64_t)grid.x * grid.y * grid.z; }

BlockOrder::BlockOrder(uint64_t count, uint64_t seed) : count(count), seed(seed) {
  if (seed < 2) return;
  uint64_t mixed = seed * 0x9e3779b97f4a7c15ull;
  stride = mixed % count + 1;
  while (std::gcd(stride, count) != 1) ++stride;
  offset = (mixed >> 32) % count;
}

static constexpr unsigned corners[] = {0, 7, 1, 6, 2, 5, 3, 4};
static constexpr unsigned relatives = 6;         // a block itself, its neighbours, and two far off
static constexpr unsigned parts[] = {2, 3, 5, 7};

Sample::Sample(Index grid) : grid(grid), order(blocks_of(grid), plan.order_seed + 2) {}

bool Sample::next(unsigned& block) {
  while (!ended && (at < 8 || step < order.count)) {
    block = at < 8 ? corner(corners[at]) : relative(order.at(step), at - 8);
    if (at < 8) ++at;
    else if (++at == 8 + relatives) at = 8, ++step;
    if (drawn.insert(block).second) return true;
  }
  return all && first(block);
}

bool Sample::first(unsigned& block) {
  for (; lowest < order.count; ++lowest) {
    if (!drawn.insert(lowest).second) continue;
    block = lowest++;
    return true;
  }
  return false;
}

unsigned Sample::corner(unsigned k) const {
  unsigned x = k & 1 ? grid.x - 1 : 0, y = k & 2 ? grid.y - 1 : 0, z = k & 4 ? grid.z - 1 : 0;
  return x + grid.x * (y + grid.y * z);
}

// Where a dimension numbers several parts of each tile, the parts of a tile lie a fraction of it apart. Of
// all numbers of parts up to 10, these are the prime factors.
unsigned Sample::relative(unsigned block, unsigned k) const {
  Index index = index_of(block, grid);
  unsigned part = parts[step % std::size(parts)];
  if (k == 4 && grid.x % part == 0) return block - index.x + (index.x + grid.x / part) % grid.x;
  if (k == 5 && order.count % part == 0) return (unsigned)((block + order.count / part) % order.count);
  if (k == 1 && index.x + 1 < grid.x) return block + 1;
  if (k == 2 && index.y + 1 < grid.y) return block + grid.x;
  if (k == 3 && index.z + 1 < grid.z) return block + grid.x * grid.y;
  return block;
}

Sequence::Sequence(Index grid, uint64_t stride, const Sample* except)
    : order(blocks_of(grid), plan.order_seed), stride(stride), except(except) {}

bool Sequence::next(unsigned& block) {
  for (; step < order.count; step += stride) {
    block = order.at(step);
    if (!begun.empty() && begun[block]) continue;
    if (except && except->has(block)) continue;
    if (!begun.empty()) begun[block] = true;
    step += stride;
    return true;
  }
  return false;
}

bool Sequence::first(unsigned& block) {
  if (begun.empty()) {
    begun.resize(order.count);
    for (uint64_t k = 0; k < step; k += stride) begun[order.at(k)] = true;
  }
  for (; lowest < order.count; ++lowest) {
    if (begun[lowest] || (except && except->has(lowest))) continue;
    begun[lowest] = true;
    block = lowest++;
    return true;
  }
  return false;
}

}  // namespace cuhost
