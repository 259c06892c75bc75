// What the lanes of a warp do together with matrices of which each holds a part. The runtime knows
// which lane holds what; see matrices.cpp.
#pragma once

#include <type_traits>

#include "interface.h"

#if !defined(CUHOST_UNCHECKED)
#define CUHOST_UNCHECKED inline
#endif

namespace cuhost {

// A thread's part in what all those of its warp, or warpgroup, do at one line: the last to arrive does
// the work.
struct cuhost_Meeting {
  void (*work)(cuhost_Meeting* const* lanes);
  const char* name;
  int line;
};
enum cuhost_Kind : unsigned char {
  cuhost_matrix_f16, cuhost_matrix_bf16, cuhost_matrix_tf32, cuhost_matrix_s8, cuhost_matrix_u8,
  cuhost_matrix_e4m3, cuhost_matrix_e5m2, cuhost_matrix_f64, cuhost_matrix_f32, cuhost_matrix_s32
};
// d = a b + c; c becomes d.
struct cuhost_Product : cuhost_Meeting {
  cuhost_Kind c_kind, a_kind, b_kind;
  bool saturated;
  int depth;
  alignas(8) unsigned a[4];
  alignas(8) unsigned b[2];
  alignas(8) unsigned c[4];
};
// Each 8 lanes give the rows of an 8x8 matrix of 16-bit elements; all lanes get two elements of each.
struct cuhost_Rows : cuhost_Meeting {
  bool transposed, stores;
  int count;
  unsigned row[4];
  unsigned fragment[4];
};

extern "C" {
void cuhost_meet(cuhost_Meeting* mine);
void cuhost_multiply(cuhost_Meeting* const* lanes);
void cuhost_exchange_rows(cuhost_Meeting* const* lanes);
}

template <class Word, int count>
struct cuhost_Fragment {
  Word words[count];
};

// Of 8 columns; `a`, `b` and `c` point to the lane's fragments, which are whole words.
template <cuhost_Kind c_kind, cuhost_Kind a_kind, cuhost_Kind b_kind, int depth, bool saturated>
CUHOST_UNCHECKED void cuhost_multiplied(int line, const char* name, const void* a, const void* b, const void* c, void* d) {
  cuhost_note_tensor_cores();
  constexpr int bits = a_kind == cuhost_matrix_f64 ? 64 : a_kind == cuhost_matrix_tf32 ? 32
                       : a_kind == cuhost_matrix_f16 || a_kind == cuhost_matrix_bf16 ? 16 : 8;
  constexpr int rows = bits == 64 ? 8 : 16;
  constexpr int c_bits = c_kind == cuhost_matrix_f64 ? 64 : c_kind == cuhost_matrix_f16 ? 16 : 32;
  cuhost_Product mine;
  mine.work = cuhost_multiply;
  mine.name = name;
  mine.line = line;
  mine.c_kind = c_kind;
  mine.a_kind = a_kind;
  mine.b_kind = b_kind;
  mine.saturated = saturated;
  mine.depth = depth;
  __builtin_memcpy(mine.a, a, rows * depth * bits / 256);
  __builtin_memcpy(mine.b, b, 8 * depth * bits / 256);
  __builtin_memcpy(mine.c, c, rows * 8 * c_bits / 256);
  cuhost_meet(&mine);
  __builtin_memcpy(d, mine.c, rows * 8 * c_bits / 256);
}

template <cuhost_Kind c_kind, cuhost_Kind a_kind, cuhost_Kind b_kind, int depth, bool saturated, class... Words>
CUHOST_UNCHECKED auto cuhost_mma(int line, Words... words) {
  using Word = std::conditional_t<a_kind == cuhost_matrix_f64, unsigned long long, unsigned>;
  constexpr int bits = a_kind == cuhost_matrix_f64 ? 64 : a_kind == cuhost_matrix_tf32 ? 32
                       : a_kind == cuhost_matrix_f16 || a_kind == cuhost_matrix_bf16 ? 16 : 8;
  constexpr int in_a = (bits == 64 ? 8 : 16) * depth * bits / 256 / (int)sizeof(Word);
  constexpr int in_b = 8 * depth * bits / 256 / (int)sizeof(Word);
  Word all[] = {(Word)words...};
  cuhost_Fragment<Word, (int)sizeof...(Words) - in_a - in_b> result;
  cuhost_multiplied<c_kind, a_kind, b_kind, depth, saturated>(line, "mma.sync", all, all + in_a,
                                                              all + in_a + in_b, result.words);
  return result;
}

typedef unsigned cuhost_Row __attribute__((vector_size(16)));

template <int count, bool transposed>
CUHOST_UNCHECKED auto cuhost_fragment(int line, cuhost_Row row) {
  cuhost_Rows mine = {{cuhost_exchange_rows, "ldmatrix", line}, transposed, false, count, {}, {}};
  __builtin_memcpy(mine.row, &row, sizeof row);
  cuhost_meet(&mine);
  cuhost_Fragment<unsigned, count> result;
  __builtin_memcpy(result.words, mine.fragment, sizeof result);
  return result;
}
template <int count, bool transposed, class... Words>
CUHOST_UNCHECKED cuhost_Row cuhost_row(int line, Words... words) {
  cuhost_Rows mine = {{cuhost_exchange_rows, "stmatrix", line}, transposed, true, count, {}, {(unsigned)words...}};
  cuhost_meet(&mine);
  cuhost_Row row;
  __builtin_memcpy(&row, mine.row, sizeof row);
  return row;
}

// The accesses are inlined as those of the text itself: a checked build reports them.
template <int count, bool transposed>
inline __attribute__((always_inline)) auto cuhost_ldmatrix(int line, const char* at) {
  cuhost_Row row = {};
  if (cuhost_lane() < 8 * count) row = *(const cuhost_Row*)at;
  return cuhost_fragment<count, transposed>(line, row);
}
template <int count, bool transposed, class... Words>
inline __attribute__((always_inline)) void cuhost_stmatrix(int line, char* at, Words... words) {
  cuhost_Row row = cuhost_row<count, transposed>(line, words...);
  if (cuhost_lane() < 8 * count) *(cuhost_Row*)at = row;
}

}  // namespace cuhost
