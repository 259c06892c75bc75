// mma.h: matrices that a warp holds (CUDA C++ Programming Guide, "Warp Matrix Functions").
//
// Which lane holds what is not specified there. Here it is what mma.sync wants of 8 columns, of which
// each product takes two, or, of 32 rows, two of 16; a product of 8 rows and 32 columns is computed
// as its transpose.
#pragma once

#include "bfloat16.h"
#include "half.h"
#include "matrices.h"

namespace cuhost {

template <class T>
struct cuhost_Stored {
  using type = T;
};

template <class T>
constexpr cuhost_Kind cuhost_kind_of = cuhost_matrix_f32;
template <>
inline constexpr cuhost_Kind cuhost_kind_of<Small<10, 5>> = cuhost_matrix_f16;
template <>
inline constexpr cuhost_Kind cuhost_kind_of<Small<7, 8>> = cuhost_matrix_bf16;
template <>
inline constexpr cuhost_Kind cuhost_kind_of<signed char> = cuhost_matrix_s8;
template <>
inline constexpr cuhost_Kind cuhost_kind_of<unsigned char> = cuhost_matrix_u8;
template <>
inline constexpr cuhost_Kind cuhost_kind_of<double> = cuhost_matrix_f64;
template <>
inline constexpr cuhost_Kind cuhost_kind_of<int> = cuhost_matrix_s32;

// Element of a lane's fragment: its place in the matrix.
struct cuhost_Spot {
  int row, column;
};
// Parts of 16 rows (8 of doubles) and `depth` columns.
constexpr cuhost_Spot cuhost_spot_of_a(int lane, int element, int rows, int depth, int packed) {
  int each = rows * depth / 32, downs = rows / 8, k = element % each;
  return {element / each * rows + lane / 4 + k / packed % downs * 8,
          lane % 4 * packed + k / (downs * packed) * 4 * packed + k % packed};
}
// Parts of 8 columns.
constexpr cuhost_Spot cuhost_spot_of_b(int lane, int element, int depth, int packed) {
  int each = depth / 4, k = element % each;
  return {lane % 4 * packed + k / packed * 4 * packed + k % packed, element / each * 8 + lane / 4};
}
// Parts of 16 rows (8 of doubles) and 8 columns; `down` if they lie below one another.
constexpr cuhost_Spot cuhost_spot_of_c(int lane, int element, int rows, bool down) {
  int each = rows / 4, part = element / each, k = element % each;
  return {lane / 4 + k / 2 * 8 + (down ? part * rows : 0), lane % 4 * 2 + k % 2 + (down ? 0 : part * 8)};
}
constexpr cuhost_Spot cuhost_swapped(cuhost_Spot spot) { return {spot.column, spot.row}; }

inline void cuhost_nothing(cuhost_Meeting* const*) {}

}  // namespace cuhost

namespace nvcuda {
namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32;
}

template <class Use, int m, int n, int k, class T, class Layout = void>
class fragment {
  static constexpr bool cuhost_is_tf32 = ::std::is_same_v<T, precision::tf32>;
  static constexpr bool cuhost_is_a = ::std::is_same_v<Use, matrix_a>;
  static constexpr bool cuhost_is_c = ::std::is_same_v<Use, accumulator>;
  static constexpr bool cuhost_turned = m == 8 && n == 32;
  static constexpr int cuhost_rows = m == 8 && n == 8 ? 8 : 16;
  static_assert((m == 16 && n == 16) || (m == 32 && n == 8) || (m == 8 && n == 32) ||
                    (m == 8 && n == 8 && k == 4),
                "cannot run on the emulated GPU: wmma with fragments of this shape");

 public:
  using element_type = ::std::conditional_t<cuhost_is_tf32, float, T>;
  using storage_element_type = element_type;
  static constexpr int num_elements = (cuhost_is_c ? m * n : cuhost_is_a ? m * k : k * n) / 32;
  static constexpr int num_storage_elements = num_elements;
  element_type x[num_elements];

  static constexpr ::cuhost::cuhost_Kind cuhost_kind =
      cuhost_is_tf32 ? ::cuhost::cuhost_matrix_tf32 : ::cuhost::cuhost_kind_of<T>;
  static constexpr int cuhost_packed = sizeof(element_type) < 4 ? 4 / (int)sizeof(element_type) : 1;
  static ::cuhost::cuhost_Spot cuhost_spot(int lane, int element) {
    using namespace ::cuhost;
    if constexpr (cuhost_is_c) {
      auto spot = cuhost_spot_of_c(lane, element, cuhost_rows, m == 32 || cuhost_turned);
      return cuhost_turned ? cuhost_swapped(spot) : spot;
    } else if constexpr (cuhost_is_a != cuhost_turned) {
      auto spot = cuhost_spot_of_a(lane, element, cuhost_rows, k, cuhost_packed);
      return cuhost_turned ? cuhost_swapped(spot) : spot;
    } else {
      auto spot = cuhost_spot_of_b(lane, element, k, cuhost_packed);
      return cuhost_turned ? cuhost_swapped(spot) : spot;
    }
  }
};

