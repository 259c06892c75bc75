"""Attention of one query for each head over a cache of keys and values, with an online softmax."""

import triton
import triton.language as tl

DIMENSIONS = tl.constexpr(64)  # a power of two, and at least those of a head


@triton.jit
def attention_decode(q, k, v, out, length, dim, scale, BLOCK: tl.constexpr):
    head = tl.program_id(0)
    d = tl.arange(0, DIMENSIONS)
    query = tl.load(q + head * dim + d, mask=d < dim, other=0.0).to(tl.float32)
    largest = -float("inf")
    total = 0.0
    weighed = tl.zeros((DIMENSIONS,), dtype=tl.float32)
    for first in range(0, length, BLOCK):
        i = first + tl.arange(0, BLOCK)
        at = head * length * dim + i[:, None] * dim + d[None, :]
        inside = (i[:, None] < length) & (d[None, :] < dim)
        keys = tl.load(k + at, mask=inside, other=0.0).to(tl.float32)
        scores = tl.sum(keys * query[None, :], axis=1) * scale
        scores = tl.where(i < length, scores, -float("inf"))
        higher = tl.maximum(largest, tl.max(scores, axis=0))
        weights = tl.exp(scores - higher)
        fade = tl.exp(largest - higher)
        values = tl.load(v + at, mask=inside, other=0.0).to(tl.float32)
        weighed = weighed * fade + tl.sum(weights[:, None] * values, axis=0)
        total = total * fade + tl.sum(weights, axis=0)
        largest = higher
    tl.store(out + head * dim + d, (weighed / total).to(tl.float16), mask=d < dim)
