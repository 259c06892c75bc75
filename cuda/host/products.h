// Sums of products as tensor cores compute them; linked only into the runtime.
#pragma once

#include "matrices.h"
#include "runtime.h"

namespace cuhost {

constexpr int rows_at_once = 16, most_depth = 32;

// The product of 16 rows of A and some columns of B, by one instruction.
struct Products {
  const float* a;        // a[k * a_step + row]
  int a_step;
  const float* b;        // b[column * depth + k]
  int depth, columns;
  bool small;            // the operands have 8 bits
  float* sums;           // sums[column * sums_step + row]: what is added to, and then the result
  int sums_step;
  double* exact;         // exact[column * 16 + row]: the results before they are rounded; null: nobody asks
};

// products.cpp
void add_products(const Products& all);

}  // namespace cuhost
