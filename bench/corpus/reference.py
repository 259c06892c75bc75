"""What the kernels of each family compute, in NumPy: a function of the family's name.

Each takes inputs (floating-point ones in double precision) and scalars by name, and returns the
output, or a dictionary of outputs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

A = Any  # an array


def scale_add(x: A, z: A, a: float) -> A:
    return a * x + z


def softmax(x: A) -> A:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def row_sums(x: A) -> A:
    return x.sum(axis=1)


def layer_norm(x: A, gain: A, bias: A, epsilon: float) -> A:
    apart = x - x.mean(axis=1, keepdims=True)
    variance = (apart**2).mean(axis=1, keepdims=True)
    return apart / np.sqrt(variance + np.float32(epsilon)) * gain + bias


def rms_norm(x: A, gain: A, epsilon: float) -> A:
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + np.float32(epsilon)) * gain


def transpose(x: A) -> A:
    return x.T


def gemm(a: A, b: A) -> A:
    return a @ b


def total(x: A) -> A:
    return x.sum(keepdims=True)


def histogram(x: A) -> A:
    return np.bincount(np.asarray(x, np.int64) // 4, minlength=64)


_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def gelu(x: A) -> A:
    return 0.5 * x * _erfc(-x / math.sqrt(2))


def softplus(x: A) -> A:
    return np.logaddexp(x, 0)


def quantize(x: A, scale: float) -> A:
    return np.clip(np.rint(x * scale), -128, 127)


def argmax(x: A) -> A:
    return x.argmax(axis=1)


def attention(q: A, k: A, v: A, scale: float) -> A:
    scores = np.where(np.tri(len(q), dtype=bool), q @ k.T * scale, -np.inf)
    return softmax(scores) @ v


def cross_entropy(x: A, label: A) -> A:
    largest = x.max(axis=1)
    sums = np.exp(x - largest[:, None]).sum(axis=1)
    return np.log(sums) + largest - x[np.arange(len(x)), np.asarray(label, np.int64)]


def rope(x: A, cosines: A, sines: A) -> A:
    a, b = x[..., :32], x[..., 32:]
    c, s = cosines[:, None], sines[:, None]
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)


def gather(table: A, index: A) -> A:
    row = np.asarray(index, np.int64)
    inside = (row >= 0) & (row < len(table))
    return np.where(inside[:, None], table[np.clip(row, 0, len(table) - 1)], 0)


def scatter_add(x: A, index: A) -> A:
    return np.bincount(np.asarray(index, np.int64), x, minlength=150)
