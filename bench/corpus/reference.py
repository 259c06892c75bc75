"""What the kernels of each family compute, in NumPy: a function of the family's name.

Each takes inputs (floating-point ones in double precision) and scalars by name, and returns the
output, or a dictionary of outputs.
"""

from __future__ import annotations

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
