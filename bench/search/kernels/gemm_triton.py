"""C = A B in half precision, by programs that each compute a tile of C."""

import triton
import triton.language as tl


@triton.jit
def gemm(a, b, c, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for first in range(0, k, BLOCK_K):
        i = first + tl.arange(0, BLOCK_K)
        left = tl.load(
            a + row[:, None] * k + i[None, :],
            mask=(row[:, None] < m) & (i[None, :] < k),
            other=0.0,
        )
        right = tl.load(
            b + i[:, None] * n + column[None, :],
            mask=(i[:, None] < k) & (column[None, :] < n),
            other=0.0,
        )
        total += tl.dot(left, right)
    at = row[:, None] * n + column[None, :]
    tl.store(c + at, total.to(tl.float16), mask=(row[:, None] < m) & (column[None, :] < n))
