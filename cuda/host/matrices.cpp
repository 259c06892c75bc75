// Products of matrices as tensor cores compute them, and the parts of matrices that lanes hold.
//
// Layouts: PTX ISA, "Matrix Fragments for mma". A register holds neighbours of a row of A, or of a
// column of B; registers go first down and then along A, and down B.
//
// Arithmetic of floating-point operands, after Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior
// of NVIDIA tensor cores", PeerJ Computer Science 7:e330, 2021: products are exact. All those of an
// element and the accumulator are aligned to the largest of them, cut off (rounded toward zero) after
// 24 bits and two more, added exactly, and the sum is rounded toward zero, or to the nearest number for
// 16-bit accumulators. Cards differ in how many products they add at once; here it is all of one
// instruction's. Of products of 8-bit operands Hopper keeps about 14 bits (DeepSeek-AI, "DeepSeek-V3
// Technical Report", 2024, section 3.3.2).
#include "matrices.h"

#include <cmath>
#include <cstring>

#include "runtime.h"

namespace cuhost {
namespace {

constexpr int columns = 8, most_rows = 16, most_depth = 32;
constexpr int kept_bits = 25, kept_bits_of_8 = 13;  // below the leading bit of the largest term
using Reals = double __attribute__((vector_size(8 * columns)));
using Longs = long long __attribute__((vector_size(8 * columns)));
using Ints = int __attribute__((vector_size(4 * columns)));
using Floats = float __attribute__((vector_size(4 * columns)));

constexpr int width_of(cuhost_Kind kind) {
  switch (kind) {
    case cuhost_matrix_f64: return 8;
    case cuhost_matrix_f16:
    case cuhost_matrix_bf16: return 2;
    case cuhost_matrix_e4m3:
    case cuhost_matrix_e5m2:
    case cuhost_matrix_s8:
    case cuhost_matrix_u8: return 1;
    default: return 4;
  }
}

constexpr int packed_of(cuhost_Kind kind) { return width_of(kind) < 4 ? 4 / width_of(kind) : 1; }

template <class T>
T as(uint32_t bits) {
  T result;
  memcpy(&result, &bits, sizeof result);
  return result;
}
template <class T>
uint32_t bits_of(T value) {
  uint32_t result;
  memcpy(&result, &value, sizeof result);
  return result;
}

double half_value(uint32_t bits) {
  uint32_t sign = (bits & 0x8000) << 16, rest = bits & 0x7fff;
  if (rest >= 0x7c00) return as<float>(sign | 0x7f800000 | (rest - 0x7c00) << 13);
  float scaled = as<float>(rest << 13) * 0x1p112f;
  return sign ? -(double)scaled : scaled;
}

// The only special value of e4m3 is NaN.
double e4m3_value(uint32_t bits) {
  uint32_t sign = (bits & 0x80) << 24, rest = bits & 0x7f;
  if (rest == 0x7f) return as<float>(0x7fffffff);
  float scaled = as<float>(rest << 20) * 0x1p120f;
  return sign ? -(double)scaled : scaled;
}

// The nearest number of 16 bits, ties to even.
uint32_t half_bits(double value) {
  uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  double size = std::fabs(value);
  if (value != value) return 0x7fff;
  if (size >= 65520) return sign | 0x7c00;
  int power = size < 0x1p-14 ? -14 : std::ilogb(size);
  return sign | (uint32_t)((power + 14) * 1024 + (int)std::nearbyint(std::ldexp(size, 10 - power)));
}

// Element k of the words that a lane holds.
double element(const uint32_t* words, int k, cuhost_Kind kind) {
  switch (kind) {
    case cuhost_matrix_f64: {
      double value;
      memcpy(&value, (const char*)words + 8 * k, 8);
      return value;
    }
    case cuhost_matrix_f16: return half_value(words[k / 2] >> (k % 2 * 16) & 0xffff);
    case cuhost_matrix_bf16: return as<float>(words[k / 2] >> (k % 2 * 16) << 16);
    case cuhost_matrix_tf32: return as<float>(words[k] & 0xffffe000);
    case cuhost_matrix_e4m3: return e4m3_value(words[k / 4] >> (k % 4 * 8) & 0xff);
    case cuhost_matrix_e5m2: return half_value((words[k / 4] >> (k % 4 * 8) & 0xff) << 8);
    case cuhost_matrix_s8: return (int8_t)(words[k / 4] >> (k % 4 * 8));
    case cuhost_matrix_u8: return (uint8_t)(words[k / 4] >> (k % 4 * 8));
    case cuhost_matrix_s32: return (int32_t)words[k];
    default: return as<float>(words[k]);
  }
}

struct Operands {
  double a[most_rows][most_depth];
  Reals b[most_depth];
  Reals c[most_rows];
};

template <cuhost_Kind kind>
void gather_a(Operands& all, cuhost_Product* const* lanes, int rows, int depth) {
  constexpr int packed = packed_of(kind);
  int downs = rows / 8, parts = depth / (4 * packed);
  for (int lane = 0; lane < 32; ++lane) {
    int group = lane / 4, within = lane % 4 * packed;
    for (int part = 0; part < parts; ++part) {
      for (int i = 0; i < packed; ++i) {
        int k = within + 4 * packed * part + i;
        for (int down = 0; down < downs; ++down)
          all.a[group + 8 * down][k] = element(lanes[lane]->a, (part * downs + down) * packed + i, kind);
      }
    }
  }
}

template <cuhost_Kind kind>
void gather_b(Operands& all, cuhost_Product* const* lanes, int depth) {
  constexpr int packed = packed_of(kind);
  for (int lane = 0; lane < 32; ++lane) {
    for (int part = 0; part < depth / (4 * packed); ++part) {
      for (int i = 0; i < packed; ++i)
        all.b[lane % 4 * packed + 4 * packed * part + i][lane / 4] = element(lanes[lane]->b, part * packed + i, kind);
    }
  }
}

template <class F>
void with_kind(cuhost_Kind kind, F&& f) {
#define CASE(known) \
    case known: return f(std::integral_constant<cuhost_Kind, known>{});
  switch (kind) {
    CASE(cuhost_matrix_f64)
    CASE(cuhost_matrix_f16)
    CASE(cuhost_matrix_bf16)
    CASE(cuhost_matrix_tf32)
    CASE(cuhost_matrix_s8)
    CASE(cuhost_matrix_e4m3)
    CASE(cuhost_matrix_e5m2)
    default: CASE(cuhost_matrix_u8)
  }
#undef CASE
}

void gather(Operands& all, cuhost_Product* const* lanes, int rows) {
  const cuhost_Product& one = *lanes[0];
  with_kind(one.a_kind, [&](auto kind) { gather_a<kind>(all, lanes, rows, one.depth); });
  with_kind(one.b_kind, [&](auto kind) { gather_b<kind>(all, lanes, one.depth); });
  for (int lane = 0; lane < 32; ++lane) {
    for (int k = 0; k < rows / 4; ++k)
      all.c[lane / 4 + k / 2 * 8][lane % 4 * 2 + k % 2] = element(lanes[lane]->c, k, one.c_kind);
  }
}

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

void multiply_floats(const Operands& all, cuhost_Product* const* lanes, int rows) {
  int depth = lanes[0]->depth;
  bool halves = lanes[0]->c_kind == cuhost_matrix_f16;
  int kept = width_of(lanes[0]->a_kind) == 1 ? kept_bits_of_8 : kept_bits;
  Reals sums[most_rows];
  for (int row = 0; row < rows; ++row) sums[row] = cut_sums(all, row, depth, kept);
  bool special = any_special(all, rows, depth);
  if (special) settle_special(all, rows, depth, sums);
  for (int row = 0; row < rows; ++row) {
    Ints floats = cut_floats(sums[row]);
    for (int column = 0; column < columns; ++column) {
      uint32_t* d = lanes[row % 8 * 4 + column / 2]->c;
      double sum = sums[row][column];
      if (halves) {
        int shift = column % 2 * 16;
        d[row / 8] = (d[row / 8] & ~(0xffffu << shift)) | half_bits(sum) << shift;
      } else {
        bool is_nan = special && sum != sum, infinite = special && !is_nan && is_special(sum);
        d[row / 8 * 2 + column % 2] = is_nan     ? 0x7fffffff
                                      : infinite ? bits_of((float)sum)
                                                 : (uint32_t)floats[column];
      }
    }
  }
}

// In the order of the products, each added with one rounding to the nearest.
void multiply_doubles(const Operands& all, cuhost_Product* const* lanes, int depth) {
  for (int row = 0; row < 8; ++row) {
    for (int column = 0; column < columns; ++column) {
      double sum = all.c[row][column];
      for (int k = 0; k < depth; ++k) sum = std::fma(all.a[row][k], all.b[k][column], sum);
      memcpy((char*)lanes[row * 4 + column / 2]->c + 8 * (column % 2), &sum, 8);
    }
  }
}

void multiply_integers(const Operands& all, cuhost_Product* const* lanes, int depth) {
  for (int row = 0; row < most_rows; ++row) {
    Reals sums = all.c[row];  // exact, as are products
    for (int k = 0; k < depth; ++k) sums += all.a[row][k] * all.b[k];
    for (int column = 0; column < columns; ++column) {
      long long sum = (long long)sums[column];
      if (lanes[0]->saturated) sum = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
      lanes[row % 8 * 4 + column / 2]->c[row / 8 * 2 + column % 2] = (uint32_t)sum;
    }
  }
}

}  // namespace

extern "C" {

void cuhost_multiply(cuhost_Meeting* const* meeting) {
  cuhost_Product* lanes[32];
  for (int k = 0; k < 32; ++k) lanes[k] = (cuhost_Product*)meeting[k];
  static Operands all;
  int rows = lanes[0]->a_kind == cuhost_matrix_f64 ? 8 : 16;
  gather(all, lanes, rows);
  if (lanes[0]->a_kind == cuhost_matrix_f64) multiply_doubles(all, lanes, lanes[0]->depth);
  else if (lanes[0]->c_kind == cuhost_matrix_s32) multiply_integers(all, lanes, lanes[0]->depth);
  else multiply_floats(all, lanes, rows);
}

// PTX ISA, "ldmatrix": lane 4 r + p has elements 2 p and 2 p + 1 of row r, or, transposed, of column r.
void cuhost_exchange_rows(cuhost_Meeting* const* meeting) {
  cuhost_Rows* lanes[32];
  for (int k = 0; k < 32; ++k) lanes[k] = (cuhost_Rows*)meeting[k];
  const cuhost_Rows& one = *lanes[0];
  for (int matrix = 0; matrix < one.count; ++matrix) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 2; ++i) {
        int row = one.transposed ? lane % 4 * 2 + i : lane / 4;
        int column = one.transposed ? lane / 4 : lane % 4 * 2 + i;
        uint16_t* in_row = (uint16_t*)lanes[8 * matrix + row]->row + column;
        uint16_t* in_fragment = (uint16_t*)&lanes[lane]->fragment[matrix] + i;
        if (one.stores) *in_row = *in_fragment;
        else *in_fragment = *in_row;
      }
    }
  }
}
}

}  // namespace cuhost