#define CUHOST_WARP_FUNCTION inline __attribute__((always_inline))
// All lanes come here together, with a leading dimension and an address that the hardware takes.
template <class T>
inline void cuhost_come(int line, const char* name, const T* at, unsigned ldm) {
  if ((unsigned long long)at % 16 || ldm * sizeof(T) % 16)
    ::cuhost::cuhost_trap("misaligned address: wmma with a matrix or a leading dimension that is not a multiple of 16 bytes");
  ::cuhost::cuhost_Meeting mine = {::cuhost::cuhost_nothing, name, line};
  ::cuhost::cuhost_meet(&mine);
}

template <class Use, int m, int n, int k, class T, class Layout, class V>
inline void fill_fragment(fragment<Use, m, n, k, T, Layout>& f, const V& value) {
  for (auto& x : f.x) x = value;
}

template <class F, class T>
CUHOST_WARP_FUNCTION void cuhost_load(F& f, const T* p, unsigned ldm, bool by_rows) {
  int lane = ::cuhost::cuhost_lane();
  for (int k = 0; k < F::num_elements; ++k) {
    auto spot = F::cuhost_spot(lane, k);
    f.x[k] = by_rows ? p[(size_t)spot.row * ldm + spot.column] : p[(size_t)spot.column * ldm + spot.row];
  }
}
template <class Use, int m, int n, int k, class T, class Layout, class V>
CUHOST_WARP_FUNCTION void load_matrix_sync(fragment<Use, m, n, k, T, Layout>& f, const V* p, unsigned ldm,
                                           int line = __builtin_LINE()) {
  static_assert(!::std::is_void_v<Layout>, "wmma::load_matrix_sync of an accumulator takes a layout");
  cuhost_come(line, "wmma::load_matrix_sync", p, ldm);
  cuhost_load(f, p, ldm, ::std::is_same_v<Layout, row_major>);
}
template <int m, int n, int k, class T, class V>
CUHOST_WARP_FUNCTION void load_matrix_sync(fragment<accumulator, m, n, k, T>& f, const V* p, unsigned ldm,
                                           layout_t layout, int line = __builtin_LINE()) {
  cuhost_come(line, "wmma::load_matrix_sync", p, ldm);
  cuhost_load(f, p, ldm, layout == mem_row_major);
}
template <int m, int n, int k, class T, class V>
CUHOST_WARP_FUNCTION void store_matrix_sync(V* p, const fragment<accumulator, m, n, k, T>& f, unsigned ldm,
                                            layout_t layout, int line = __builtin_LINE()) {
  using F = fragment<accumulator, m, n, k, T>;
  cuhost_come(line, "wmma::store_matrix_sync", p, ldm);
  int lane = ::cuhost::cuhost_lane();
  for (int e = 0; e < F::num_elements; ++e) {
    auto spot = F::cuhost_spot(lane, e);
    p[layout == mem_row_major ? (size_t)spot.row * ldm + spot.column : (size_t)spot.column * ldm + spot.row] = f.x[e];
  }
}

template <bool saturated, int k, class D, class A, class B>
inline void cuhost_multiply_parts(int line, D& d, const A& a, const B& b, const D& c) {
  constexpr int rows = A::cuhost_kind == ::cuhost::cuhost_matrix_f64 ? 8 : 16;
  constexpr int in_a = rows * k / 32, in_b = 8 * k / 32, in_c = rows * 8 / 32;
  for (int part = 0; part < D::num_elements / in_c; ++part) {
    bool further = A::num_elements > in_a;  // parts lie below one another
    ::cuhost::cuhost_multiplied<D::cuhost_kind, A::cuhost_kind, B::cuhost_kind, k, saturated>(
        line, "wmma::mma_sync", a.x + (further ? part * in_a : 0), b.x + (further ? 0 : part * in_b),
        c.x + part * in_c, d.x + part * in_c);
  }
}
template <int m, int n, int k, class T, class C, class LayoutA, class LayoutB>
inline void mma_sync(fragment<accumulator, m, n, k, C>& d, const fragment<matrix_a, m, n, k, T, LayoutA>& a,
                     const fragment<matrix_b, m, n, k, T, LayoutB>& b,
                     const fragment<accumulator, m, n, k, C>& c, bool saturated = false,
                     int line = __builtin_LINE()) {
  if constexpr (m == 8 && n == 32) {
    if (saturated) cuhost_multiply_parts<true, k>(line, d, b, a, c);
    else cuhost_multiply_parts<false, k>(line, d, b, a, c);
  } else {
    if (saturated) cuhost_multiply_parts<true, k>(line, d, a, b, c);
    else cuhost_multiply_parts<false, k>(line, d, a, b, c);
  }
}

inline float __float_to_tf32(float v) {
  unsigned given;
  __builtin_memcpy(&given, &v, 4);
  if ((given & 0x7f800000) != 0x7f800000) given = (given + 0x1000) & 0xffffe000;
  __builtin_memcpy(&v, &given, 4);
  return v;
}

}  // namespace wmma
}  // namespace nvcuda
