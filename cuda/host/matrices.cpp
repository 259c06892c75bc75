// Products of the matrices of which each lane of a warp holds a part, and how lanes exchange them.
//
// Layouts: PTX ISA, "Matrix Fragments for mma". A register holds neighbours of a row of A, or of a
// column of B; registers go first down and then along A, and down B.
#include "matrices.h"

#include <cmath>
#include <cstring>

#include "elements.h"
#include "products.h"

namespace cuhost {
namespace {

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

// The nearest number of 16 bits, ties to even.
uint32_t half_bits(double value) {
  uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  double size = std::fabs(value);
  if (value != value) return 0x7fff;
  if (size >= 65520) return sign | 0x7c00;
  int power = size < 0x1p-14 ? -14 : std::ilogb(size);
  return sign | (uint32_t)((power + 14) * 1024 + (int)std::nearbyint(std::ldexp(size, 10 - power)));
}

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

void multiply_floats(const Operands& all, cuhost_Product* const* lanes, int rows) {
  bool halves = lanes[0]->c_kind == cuhost_matrix_f16;
  static Sums sums;
  add_products(all, rows, lanes[0]->depth, width_of(lanes[0]->a_kind) == 1, sums);
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      uint32_t* d = lanes[row % 8 * 4 + column / 2]->c;
      int shift = column % 2 * 16;
      if (halves)
        d[row / 8] = (d[row / 8] & ~(0xffffu << shift)) | half_bits(sums.exact[row][column]) << shift;
      else
        d[row / 8 * 2 + column % 2] = sums.floats[row][column];
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
