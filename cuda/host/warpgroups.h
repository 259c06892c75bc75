// What the four warps of a warpgroup do together: products of matrices in shared memory (wgmma).
#pragma once

#include "matrices.h"

namespace cuhost {

// A thread's part in wgmma.mma_async.
struct cuhost_GroupProduct : cuhost_Meeting {
  cuhost_Kind a_kind, b_kind;                // as wide as one another
  bool accumulates, a_in_registers, a_transposed, b_transposed;
  int columns, a_scale, b_scale;             // scales are 1 or -1
  unsigned long long a_descriptor, b_descriptor;
  unsigned a[4];
  void* const* d;                            // the variables of its columns / 2 accumulators
};
struct cuhost_GroupWait : cuhost_Meeting {
  unsigned but_latest;
};

extern "C" {
// A thread's part in what all 128 threads of its warpgroup do at one line.
void cuhost_meet_warpgroup(cuhost_Meeting* mine);
void cuhost_group_multiply(cuhost_GroupProduct* mine);
void cuhost_group_fence(cuhost_Meeting* const* threads);
void cuhost_group_product(cuhost_Meeting* const* threads);
void cuhost_group_commit(cuhost_Meeting* const* threads);
void cuhost_group_wait(cuhost_Meeting* const* threads);
void cuhost_learn_of_group();                // what the others' products have read
}

CUHOST_UNCHECKED void cuhost_wgmma_fence(int line) {
  cuhost_Meeting mine = {cuhost_group_fence, "wgmma.fence", line};
  cuhost_meet_warpgroup(&mine);
}
CUHOST_UNCHECKED void cuhost_wgmma_commit(int line) {
  cuhost_Meeting mine = {cuhost_group_commit, "wgmma.commit_group", line};
  cuhost_meet_warpgroup(&mine);
}
CUHOST_UNCHECKED void cuhost_wgmma_wait(int line, unsigned but_latest) {
  cuhost_GroupWait mine = {{cuhost_group_wait, "wgmma.wait_group", line}, but_latest};
  cuhost_meet_warpgroup(&mine);
  cuhost_learn_of_group();
}

struct cuhost_Descriptor {
  unsigned long long bits;
};

// `d` are the variables of the accumulators.
template <cuhost_Kind a_kind, cuhost_Kind b_kind, int columns, int a_scale, int b_scale, bool a_transposed, bool b_transposed>
CUHOST_UNCHECKED void cuhost_wgmma(int line, void* const* d, bool accumulates, const unsigned* a,
                                   cuhost_Descriptor in_a, cuhost_Descriptor in_b) {
  static_assert((a_scale == 1 || a_scale == -1) && (b_scale == 1 || b_scale == -1),
                "wgmma.mma_async has factors of its operands other than 1 and -1");
  cuhost_note_tensor_cores();
  cuhost_GroupProduct mine = {{cuhost_group_product, "wgmma.mma_async", line},
                              a_kind, b_kind, accumulates, a != nullptr, a_transposed, b_transposed,
                              columns, a_scale, b_scale, in_a.bits, in_b.bits, {}, d};
  if (a) __builtin_memcpy(mine.a, a, sizeof mine.a);
  cuhost_group_multiply(&mine);
}

}  // namespace cuhost
