// Arithmetic of floating-point operands, after Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior
// of NVIDIA tensor cores", PeerJ Computer Science 7:e330, 2021: products are exact. All those of an
// element and the accumulator are aligned to the largest of them, cut off (rounded toward zero) after
// 24 bits and two more, added exactly, and the sum is rounded toward zero, or to the nearest number for
// 16-bit accumulators. Cards differ in how many products they add at once; here it is all of one
// instruction's. Of products of 8-bit operands Hopper keeps about 14 bits (DeepSeek-AI, "DeepSeek-V3
// Technical Report", 2024, section 3.3.2).
#include "products.h"

#include <cmath>
#include <cstring>

namespace cuhost {
namespace {

constexpr int kept_bits = 25, kept_bits_of_8 = 13;  // below the leading bit of the largest term
using Longs = long long __attribute__((vector_size(8 * columns)));
using Ints = int __attribute__((vector_size(4 * columns)));
using Floats = float __attribute__((vector_size(4 * columns)));

// The sums of a row, before they are rounded.
Reals cut_sums(const Operands& all, int row, int depth, int kept) {
  Reals terms[most_depth + 1];
  const Longs size_bits = (Longs){} + 0x7fffffffffffffffll, power_bits = (Longs){} + (0x7ffll << 52);
  Longs most = (Longs){} + ((1023ll - 400) << 52);  // less than any product
  for (int k = 0; k <= depth; ++k) {
    terms[k] = k < depth ? all.a[row][k] * all.b[k] : all.c[row];
    Longs size = (Longs)terms[k] & size_bits, larger = size > most;
    most = (size & larger) | (most & ~larger);
  }
  Longs power = most & power_bits;
  Reals scale = (Reals)((Longs){} + ((2046ll + kept) << 52) - power);
  Reals back = (Reals)(power - ((Longs){} + ((long long)kept << 52)));
  Ints sums = {};
  for (int k = 0; k <= depth; ++k) sums += __builtin_convertvector(terms[k] * scale, Ints);
  return __builtin_convertvector(sums, Reals) * back;
}

// Toward zero; too large numbers become infinite.
Ints cut_floats(Reals sums) {
  const Longs size_bits = (Longs){} + 0x7fffffffffffffffll;
  Floats nearest = __builtin_convertvector(sums, Floats);
  Reals again = __builtin_convertvector(nearest, Reals);
  Longs size = (Longs)sums & size_bits;
  Longs above = (((Longs)again & size_bits) > size) & (size < (Longs){} + ((1023ll + 128) << 52));
  return (Ints)nearest + __builtin_convertvector(above, Ints);
}

bool is_special(double value) { return !std::isfinite(value); }

// Elements that infinity or NaN reaches.
void settle_special(const Operands& all, int rows, int depth, Reals* sums) {
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      double sum = all.c[row][column];
      for (int k = 0; k < depth; ++k) sum += all.a[row][k] * all.b[k][column];
      if (is_special(sum)) sums[row][column] = sum;
    }
  }
}

bool any_special(const Operands& all, int rows, int depth) {
  const Longs power_bits = (Longs){} + (0x7ffll << 52);
  Longs found = {};
  for (int k = 0; k < depth; ++k) found |= ((Longs)all.b[k] & power_bits) == power_bits;
  for (int row = 0; row < rows; ++row) found |= ((Longs)all.c[row] & power_bits) == power_bits;
  bool any = false;
  for (int k = 0; k < columns; ++k) any |= found[k] != 0;
  for (int row = 0; row < rows; ++row)
    for (int k = 0; k < depth; ++k) any |= is_special(all.a[row][k]);
  return any;
}

uint32_t special_bits(double sum) {
  float narrow = (float)sum;
  uint32_t bits;
  memcpy(&bits, &narrow, sizeof bits);
  return sum != sum ? 0x7fffffff : bits;
}

}  // namespace

void add_products(const Operands& all, int rows, int depth, bool small, Sums& sums) {
  int kept = small ? kept_bits_of_8 : kept_bits;
  for (int row = 0; row < rows; ++row) sums.exact[row] = cut_sums(all, row, depth, kept);
  bool special = any_special(all, rows, depth);
  if (special) settle_special(all, rows, depth, sums.exact);
  for (int row = 0; row < rows; ++row) {
    Ints floats = cut_floats(sums.exact[row]);
    memcpy(sums.floats[row], &floats, sizeof floats);
    for (int column = 0; special && column < columns; ++column)
      if (is_special(sums.exact[row][column])) sums.floats[row][column] = special_bits(sums.exact[row][column]);
  }
}

}  // namespace cuhost
