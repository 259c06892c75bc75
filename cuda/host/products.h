// Sums of products as tensor cores compute them; linked only into the runtime.
#pragma once

#include "matrices.h"
#include "runtime.h"

namespace cuhost {

constexpr int columns = 8, most_rows = 16, most_depth = 32;
using Reals = double __attribute__((vector_size(8 * columns)));

struct Operands {
  double a[most_rows][most_depth];
  Reals b[most_depth];
  Reals c[most_rows];
};
struct Sums {
  Reals exact[most_rows];               // before they are rounded
  uint32_t floats[most_rows][columns];  // the bits of accumulators of f32
};

// products.cpp: c + a b of one instruction. `small`: operands have 8 bits.
void add_products(const Operands& all, int rows, int depth, bool small, Sums& sums);

}  // namespace cuhost
