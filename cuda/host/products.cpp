// Arithmetic of floating-point operands, after Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior
// of NVIDIA tensor cores", PeerJ Computer Science 7:e330, 2021: products are exact. All those of an
// element and the accumulator are aligned to the largest of them, cut off (rounded toward zero) after
// 24 bits and two more, added exactly, and the sum is rounded toward zero, or to the nearest number for
// 16-bit accumulators. Cards differ in how many products they add at once; here it is all of one
// instruction's. Of products of 8-bit operands Hopper keeps about 14 bits (DeepSeek-AI, "DeepSeek-V3
// Technical Report", 2024, section 3.3.2).
//
// A factor has at most 11 bits, so that a float holds a product exactly unless its exponent is too large
// or too small. Where no exponent is extreme, all is computed in floats, and in doubles elsewhere.
#include "products.h"

#include <cmath>
#include <cstring>

namespace cuhost {
namespace {

constexpr int kept_bits = 25, kept_bits_of_8 = 13;  // below the leading bit of the largest term
using Floats = float __attribute__((vector_size(4 * rows_at_once)));
using Ints = int __attribute__((vector_size(4 * rows_at_once)));
using Words = unsigned __attribute__((vector_size(4 * rows_at_once)));
using Reals = double __attribute__((vector_size(8 * rows_at_once)));
using Longs = long long __attribute__((vector_size(8 * rows_at_once)));

// Exponents of ordinary factors are -45 to 45, and those of their products and of accumulators -90 to 91.
constexpr unsigned float_size = 0x7fffffff, float_power = 0x7f800000;
constexpr unsigned least_factor = (127 - 45) << 23, factor_range = 91 << 23;
constexpr unsigned least_term = (127 - 90) << 23, term_range = 182 << 23;

Floats load(const float* from) {
  Floats values;
  memcpy(&values, from, sizeof values);
  return values;
}

Words extreme(Floats values, unsigned least, unsigned range) {
  Words size = (Words)values & float_size;
  return (Words)(size - least >= range) & (Words)(size != 0);
}

bool any(Words found) {
  unsigned all = 0;
  for (int k = 0; k < rows_at_once; ++k) all |= found[k];
  return all != 0;
}

bool has_extreme_factors(const Products& all) {
  Words found = {};
  for (int k = 0; k < all.depth; ++k) found |= extreme(load(all.a + k * all.a_step), least_factor, factor_range);
  unsigned others = 0;
  for (int k = 0; k < all.columns * all.depth; ++k) {
    unsigned bits;
    memcpy(&bits, all.b + k, sizeof bits);
    bits &= float_size;
    others |= (bits - least_factor >= factor_range) & (bits != 0);
  }
  return others || any(found);
}

// Toward zero.
Floats cut_floats(Ints sums) {
  Floats nearest = __builtin_convertvector(sums, Floats);
  Ints again = __builtin_convertvector(nearest, Ints), sign = sums >> 31;
  Ints above = ((again ^ sign) - sign) > ((sums ^ sign) - sign);
  return (Floats)((Ints)nearest + above);
}

// One column of the results.
template <int depth>
void add_floats(const Products& all, int column, int kept) {
  float* sums = all.sums + column * all.sums_step;
  const float* b = all.b + column * depth;
  Floats terms[depth + 1];
  terms[depth] = load(sums);
  Words most = (Words){} + (least_term - (1 << 23));
  for (int k = 0; k <= depth; ++k) {
    if (k < depth) terms[k] = load(all.a + k * all.a_step) * b[k];
    Words size = (Words)terms[k] & float_size;
    most = size > most ? size : most;
  }
  Words power = most & float_power;
  Floats scale = (Floats)((unsigned)(254 + kept) * (1u << 23) - power);
  Floats back = (Floats)(power - (unsigned)kept * (1u << 23));
  Ints sum = {};
  for (int k = 0; k <= depth; ++k) sum += __builtin_convertvector(terms[k] * scale, Ints);
  Floats result = cut_floats(sum) * back;
  memcpy(sums, &result, sizeof result);
  if (all.exact) {
    Reals exact = __builtin_convertvector(sum, Reals) * __builtin_convertvector(back, Reals);
    memcpy(all.exact + column * rows_at_once, &exact, sizeof exact);
  }
}

bool is_special(double value) { return !std::isfinite(value); }

// A sum, toward zero; too large ones become infinite.
float cut(double sum) {
  if (sum != sum) {
    constexpr unsigned bits = 0x7fffffff;
    float result;
    memcpy(&result, &bits, sizeof bits);
    return result;
  }
  float nearest = (float)sum;
  bool above = std::fabs((double)nearest) > std::fabs(sum) && std::fabs(sum) < 0x1p128;
  return above ? std::nextafterf(nearest, 0) : nearest;
}

void add_reals(const Products& all, int column, int kept) {
  float* sums = all.sums + column * all.sums_step;
  const float* b = all.b + column * all.depth;
  Reals terms[most_depth + 1];
  const Longs size_bits = (Longs){} + 0x7fffffffffffffffll, power_bits = (Longs){} + (0x7ffll << 52);
  Longs most = (Longs){} + ((1023ll - 400) << 52);  // less than any product
  Reals special = {};  // the sum as it is without cutting off, for what infinity or NaN reaches
  for (int k = 0; k <= all.depth; ++k) {
    if (k < all.depth) terms[k] = __builtin_convertvector(load(all.a + k * all.a_step), Reals) * (double)b[k];
    else terms[k] = __builtin_convertvector(load(sums), Reals);
    special += terms[k];
    Longs size = (Longs)terms[k] & size_bits;
    most = size > most ? size : most;
  }
  Longs power = most & power_bits;
  Reals scale = (Reals)(((2046ll + kept) << 52) - power);
  Reals back = (Reals)(power - ((long long)kept << 52));
  Ints sum = {};
  for (int k = 0; k <= all.depth; ++k) sum += __builtin_convertvector(terms[k] * scale, Ints);
  Reals exact = __builtin_convertvector(sum, Reals) * back;
  for (int row = 0; row < rows_at_once; ++row) {
    if (is_special(special[row])) exact[row] = special[row];
    sums[row] = cut(exact[row]);
  }
  if (all.exact) memcpy(all.exact + column * rows_at_once, &exact, sizeof exact);
}

template <int depth>
void add_columns(const Products& all) {
  int kept = all.small ? kept_bits_of_8 : kept_bits;
  bool extreme_factors = has_extreme_factors(all);
  for (int column = 0; column < all.columns; ++column) {
    const float* sums = all.sums + column * all.sums_step;
    if (extreme_factors || any(extreme(load(sums), least_term, term_range))) add_reals(all, column, kept);
    else add_floats<depth>(all, column, kept);
  }
}

}  // namespace

void add_products(const Products& all) {
  switch (all.depth) {
    case 4: return add_columns<4>(all);
    case 8: return add_columns<8>(all);
    case 16: return add_columns<16>(all);
    default: return add_columns<32>(all);
  }
}

}  // namespace cuhost
