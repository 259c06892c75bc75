"""The softmax of each row, by a program that reads the row three times."""

import triton
import triton.language as tl


@triton.jit
def softmax(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0) * columns
    largest = -float("inf")
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        values = tl.load(x + row + at, mask=at < columns, other=-float("inf"))
        largest = tl.maximum(largest, tl.max(values, axis=0))
    total = 0.0
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        values = tl.load(x + row + at, mask=at < columns, other=-float("inf"))
        total += tl.sum(tl.exp(values - largest), axis=0)
    for first in range(0, columns, BLOCK):
        at = first + tl.arange(0, BLOCK)
        values = tl.load(x + row + at, mask=at < columns, other=0.0)
        tl.store(y + row + at, tl.exp(values - largest) / total, mask=at < columns)
