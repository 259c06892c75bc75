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

constexpr int columns = 8;

// What a warp multiplies: a[k][row], b[column][k] and c[column][row].
template <class Number>
struct Operands {
  Number a[most_depth * rows_at_once], b[columns * most_depth], c[columns * rows_at_once];
};

template <cuhost_Kind kind, class Number>
void gather_a(Operands<Number>& all, cuhost_Product* const* lanes, int rows, int depth) {
  constexpr int packed = packed_of(kind);
  int downs = rows / 8, parts = depth / (4 * packed);
  for (int lane = 0; lane < 32; ++lane) {
    int group = lane / 4, within = lane % 4 * packed;
    for (int part = 0; part < parts; ++part) {
      for (int i = 0; i < packed; ++i) {
        int k = within + 4 * packed * part + i;
        for (int down = 0; down < downs; ++down)
          all.a[k * rows_at_once + group + 8 * down] =
              (Number)element(lanes[lane]->a, (part * downs + down) * packed + i, kind);
      }
    }
  }
}

template <cuhost_Kind kind, class Number>
void gather_b(Operands<Number>& all, cuhost_Product* const* lanes, int depth) {
  constexpr int packed = packed_of(kind);
  for (int lane = 0; lane < 32; ++lane) {
    for (int part = 0; part < depth / (4 * packed); ++part) {
      for (int i = 0; i < packed; ++i)
        all.b[lane / 4 * depth + lane % 4 * packed + 4 * packed * part + i] =
            (Number)element(lanes[lane]->b, part * packed + i, kind);
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

// The row and the column of register k of a lane's part of C.
int row_in_c(int lane, int k) { return lane / 4 + k / 2 * 8; }
int column_in_c(int lane, int k) { return lane % 4 * 2 + k % 2; }

template <class Number>
void gather(Operands<Number>& all, cuhost_Product* const* lanes, int rows) {
  const cuhost_Product& one = *lanes[0];
  with_kind(one.a_kind, [&](auto kind) { gather_a<kind>(all, lanes, rows, one.depth); });
  with_kind(one.b_kind, [&](auto kind) { gather_b<kind>(all, lanes, one.depth); });
  for (int lane = 0; lane < 32; ++lane) {
    for (int k = 0; k < rows / 4; ++k)
      all.c[column_in_c(lane, k) * rows_at_once + row_in_c(lane, k)] = (Number)element(lanes[lane]->c, k, one.c_kind);
  }
}

void multiply_floats(cuhost_Product* const* lanes) {
  static Operands<float> all;
  static double exact[columns * rows_at_once];
  const cuhost_Product& one = *lanes[0];
  bool halves = one.c_kind == cuhost_matrix_f16;
  gather(all, lanes, rows_at_once);
  add_products({all.a, rows_at_once, all.b, one.depth, columns, width_of(one.a_kind) == 1, all.c, rows_at_once,
                halves ? exact : nullptr});
  for (int lane = 0; lane < 32; ++lane) {
    for (int k = 0; k < 4; ++k) {
      uint32_t* d = lanes[lane]->c;
      int place = column_in_c(lane, k) * rows_at_once + row_in_c(lane, k), shift = k % 2 * 16;
      if (halves) d[k / 2] = (d[k / 2] & ~(0xffffu << shift)) | half_bits(exact[place]) << shift;
      else memcpy(&d[k], &all.c[place], 4);
    }
  }
}

// In the order of the products, each added with one rounding to the nearest.
void multiply_doubles(cuhost_Product* const* lanes) {
  static Operands<double> all;
  int depth = lanes[0]->depth;
  gather(all, lanes, 8);
  for (int lane = 0; lane < 32; ++lane) {
    for (int k = 0; k < 2; ++k) {
      int row = row_in_c(lane, k), column = column_in_c(lane, k);
      double sum = all.c[column * rows_at_once + row];
      for (int i = 0; i < depth; ++i)
        sum = std::fma(all.a[i * rows_at_once + row], all.b[column * depth + i], sum);
      memcpy((char*)lanes[lane]->c + 8 * k, &sum, 8);
    }
  }
}

void multiply_integers(cuhost_Product* const* lanes) {
  static Operands<double> all;  // exact, as are the sums
  int depth = lanes[0]->depth;
  gather(all, lanes, rows_at_once);
  for (int lane = 0; lane < 32; ++lane) {
    for (int k = 0; k < 4; ++k) {
      int row = row_in_c(lane, k), column = column_in_c(lane, k);
      double exact = all.c[column * rows_at_once + row];
      for (int i = 0; i < depth; ++i) exact += all.a[i * rows_at_once + row] * all.b[column * depth + i];
      long long sum = (long long)exact;
      if (lanes[0]->saturated) sum = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : sum;
      lanes[lane]->c[k] = (uint32_t)sum;
    }
  }
}

}  // namespace

extern "C" {

void cuhost_multiply(cuhost_Meeting* const* meeting) {
  cuhost_Product* lanes[32];
  for (int k = 0; k < 32; ++k) lanes[k] = (cuhost_Product*)meeting[k];
  if (lanes[0]->a_kind == cuhost_matrix_f64) multiply_doubles(lanes);
  else if (lanes[0]->c_kind == cuhost_matrix_s32) multiply_integers(lanes);
  else multiply_floats(lanes);
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
