"""C = A B by a persistent Triton kernel; `pytest_gpuenergy.gemm.triton` chooses its constants.

It is written like Triton's tutorials "Matrix Multiplication" and "Persistent Matmul", with
predicates in place of their rows modulo M, which would read beyond short matrices.
"""

import triton
import triton.language as tl


@triton.jit
def matmul(
    a,
    b,
    c,
    m,
    n,
    k,
    lda,
    ldb,
    a_transposed: tl.constexpr,
    precision: tl.constexpr,
    tile_m: tl.constexpr,
    tile_n: tl.constexpr,
    tile_k: tl.constexpr,
    group: tl.constexpr,
    apart: tl.constexpr,
):
    """Program p of P computes the tiles p, p + P, p + 2 P and so on.

    A is stored as m rows of lda elements or, if transposed, as k rows; B as k rows of ldb; C
    densely as m rows. ``group`` rows of tiles are computed column by column, so that the tiles in
    progress at a time share what they load. With ``apart``, no more than tile_k products are added
    on tensor cores, which cut off what exceeds their precision, and the sums of these in float32.
    """
    tiles_down = tl.cdiv(m, tile_m)
    tiles_across = tl.cdiv(n, tile_n)
    for tile in tl.range(tl.program_id(0), tiles_down * tiles_across, tl.num_programs(0)):
        first = tile // (group * tiles_across) * group
        rows_in_group = min(tiles_down - first, group)
        in_group = tile % (group * tiles_across)
        rows = (first + in_group % rows_in_group) * tile_m + tl.arange(0, tile_m)
        columns = in_group // rows_in_group * tile_n + tl.arange(0, tile_n)
        has_row, has_column = rows < m, columns < n
        total = tl.zeros((tile_m, tile_n), dtype=tl.float32)
        for begin in tl.range(0, k, tile_k):
            terms = begin + tl.arange(0, tile_k)
            has_term = terms < k
            if a_transposed:
                at_a = terms[None, :] * lda + rows[:, None]
            else:
                at_a = rows[:, None] * lda + terms[None, :]
            part_a = tl.load(a + at_a, has_row[:, None] & has_term[None, :], 0.0)
            at_b = terms[:, None] * ldb + columns[None, :]
            part_b = tl.load(b + at_b, has_term[:, None] & has_column[None, :], 0.0)
            if apart:
                # Without a limit, Triton would turn the addition into one on tensor cores.
                total += tl.dot(
                    part_a, part_b, input_precision=precision, max_num_imprecise_acc=tile_k
                )
            else:
                total = tl.dot(part_a, part_b, total, input_precision=precision)
        at_c = rows[:, None] * n + columns[None, :]
        inside = has_row[:, None] & has_column[None, :]
        tl.store(c + at_c, total.to(c.dtype.element_ty), inside)
