// The blocks of a launch and the orders in which they run.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "runtime.h"

namespace cuhost {

uint64_t blocks_of(Index grid);

// Order of the grid's blocks: ascending, descending, or with a stride that is coprime to their
// number and so visits each once.
struct BlockOrder {
  uint64_t count, seed, stride = 1, offset = 0;
  BlockOrder(uint64_t count, uint64_t seed);
  unsigned at(uint64_t step) const {
    if (seed == 1) return (unsigned)(count - 1 - step);
    return (unsigned)((step * stride + offset) % count);
  }
};

// Which block begins next, or which cluster of a grid of them. While a block waits, these are the first that
// have not begun, as on a card: where blocks wait for others, it is for those before them.
class Blocks {
 public:
  virtual ~Blocks() = default;
  virtual bool next(unsigned& block) = 0;   // false if there is none
  virtual bool first(unsigned& block) = 0;  // likewise
};

// The first and last block, the corners of the grid, and then others drawn from the seed, each with
// its neighbours and two a fraction of the grid away: these are the likeliest to access the same places.
class Sample final : public Blocks {
 public:
  explicit Sample(Index grid);
  bool next(unsigned& block) override;
  bool first(unsigned& block) override;
  bool has(unsigned block) const { return drawn.count(block) != 0; }
  size_t size() const { return drawn.size(); }
  void end() { ended = true; }  // no more, unless others wait for them
  void take_all() { all = true; }

 private:
  Index grid;
  BlockOrder order;
  std::unordered_set<unsigned> drawn;
  unsigned at = 0, lowest = 0;
  uint64_t step = 0;
  bool ended = false, all = false;

  unsigned corner(unsigned k) const;
  unsigned relative(unsigned block, unsigned k) const;
};

// All blocks, or every how manyth, in the plan's order, except those of a sample.
class Sequence final : public Blocks {
 public:
  Sequence(Index grid, uint64_t stride, const Sample* except);
  bool next(unsigned& block) override;
  bool first(unsigned& block) override;

 private:
  BlockOrder order;
  uint64_t step = 0, stride;
  const Sample* except;
  std::vector<bool> begun;  // empty until a block waits
  unsigned lowest = 0;
};

}  // namespace cuhost
