"""y = base + x B for a B of few rows, by programs that each compute a tile of y."""

import triton
import triton.language as tl

RANK = tl.constexpr(16)  # a power of two, and at least the rank


@triton.jit
def lora_expand(
    x,
    b,
    base,
    y,
    tokens,
    rank,
    columns,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    r = tl.arange(0, RANK)
    left = tl.load(
        x + token[:, None] * rank + r[None, :],
        mask=(token[:, None] < tokens) & (r[None, :] < rank),
        other=0.0,
    )
    right = tl.load(
        b + r[:, None] * columns + column[None, :],
        mask=(r[:, None] < rank) & (column[None, :] < columns),
        other=0.0,
    )
    at = token[:, None] * columns + column[None, :]
    inside = (token[:, None] < tokens) & (column[None, :] < columns)
    before = tl.load(base + at, mask=inside, other=0.0)
    total = before.to(tl.float32) + tl.dot(left, right)
    tl.store(y + at, total.to(tl.float16), mask=inside)
