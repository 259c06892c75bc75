"""What the kernels of each family compute, in NumPy: a function of the family's name.

Each takes inputs (floating-point ones in double precision) and scalars by name, and returns the
output, or a dictionary of outputs.
"""

from __future__ import annotations

import base64
import math
import zlib
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


def scan(x: A) -> A:
    return x.reshape(-1, 128).cumsum(axis=1).reshape(-1)


def conv2d(x: A, w: A) -> A:
    around = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(around, (3, 3), axis=(1, 2))
    return np.einsum("krcij,fkij->frc", windows, w)


def max_pool(x: A) -> A:
    around = np.pad(x, ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(around, (3, 3), axis=(1, 2))
    return windows[:, ::2, ::2].max(axis=(3, 4))


def variance(x: A) -> A:
    return x.var(axis=1, ddof=1)


def copy_async(x: A) -> A:
    return 2 * x[:, ::-1]


def dequantize(packed: A, scale: A) -> A:
    halves = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1).astype(np.float64) - 8
    return halves * scale.repeat(32)


def sign(x: A) -> A:
    return np.where(np.signbit(x), -1.0, 1.0)


def tanh(x: A) -> A:
    return np.tanh(x)


def copy_rows(x: A) -> A:
    return 2 * x


def matvec(a: A, x: A) -> A:
    return a @ x


def modulo(x: A, divisor: int) -> A:
    return np.asarray(x, np.int64) % divisor


def compact(x: A) -> dict[str, A]:
    order = np.argsort(x <= 0, axis=1, kind="stable")
    packed = np.take_along_axis(np.where(x > 0, x, 0), order, axis=1)
    return {"y": packed, "counts": (x > 0).sum(axis=1)}


def spmv(value: A, column: A, x: A) -> A:
    return (value * x[np.asarray(column, np.int64)]).sum(axis=1)


def lock(x: A) -> A:
    return x.sum(axis=0)


def grayscale(x: A) -> A:
    r, g, b = np.asarray(x, np.int64).T
    return (77 * r + 150 * g + 29 * b + 128) >> 8


def batch_norm(x: A, mean: A, variance: A, gain: A, bias: A, epsilon: float) -> A:
    scale = gain / np.sqrt(variance + np.float64(np.float32(epsilon)))
    return (x - mean[:, None]) * scale[:, None] + bias[:, None]


def adam(
    p: A,
    g: A,
    m: A,
    v: A,
    rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    correction1: float,
    correction2: float,
) -> dict[str, A]:
    first = beta1 * m + (1 - beta1) * g
    second = beta2 * v + (1 - beta2) * g**2
    step = rate * (first / correction1) / (np.sqrt(second / correction2) + epsilon)
    return {"p2": p - step, "m2": first, "v2": second}


# Scans, sorts, stencils, graphs, strings and integers


def bitonic_sort(x: A) -> A:
    return np.sort(x, axis=1)


def digit_sort(key: A) -> A:
    return np.argsort(key, axis=1, kind="stable")


def segment_sums(x: A, head: A) -> A:
    sums = np.array(x, np.int64)
    for i in range(1, sums.shape[1]):
        sums[:, i] += np.where(head[:, i] != 0, 0, sums[:, i - 1])
    return sums


def life(x: A) -> A:
    cells = np.asarray(x, np.int64)
    for _ in range(2):
        shifts = [(r, c) for r in (-1, 0, 1) for c in (-1, 0, 1) if r or c]
        count = sum(np.roll(cells, shift, (0, 1)) for shift in shifts)
        cells = ((count == 3) | ((count == 2) & (cells == 1))).astype(np.int64)
    return cells


def bfs_levels(to: A) -> A:
    level = np.full(len(to), -1)
    level[0] = 0
    nodes = np.array([0])
    while len(nodes):
        found = np.unique(np.asarray(to, np.int64)[nodes])
        now = level[nodes[0]] + 1
        nodes = found[level[found] < 0]
        level[nodes] = now
    return level


def labels(image: A) -> A:
    _, rows, columns = image.shape
    own = np.arange(rows * columns).reshape(rows, columns)
    label = np.where(image != 0, own, rows * columns)
    while True:
        around = np.pad(label, ((0, 0), (1, 1), (1, 1)), constant_values=rows * columns)
        sides = [
            around[:, :-2, 1:-1],
            around[:, 2:, 1:-1],
            around[:, 1:-1, :-2],
            around[:, 1:-1, 2:],
        ]
        least = np.minimum.reduce([label, *sides])
        least = np.where(image != 0, least, rows * columns)
        if np.array_equal(least, label):
            return np.where(image != 0, label, -1)
        label = least


def edit_distance(a: A, b: A) -> A:
    (pairs, m), n = a.shape, b.shape[1]
    row = np.tile(np.arange(n + 1), (pairs, 1))
    for i in range(m):
        replaced = row[:, :-1] + (a[:, i : i + 1] != b)
        row = np.concatenate([row[:, :1] + 1, np.minimum(replaced, row[:, 1:] + 1)], axis=1)
        row = np.minimum.accumulate(row - np.arange(n + 1), axis=1) + np.arange(n + 1)
    return row[:, -1]


def shortest_paths(weight: A) -> A:
    far = 1 << 40
    length = np.where(weight < 700, np.asarray(weight, np.int64), far)
    np.fill_diagonal(length, 0)
    for k in range(len(length)):
        length = np.minimum(length, length[:, k : k + 1] + length[k])
    return np.where(length < far, length, -1)


def heat(x: A, rate: float) -> A:
    now = np.array(x, np.float64)
    for _ in range(2):
        middle = now[1:-1, 1:-1, 1:-1]
        around = now[:-2, 1:-1, 1:-1] + now[2:, 1:-1, 1:-1] + now[1:-1, :-2, 1:-1]
        around = around + now[1:-1, 2:, 1:-1] + now[1:-1, 1:-1, :-2] + now[1:-1, 1:-1, 2:]
        now[1:-1, 1:-1, 1:-1] = middle + rate * (around - 6 * middle)
    return now


def big_add(a: A, b: A) -> dict[str, A]:
    words, carry = [], np.zeros(len(a), np.int64)
    for u, v in zip(np.asarray(a, np.int64).T, np.asarray(b, np.int64).T, strict=True):
        carry = (carry >> 32) + u + v
        words.append(carry & 0xFFFFFFFF)
    return {"y": np.stack(words, axis=1), "carry": carry >> 32}


def adler32(x: A) -> A:
    return np.array([zlib.adler32(np.asarray(row, np.uint8).tobytes()) for row in x])


def pack_bits(x: A, limit: int) -> dict[str, A]:
    above = np.asarray(x) > limit
    packed = np.packbits(np.resize(above, 1024) & (np.arange(1024) < 1000), bitorder="little")
    return {"words": packed.view("<u4").astype(np.int64), "count": above.sum(keepdims=True)}


def bit_transpose(x: A) -> A:
    bits = np.asarray(x, np.int64)[:, :, None] >> np.arange(32) & 1
    return (bits << np.arange(32)[:, None]).sum(axis=1)


def hadamard(x: A) -> A:
    own = np.arange(256)
    shared = own[:, None] & own
    odd = np.array([bin(number).count("1") % 2 for number in range(256)])[shared]
    return np.asarray(x, np.int64) @ (1 - 2 * odd)


def extremes(x: A) -> A:
    return np.array([x.min(), x.max()])


def running_total(x: A) -> A:
    return np.cumsum(np.asarray(x, np.int64))


def mod_power(base: A, exponent: A, modulus: A) -> A:
    numbers = zip(base.tolist(), exponent.tolist(), modulus.tolist(), strict=True)
    return np.array([pow(int(b), int(e), int(m)) for b, e, m in numbers])


def decimal_text(x: A) -> A:
    return np.array([list(f"{int(number):12d}".encode()) for number in x])


def max_subarray(x: A) -> A:
    values = np.asarray(x, np.int64)
    end = best = values[:, 0]
    for value in values.T[1:]:
        end = np.maximum(end, 0) + value
        best = np.maximum(best, end)
    return best


def nearest(points: A, queries: A) -> A:
    apart = np.asarray(queries, np.int64)[:, None] - np.asarray(points, np.int64)
    return (apart**2).sum(axis=2).argmin(axis=1)


def tridiagonal(a: A, c: A, d: A, middle: float) -> A:
    count = d.shape[1]
    system = np.zeros((len(d), count, count))
    at = np.arange(count)
    system[:, at, at] = middle
    system[:, at[1:], at[:-1]] = a[:, 1:]
    system[:, at[:-1], at[1:]] = c[:, :-1]
    return np.linalg.solve(system, np.asarray(d, np.float64)[:, :, None])[:, :, 0]


def column_pipeline(x: A) -> A:
    return x.sum(axis=0)


def neighbours(points: A) -> A:
    places = np.asarray(points, np.int64)
    square = ((places[:, None] - places) ** 2).sum(axis=2)
    return (square <= 64**2).sum(axis=1) - 1


def group_ranks(x: A) -> A:
    order = np.argsort(x, axis=1, kind="stable")
    return np.argsort(order, axis=1)


def knapsack(weight: A, value: A, room: int) -> A:
    best = np.zeros((len(weight), room + 1), np.int64)
    for row, weights, values in zip(best, weight.tolist(), value.tolist(), strict=True):
        for w, v in zip(weights, values, strict=True):
            row[w:] = np.maximum(row[w:], row[:-w] + v)
    return best[:, room]


def fixed_multiply(a: A, b: A) -> A:
    product = (np.asarray(a, np.int64) * np.asarray(b, np.int64) + 32768) >> 16
    return np.clip(product, -(2**31), 2**31 - 1)


def median(x: A) -> A:
    around = np.pad(np.asarray(x, np.int64), 1, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(around, (3, 3))
    return np.sort(windows.reshape(*x.shape, 9), axis=2)[:, :, 4]


def in_circle(draws: A) -> A:
    both = np.asarray(draws, np.int64)
    return ((both & 0xFFFF) ** 2 + (both >> 16) ** 2 < 2**32).sum(axis=1)


def fft(re: A, im: A) -> dict[str, A]:
    result = np.fft.fft(re + 1j * im, axis=1)
    return {"out_re": result.real, "out_im": result.imag}


def swiglu(x: A) -> A:
    gate, up = np.split(x, 2, axis=1)
    return gate * up * np.exp(-np.logaddexp(0, -gate))


def group_norm(x: A, gain: A, bias: A, groups: int, epsilon: float) -> A:
    apart = x.reshape(len(x), groups, -1)
    apart = apart - apart.mean(axis=2, keepdims=True)
    variance = (apart**2).mean(axis=2, keepdims=True)
    scaled = (apart / np.sqrt(variance + np.float64(np.float32(epsilon)))).reshape(x.shape)
    return scaled * gain[:, None, None] + bias[:, None, None]


def _between(size: int, places: int) -> A:
    weights = np.zeros((places, size))
    at = np.maximum((np.arange(places) + 0.5) * size / places - 0.5, 0)
    low = np.floor(at).astype(int)
    np.add.at(weights, (np.arange(places), low), 1 - (at - low))
    np.add.at(weights, (np.arange(places), np.minimum(low + 1, size - 1)), at - low)
    return weights


def bilinear(x: A, rows: int, columns: int) -> A:
    down, across = _between(x.shape[1], int(rows)), _between(x.shape[2], int(columns))
    return np.einsum("rh,nhw,cw->nrc", down, x, across)


def avg_pool(x: A) -> A:
    border = ((0, 0), (1, 1), (1, 1))
    inside = np.pad(np.ones_like(x), border)
    sums, counts = (
        np.lib.stride_tricks.sliding_window_view(one, (3, 3), axis=(1, 2))[:, ::2, ::2].sum((3, 4))
        for one in (np.pad(x, border), inside)
    )
    return sums / counts


def causal_conv(x: A, w: A, bias: A) -> A:
    before = np.pad(x, ((0, 0), (0, 0), (3, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(before, 4, axis=2)
    return np.einsum("bctk,ck->bct", windows, w) + bias[:, None]


def bce(x: A, t: A) -> A:
    return (t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x)).mean(axis=1)


def smooth_ce_grad(x: A, label: A, smooth: float, factor: float) -> A:
    right = np.asarray(label, np.int64)[:, None]
    target = np.where(np.arange(x.shape[1]) == right, 1 - smooth, 0) + smooth / x.shape[1]
    return np.where(right < 0, 0, (softmax(x) - target) * factor)


def embedding_bag(table: A, index: A) -> A:
    row = np.asarray(index, np.int64)
    named = np.where((row >= 0)[..., None], table[np.maximum(row, 0)], 0)
    return named.sum(axis=1) / np.maximum((row >= 0).sum(axis=1, keepdims=True), 1)


def top_k(x: A, k: int) -> dict[str, A]:
    order = np.argsort(-x, axis=1, kind="stable")[:, : int(k)]
    return {"value": np.take_along_axis(x, order, axis=1), "index": order}


def moe_positions(expert: A) -> dict[str, A]:
    chosen = np.asarray(expert, np.int64)[:, None] == np.arange(8)
    places = np.cumsum(chosen, axis=0)
    return {"position": (places * chosen).sum(axis=1) - 1, "counts": places[-1]}


def clip_norm(g: A, limit: float) -> A:
    norm = np.sqrt((g**2).sum())
    return g * limit / norm if norm > limit else g


def sgd(p: A, g: A, m: A, rate: float, momentum: float, decay: float) -> dict[str, A]:
    slope = g + decay * p
    speed = momentum * m + slope
    return {"p2": p - rate * (slope + momentum * speed), "m2": speed}


def mx_quantize(x: A) -> dict[str, A]:
    blocks = np.pad(x, (0, -len(x) % 32)).reshape(-1, 32)
    largest = np.abs(blocks).max(axis=1)
    exponent = np.maximum(np.where(largest > 0, np.frexp(largest)[1] - 7, -100), -100)
    whole = np.clip(np.rint(np.ldexp(blocks, -exponent[:, None])), -127, 127)
    return {"q": whole.reshape(-1)[: len(x)], "exponent": exponent}


def int8_linear(a: A, b: A, scale_a: A, scale_b: A) -> A:
    product = np.asarray(a, np.int64) @ np.asarray(b, np.int64).T
    return product * scale_a[:, None] * scale_b


def decode_attention(q: A, k: A, v: A, lengths: A, scale: float) -> A:
    keys, values = (np.repeat(one, 4, axis=2) for one in (k, v))
    scores = np.einsum("bhd,bthd->bht", q, keys) * scale
    present = np.arange(k.shape[1]) < np.asarray(lengths, np.int64)[:, None, None]
    return np.einsum("bht,bthd->bhd", softmax(np.where(present, scores, -np.inf)), values)


def flash_merge(o: A, lse: A) -> dict[str, A]:
    total = np.logaddexp.reduce(lse, axis=0)
    return {"merged": (np.exp(lse - total)[..., None] * o).sum(axis=0), "total": total}


def masked_softmax(x: A, mask: A) -> A:
    shown = np.broadcast_to(np.asarray(mask) == 0, x.shape)
    largest = np.where(shown, x, -np.inf).max(axis=2, keepdims=True)
    powers = np.where(shown, np.exp(np.where(shown, x - largest, 0)), 0)
    sums = powers.sum(axis=2, keepdims=True)
    return powers / np.where(sums > 0, sums, 1)


def dropout(x: A, residual: A, word: A, threshold: int, factor: float) -> dict[str, A]:
    keep = np.asarray(word, np.int64) < int(threshold)
    bits = np.pad(keep, (0, -len(keep) % 32)).reshape(-1, 32).astype(np.int64)
    return {
        "y": residual + np.where(keep, x * factor, 0),
        "kept": (bits << np.arange(32)).sum(axis=1),
    }


def paged_gather(pages: A, table: A, lengths: A) -> A:
    rows = pages[np.asarray(table, np.int64)].reshape(len(table), -1, pages.shape[2])[:, :45]
    present = np.arange(45) < np.asarray(lengths, np.int64)[:, None]
    return np.where(present[..., None], rows, 0)


def bias_grad(dy: A) -> A:
    return dy.sum(axis=0)


def ssm_scan(a: A, x: A) -> A:
    states = np.zeros_like(x)
    state = np.zeros(len(x))
    for t in range(x.shape[1]):
        state = a[:, t] * state + x[:, t]
        states[:, t] = state
    return states


def wmma_linear(x: A, w: A, bias: A) -> A:
    return np.maximum(x @ w.T + bias, 0)


def pairwise_distance(a: A, b: A) -> A:
    return np.sqrt(((a[:, None] - b) ** 2).sum(axis=2))


def stochastic_round(x: A, word: A) -> A:
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.int64)
    return (bits + (np.asarray(word, np.int64) & 0xFFFF)) >> 16


def int4_gemv(w: A, scale: A, zero: A, x: A) -> A:
    weights = np.asarray(w, np.int64)[..., None] >> 4 * np.arange(8) & 15
    apart = weights.reshape(len(w), -1, 32) - np.asarray(zero, np.int64)[..., None]
    return (apart * scale[..., None]).reshape(len(w), -1) @ x


# Kernels of deep learning: losses, attention, caches, convolutions.


def fused_epilogue(x: A, bias: A, residual: A, slope: float) -> A:
    value = x + bias
    return np.where(value > 0, value, slope * value) + residual


def pool_indices(x: A) -> dict[str, A]:
    around = np.pad(x, ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(around, (3, 3), axis=(1, 2))
    windows = windows[:, ::2, ::2].reshape(3, 7, 9, 9)
    first = windows.argmax(axis=3)
    rows = 2 * np.arange(7)[:, None] - 1 + first // 3
    columns = 2 * np.arange(9) - 1 + first % 3
    return {"y": windows.max(axis=3), "index": rows * 17 + columns}


def log_softmax(x: A) -> A:
    apart = x - x.max(axis=1, keepdims=True)
    return apart - np.log(np.exp(apart).sum(axis=1, keepdims=True))


def nll_mean(logs: A, label: A, weight: A) -> A:
    own = np.asarray(label, np.int64)
    share = np.where(own < 0, 0, weight[np.maximum(own, 0)])
    picked = logs[np.arange(len(own)), np.maximum(own, 0)]
    total = share.sum(keepdims=True)
    return -(share * picked).sum(keepdims=True) / np.where(total > 0, total, 1)


def cosine_similarity(a: A, b: A, epsilon: float) -> A:
    norms = [np.maximum(np.sqrt((one**2).sum(axis=1)), epsilon) for one in (a, b)]
    return (a * b).sum(axis=1) / (norms[0] * norms[1])


def huber_mean(x: A, target: A, delta: float) -> A:
    apart = np.abs(x - target)
    losses = np.where(apart <= delta, apart**2 / 2, delta * (apart - delta / 2))
    return losses.mean(keepdims=True)


def multi_margin(x: A, label: A, margin: float) -> A:
    own = np.asarray(label, np.int64)
    terms = np.maximum(x - x[np.arange(len(x)), own][:, None] + margin, 0)
    terms[np.arange(len(x)), own] = 0
    return terms.mean(axis=1)


def instance_norm(x: A, gain: A, bias: A, epsilon: float) -> A:
    apart = x - x.mean(axis=(2, 3), keepdims=True)
    variance = (apart**2).mean(axis=(2, 3), keepdims=True)
    return apart / np.sqrt(variance + epsilon) * gain[:, None, None] + bias[:, None, None]


def alibi(x: A, slope: A) -> A:
    position = np.arange(30)
    apart = position[:, None] - position
    return softmax(np.where(apart >= 0, x - slope[:, None, None] * apart, -np.inf))


def window_scores(q: A, k: A, window: int, scale: float) -> A:
    scores = np.einsum("hid,hjd->hij", q, np.repeat(k, 3, axis=0)) * scale
    apart = np.arange(45)[:, None] - np.arange(45)
    return np.where((apart >= 0) & (apart < window), scores, -10000)


def kv_append(cache: A, fresh: A, filled: A) -> A:
    y = np.array(cache)
    for batch, start in enumerate(np.asarray(filled, np.int64)):
        y[batch, start : start + 4] = fresh[batch]
    return y


def scatter_mean(x: A, index: A) -> A:
    target = np.asarray(index, np.int64)
    sums = np.zeros((70, 9))
    np.add.at(sums, target, x)
    return sums / np.maximum(np.bincount(target, minlength=70), 1)[:, None]


def embedding_backward(dy: A, index: A, padding: int) -> A:
    row = np.asarray(index, np.int64)
    sums = np.zeros((50, 20))
    np.add.at(sums, row, np.where((row != padding)[:, None], dy, 0))
    return sums


def lora(base: A, x: A, down: A, up: A, rank: int, alpha: float) -> A:
    return base + alpha / rank * (x @ down.T @ up.T)


def dilated_depthwise(x: A, w: A, bias: A) -> A:
    around = np.pad(x, ((0, 0), (2, 2), (2, 2)))
    y = np.zeros(x.shape) + bias[:, None, None]
    for i in range(3):
        for j in range(3):
            y += around[:, 2 * i : 2 * i + 19, 2 * j : 2 * j + 23] * w[:, i, j, None, None]
    return y


def conv_transpose(x: A, w: A) -> A:
    y = np.zeros((4, 69))
    for k in range(5):
        y[:, k : k + 65 : 2] += w[:, :, k].T @ x
    return y[:, 1:68]


def gather_tree(token: A, parent: A) -> A:
    y = np.zeros(token.shape, np.int64)
    beam = np.broadcast_to(np.arange(5), (9, 5))
    for t in reversed(range(14)):
        y[t] = np.take_along_axis(np.asarray(token[t], np.int64), beam, axis=1)
        beam = np.take_along_axis(np.asarray(parent[t], np.int64), beam, axis=1)
    return y


def pixel_shuffle(x: A) -> A:
    squares = x.reshape(2, 3, 2, 2, 7, 9)
    return squares.transpose(0, 1, 4, 2, 5, 3).reshape(2, 3, 14, 18)


def reflect_pad(x: A) -> A:
    return np.pad(x, ((0, 0), (3, 3), (3, 3)), mode="reflect")


def ema_update(average: A, weight: A, step: int, limit: float) -> dict[str, A]:
    decay = min(limit, (1 + step) / (10 + step))
    value = decay * average + (1 - decay) * weight
    return {"next": value, "copy": value}


def returns_to_go(x: A, lengths: A) -> A:
    within = np.arange(75) < np.asarray(lengths, np.int64)[:, None]
    return np.where(within, x, 0)[:, ::-1].cumsum(axis=1)[:, ::-1]


def nv12_to_rgb(luma: A, chroma: A) -> A:
    c = 298 * (np.asarray(luma, np.int64) - 16)
    pairs = np.asarray(chroma, np.int64).reshape(11, 15, 2) - 128
    d, e = np.moveaxis(pairs.repeat(2, axis=0).repeat(2, axis=1), 2, 0)
    sums = np.stack([c + 409 * e, c - 100 * d - 208 * e, c + 516 * d], axis=-1)
    return np.clip((sums + 128) >> 8, 0, 255)


def q15_fir(x: A, taps: A) -> A:
    sums = np.stack(
        [np.convolve(row, np.asarray(taps, np.int64)) for row in np.asarray(x, np.int64)]
    )
    return np.clip((sums[:, : x.shape[1]] + 16384) >> 15, -32768, 32767)


def inside_polygon(points: A, corners: A) -> A:
    x, y = np.asarray(points, np.int64).T[..., None]
    ax, ay = np.asarray(corners, np.int64).T
    bx, by = np.roll(ax, -1), np.roll(ay, -1)
    side = (bx - ax) * (y - ay) - (x - ax) * (by - ay)
    crossed = ((ay > y) != (by > y)) & np.where(by > ay, side > 0, side < 0)
    return crossed.sum(axis=1) % 2


def half_bits(x: A) -> A:
    bits = np.asarray(x).astype(np.uint32)
    numbers = bits.view(np.float32)
    with np.errstate(all="ignore"):
        halves = numbers.astype(np.float16).view(np.uint16)
    return np.where(np.isnan(numbers), (bits >> 16 & 0x8000) | 0x7E00, halves)


def weighted_pick(weights: A, words: A) -> A:
    sums = np.asarray(weights, np.int64).cumsum(axis=1)
    places = np.asarray(words, np.int64) * sums[:, -1:] >> 32
    before = (sums[:, None] <= places[..., None]).sum(axis=2)
    return np.minimum(before, sums.shape[1] - 1)


def prefix_products(x: A) -> A:
    products = np.asarray(x, np.int64) % 2147483647
    for i in range(1, products.shape[1]):
        products[:, i] = products[:, i] * products[:, i - 1] % 2147483647
    return products


def sliding_max(x: A, window: int) -> A:
    around = np.pad(x, ((0, 0), (window - 1, 0)), constant_values=-np.inf)
    return np.lib.stride_tricks.sliding_window_view(around, window, axis=1).max(axis=2)


def argsort_rows(keys: A) -> A:
    return np.argsort(-np.asarray(keys, np.int64), axis=1, kind="stable")


def chebyshev(x: A, coefficients: A) -> A:
    return np.polynomial.chebyshev.chebval(x, coefficients)


def inverse3(diagonal: A, off: A) -> A:
    matrices = np.zeros((len(diagonal), 9))
    matrices[:, [0, 4, 8]] = diagonal
    matrices[:, [1, 2, 3, 5, 6, 7]] = off
    return np.linalg.inv(matrices.reshape(-1, 3, 3))


def l2_normalize(x: A, smallest: float) -> A:
    norms = np.sqrt((x**2).sum(axis=1, keepdims=True))
    return x / np.maximum(norms, np.float32(smallest))


def complex_dot(a: A, b: A) -> A:
    first, second = a[..., 0] - 1j * a[..., 1], b[..., 0] + 1j * b[..., 1]
    sums = (first * second).sum(axis=1)
    return np.stack([sums.real, sums.imag], axis=-1)


def biquad(x: A, b0: float, b1: float, b2: float, a1: float, a2: float) -> A:
    around = np.pad(x, ((0, 0), (2, 0)))
    y = np.zeros_like(around)
    for t in range(2, y.shape[1]):
        ahead = b0 * around[:, t] + b1 * around[:, t - 1] + b2 * around[:, t - 2]
        y[:, t] = ahead - a1 * y[:, t - 1] - a2 * y[:, t - 2]
    return y[:, 2:]


def binomial_put(price: A, strike: A, up: float, chance: float, discount: float, steps: int) -> A:
    def paid(step: int) -> A:
        return strike[:, None] - price[:, None] * float(up) ** (2.0 * np.arange(step + 1) - step)

    value = np.maximum(paid(steps), 0)
    for step in range(steps - 1, -1, -1):
        later = discount * (chance * value[:, 1:] + (1 - chance) * value[:, :-1])
        value = np.maximum(later, paid(step))
    return value[:, 0]


def token_norm(x: A) -> A:
    return x / np.sqrt((x**2).sum(axis=-1, keepdims=True) + np.float32(1e-6))


def softmax_backward(y: A, g: A) -> A:
    kept = np.tril(np.ones(y.shape[0:2]))
    total = (y * g * kept).sum(axis=1, keepdims=True)
    return kept * y * (g - total)


def gating(x: A, bias: A) -> dict[str, A]:
    keys = np.float32(x) + np.float32(bias)
    ids = np.argsort(-keys, axis=1, kind="stable")[:, :2]
    scores = 1 / (1 + np.exp(-np.take_along_axis(x, ids, axis=1)))
    return {"ids": ids, "weights": scores / scores.sum(axis=1, keepdims=True)}


def to_fp8(x: A, scale: float) -> A:
    v = np.float32(x) * np.float32(scale)
    codes = np.arange(127)
    values = np.where(codes < 8, codes / 512.0, (1 + codes % 8 / 8) * 2.0 ** (codes // 8 - 7))
    a = np.minimum(np.abs(v), 448.0).astype(np.float64)
    high = np.clip(np.searchsorted(values, a, side="left"), 1, 126)
    low = high - 1
    down, up = a - values[low], values[high] - a
    code = np.where((down < up) | ((down == up) & (low % 2 == 0)), low, high)
    return code + 128 * np.signbit(v)


def lookback(x: A) -> A:
    return np.cumsum(x.astype(np.uint64)).astype(np.uint32)


def offsets_sum(x: A) -> A:
    return x.sum(axis=1)


def stream_k(a: A, b: A) -> A:
    return a @ b


def ragged_attention(q: A, k: A, v: A, lengths: A) -> A:
    out = np.zeros_like(q)
    for b in range(q.shape[0]):
        for i in range(q.shape[1]):
            visible = int(lengths[b]) - q.shape[1] + i + 1
            if visible > 0:
                s = k[b, :visible] @ q[b, i] / np.sqrt(32)
                p = np.exp(s - s.max())
                out[b, i] = p @ v[b, :visible] / p.sum()
    return out


def strided_norm(x: A) -> A:
    view = x[:, :303:3]
    return view / np.sqrt((view**2).mean(axis=1, keepdims=True) + np.float32(1e-5))


def gqa_scores(q: A, k: A) -> A:
    return np.einsum("hid,hjd->hij", q, np.repeat(k, 4, axis=0)) / np.sqrt(24)


def norm_grads(x: A, gain: A, g: A, dgain: A) -> dict[str, A]:
    r = 1 / np.sqrt((x**2).mean(axis=1, keepdims=True) + np.float32(1e-5))
    b = (x * gain * g).mean(axis=1, keepdims=True)
    return {"dx": r * (g * gain - x * r * r * b), "dgain": dgain + (g * x * r).sum(axis=0)}


def alpha_blend(centers: A, opacity: A, color: A) -> dict[str, A]:
    x, y = np.meshgrid(np.arange(37), np.arange(27))
    left, total = np.ones((27, 37)), np.zeros((27, 37))
    for (cx, cy), o, c in zip(centers, opacity, color, strict=True):
        alpha = o / (1 + (cx - x) ** 2 + (cy - y) ** 2)
        total += left * alpha * c
        left *= 1 - alpha
    return {"image": total + left, "used": np.full((27, 37), 300)}


def adaptive_pool(x: A) -> A:
    out = np.empty((11, 5, 7))
    for r in range(5):
        for s in range(7):
            window = x[:, r * 13 // 5 : -(-(r + 1) * 13 // 5), s * 17 // 7 : -(-(s + 1) * 17 // 7)]
            out[:, r, s] = window.mean(axis=(1, 2))
    return out


def grid_sample(x: A, grid: A) -> A:
    padded = np.zeros((60, 60))
    padded[10:33, 10:41] = x
    u, v = grid[:, 0], grid[:, 1]
    c, r = np.floor(u).astype(int), np.floor(v).astype(int)
    a, b = u - c, v - r
    c, r = c + 10, r + 10
    top = (1 - a) * padded[r, c] + a * padded[r, c + 1]
    return (1 - b) * top + b * ((1 - a) * padded[r + 1, c] + a * padded[r + 1, c + 1])


def kth(x: A) -> A:
    return np.sort(x, axis=1)[:, 299]


def viterbi(moves: A, emit: A) -> dict[str, A]:
    row, back = emit[0].astype(np.int64), []
    for k in range(1, 20):
        tried = row[:, None] + moves
        back.append(tried.argmax(axis=0))
        row = tried.max(axis=0) + emit[k]
    return {"score": row, "back": np.array(back)}


def log_cumsum(x: A) -> A:
    return np.logaddexp.accumulate(x, axis=1)


def grid_norm(x: A) -> A:
    return x / np.sqrt((x**2).sum() + np.float32(1e-12))


def staged_gemm(a: A, b: A) -> A:
    return a @ b


def mma_scores(a: A, b: A) -> A:
    return a @ b.T


def work_queue(x: A) -> A:
    return x.max(axis=1)


def u8_linear(x: A, w: A) -> A:
    return (x.astype(np.int64) - 131) @ w.astype(np.int64).T


def nf4(codes: A, scales: A) -> A:
    book = np.float32(
        [
            -1,
            -0.6961928,
            -0.5250731,
            -0.3949175,
            -0.2844414,
            -0.1847734,
            -0.09105,
            0,
            0.0795803,
            0.1609302,
            0.2461123,
            0.3379152,
            0.4407098,
            0.562617,
            0.7229568,
            1,
        ]
    ).astype(float)
    both = np.stack([codes >> 4, codes & 15], axis=1).reshape(-1)[:3001]
    return book[both] * np.repeat(scales, 64)[:3001]


def rope_inplace(x: A, cosines: A, sines: A) -> A:
    a, b = x[..., :16], x[..., 16:]
    c, s = cosines[:, None], sines[:, None]
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)


def nhwc(x: A) -> A:
    return x.transpose(0, 2, 3, 1)


def col2im(columns: A) -> A:
    image = np.zeros((4, 16, 20))
    for q in range(9):
        image[:, q // 3 : q // 3 + 13 : 2, q % 3 : q % 3 + 17 : 2] += columns[:, q]
    return image[:, 1:15, 1:19]


def jacobi3d(u: A) -> A:
    v = u.copy()
    i = slice(1, -1)
    v[i, i, i] = (
        u[:-2, i, i] + u[2:, i, i] + u[i, :-2, i] + u[i, 2:, i] + u[i, i, :-2] + u[i, i, 2:]
    ) / 6
    return v


def repeat_penalty(scores: A, tokens: A) -> A:
    out = scores.copy()
    for row, own in zip(out, tokens, strict=True):
        seen = np.unique(own)
        row[seen] = np.where(row[seen] > 0, row[seen] / 1.5, row[seen] * 1.5)
    return out


def cummax(x: A) -> dict[str, A]:
    y = np.maximum.accumulate(x, axis=1)
    place = np.where(x == y, np.arange(x.shape[1]), 0)
    return {"y": y, "where": np.maximum.accumulate(place, axis=1)}


def dct8(x: A) -> A:
    i, j = np.meshgrid(np.arange(8), np.arange(8), indexing="ij")
    w = np.cos((2 * j + 1) * i * np.pi / 16) * np.where(i == 0, np.sqrt(1 / 8), 0.5)
    blocks = x.reshape(3, 8, 5, 8).transpose(0, 2, 1, 3)
    return (w @ blocks @ w.T).transpose(0, 2, 1, 3).reshape(24, 40)


def nms_bits(boxes: A) -> A:
    b = boxes.astype(np.int64)
    x, y, w, h = b.T
    a = np.maximum(0, np.minimum.outer(x + w, x + w) - np.maximum.outer(x, x))
    c = np.maximum(0, np.minimum.outer(y + h, y + h) - np.maximum.outer(y, y))
    shared = a * c
    hit = np.triu(2 * shared > np.add.outer(w * h, w * h) - shared, 1)
    bits = np.zeros((150, 192), np.uint64)
    bits[:, :150] = hit
    return (bits.reshape(150, 3, 64) << np.arange(64, dtype=np.uint64)).sum(axis=2, dtype=np.uint64)


def jagged_max(x: A, lengths: A) -> A:
    return np.where(np.arange(200) < lengths[:, None], x, -np.inf).max(axis=1)


def runs(x: A) -> dict[str, A]:
    y = np.zeros(x.shape, np.int64)
    y[:, 1:] = np.cumsum(x[:, 1:] != x[:, :-1], axis=1)
    return {"y": y, "total": y[:, -1] + 1}


def _bfloat16(v: A) -> A:
    bits = np.float32(v).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def add_norm(residual: A, x: A, gain: A) -> dict[str, A]:
    total = _bfloat16(residual + x)
    scale = 1 / np.sqrt((total**2).mean(axis=1, keepdims=True) + np.float32(1e-6))
    return {"residual": total, "y": total * scale * gain}


def ordered_sum(x: A) -> A:
    return x.sum(axis=0)


def match_hist(x: A) -> A:
    return np.bincount(x.astype(np.int64), minlength=256)


def mish(x: A) -> A:
    return x * np.tanh(np.logaddexp(0, x))


def row_entropy(x: A) -> A:
    p = x - x.max(axis=1, keepdims=True)
    z = np.exp(p).sum(axis=1)
    return np.log(z) - (np.exp(p) * p).sum(axis=1) / z


def tall(x: A) -> A:
    return x / (1 + np.abs(x).sum(axis=1, keepdims=True))


def bucketize(x: A) -> A:
    return np.searchsorted(-8 + 0.25 * np.arange(65), x, side="right")


def isqrt(x: A) -> A:
    v = x.astype(np.uint64)
    r = np.sqrt(x.astype(np.float64)).astype(np.uint64)
    r -= r * r > v
    return r + ((r + 1) * (r + 1) <= v)


def first_zero(x: A) -> A:
    zero = x == 0
    return np.where(zero.any(axis=1), zero.argmax(axis=1), 64)


def ping_pong(x: A) -> A:
    for _ in range(3):
        p = np.pad(x, ((0, 0), (1, 1)), mode="edge")
        x = 0.25 * p[:, :-2] + 0.5 * x + 0.25 * p[:, 2:]
    return x


def tail_async(x: A) -> A:
    return x.sum(axis=1)


def flag_relay(x: A) -> A:
    g = (x**2).reshape(7, 8, 32)
    return (g + np.roll(g, -1, axis=2)).reshape(7, 256)


def select_rows(x: A, keep: A) -> dict[str, A]:
    keep = keep.astype(bool)
    first = keep.argmax() if keep.any() else 83
    y = np.where(keep[:, None], x, 0)
    return {"y": y, "count": keep.sum(keepdims=True), "first": np.array([first])}


def standardize(x: A) -> A:
    v = x.var(axis=1, ddof=1, keepdims=True)
    return (x - x.mean(axis=1, keepdims=True)) / np.sqrt(v + np.float32(1e-8))


def mean16(a: A, b: A) -> dict[str, A]:
    x, y = a.astype(np.int64), b.astype(np.int64)
    return {
        "mean": (x + y + 1) >> 1,
        "apart": np.clip(x - y, -32768, 32767),
        "shifted": np.clip(4 * x, -32768, 32767),
    }


def table_walk(x: A, knots: A) -> dict[str, A]:
    v = np.clip(x, 0, 16)
    k = np.minimum(v.astype(int), 15)
    d = knots[k + 1] - knots[k]
    return {"y": knots[k] + (v - k) * d, "slope": d}


def grid_barrier(x: A) -> A:
    sums = x.sum(axis=1, keepdims=True)
    return x + 0.5 * (np.roll(sums, 1, axis=0) + np.roll(sums, -1, axis=0))


def wavefront(x: A) -> A:
    best = np.zeros(x.shape, np.int64)
    above = np.zeros(x.shape[1], np.int64)
    for r in range(x.shape[0]):
        best[r] = above = np.maximum(above, 0) + x[r]
    return best


def flag_mean(x: A, flag: A) -> dict[str, A]:
    flag = flag.astype(bool)
    count = int(flag.sum())
    mean = x[flag].sum() / count if count else 0.0
    last = np.nonzero(flag)[0][-1] if count else -1
    return {"mean": np.array([mean]), "count": np.array([count]), "last": np.array([last])}


def mix64(x: A) -> A:
    with np.errstate(over="ignore"):
        z = x + np.arange(len(x), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return z ^ z >> np.uint64(31)


def sobel(image: A) -> A:
    padded = np.pad(np.asarray(image, np.int64), 1, mode="edge")
    along = padded[:-2] + 2 * padded[1:-1] + padded[2:]
    across = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    gx, gy = along[:, 2:] - along[:, :-2], across[2:] - across[:-2]
    return np.minimum(255, (abs(gx) + abs(gy)) // 2)


def wave3d(u: A) -> A:
    result = np.array(u)
    inner = (slice(2, -2),) * 3
    value = -7.5 * u[inner]
    for axis in range(3):
        for distance, factor in ((1, 1.25), (2, -0.0625)):
            for way in (-distance, distance):
                value = value + factor * np.roll(u, way, axis)[inner]
    result[inner] = value
    return result


def block_ell(values: A, columns: A, dense: A) -> A:
    columns = np.asarray(columns, np.int64)
    blocks = dense.reshape(-1, 8, dense.shape[1])[np.maximum(columns, 0)]
    blocks = np.where(columns[..., None, None] < 0, 0, blocks)
    return np.einsum("rkij,rkjn->rin", values, blocks).reshape(-1, dense.shape[1])


def coo_spmv(row: A, column: A, value: A, x: A) -> A:
    places = np.asarray(row, np.int64)
    return np.bincount(places, value * x[np.asarray(column, np.int64)], minlength=90)


def csr_build(key: A, keys: int) -> dict[str, A]:
    key = np.asarray(key, np.int64)
    place = np.empty_like(key)
    place[np.argsort(key, kind="stable")] = np.arange(len(key))
    counts = np.bincount(key, minlength=int(keys))
    return {"offset": np.concatenate([[0], np.cumsum(counts)]), "place": place}


def philox_dropout(
    x: A, seed_low: int, seed_high: int, offset: int, threshold: int, scale: float
) -> A:
    low32 = np.uint64(0xFFFFFFFF)
    groups = (len(x) + 3) // 4
    c = [np.arange(groups, dtype=np.uint64) + np.uint64(offset)]
    c += [np.zeros(groups, np.uint64)] * 3
    k0, k1 = int(seed_low), int(seed_high)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        high0, high1 = p0 >> np.uint64(32), p1 >> np.uint64(32)
        c = [high1 ^ c[1] ^ np.uint64(k0), p1 & low32, high0 ^ c[3] ^ np.uint64(k1), p0 & low32]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    words = np.stack(c, axis=1).reshape(-1)[: len(x)]
    return np.where(words < np.uint64(threshold), x * scale, 0)


def e4m3_blocks(codes: A, scale: A) -> A:
    byte = np.asarray(codes, np.int64)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    normal = np.ldexp(8.0 + mantissa, exponent - 10)
    number = np.where(exponent == 0, np.ldexp(1.0 * mantissa, -9), normal)
    number = np.where(byte & 127 == 127, 0, np.where(byte & 128, -number, number))
    return number * np.repeat(scale, 32, axis=1)[:, : byte.shape[1]]


def winograd(x: A, taps: A) -> A:
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
    return np.einsum("chwij,kcij->khw", windows, taps)


def rms_backward(x: A, gain: A, dy: A, epsilon: float) -> dict[str, A]:
    r = 1 / np.sqrt((x**2).mean(axis=1, keepdims=True) + np.float32(epsilon))
    share = (x * gain * dy).mean(axis=1, keepdims=True) * r**2
    return {"dx": r * (gain * dy - x * share), "dgain": (dy * x * r).sum(axis=0)}


def beam_step(cost: A, so_far: A) -> dict[str, A]:
    sums = (np.asarray(so_far, np.int64)[..., None] + np.asarray(cost, np.int64)).reshape(
        len(cost), -1
    )
    best = np.argsort(sums, axis=1, kind="stable")[:, : cost.shape[1]]
    return {
        "total": np.take_along_axis(sums, best, axis=1),
        "parent": best // cost.shape[2],
        "token": best % cost.shape[2],
    }


def nucleus(weight: A) -> A:
    weight = np.asarray(weight, np.int64)
    order = np.argsort(-weight, axis=1, kind="stable")
    sums = np.cumsum(np.take_along_axis(weight, order, axis=1), axis=1)
    before = np.concatenate([np.zeros((len(weight), 1), np.int64), sums[:, :-1]], axis=1)
    kept = 10 * before < 9 * sums[:, -1:]
    kept[:, 0] = True
    result = np.empty_like(kept)
    np.put_along_axis(result, order, kept, axis=1)
    return result


def stockham(x: A) -> A:
    result = np.fft.fft(x[..., 0] + 1j * x[..., 1], axis=1)
    return np.stack([result.real, result.imag], axis=-1)


def nbody(body: A, softening: float) -> A:
    apart = body[None, :, :3] - body[:, None, :3]
    square = (apart**2).sum(axis=2) + softening
    return (apart * (body[:, 3] / square**1.5)[..., None]).sum(axis=1)


def paged_decode(q: A, keys: A, values: A, table: A, lengths: A, scale: float) -> A:
    result = np.empty_like(q)
    for sequence, length in enumerate(np.asarray(lengths, np.int64)):
        pages = np.asarray(table[sequence], np.int64)
        k = keys[pages].reshape(-1, *keys.shape[2:])[:length]
        v = values[pages].reshape(-1, *values.shape[2:])[:length]
        scores = np.einsum("hd,thd->th", q[sequence], k) * scale
        weights = np.exp(scores - scores.max(axis=0))
        result[sequence] = np.einsum("th,thd->hd", weights / weights.sum(axis=0), v)
    return result


def rope_half2(x: A, cosine: A, sine: A, position: A) -> A:
    places = np.asarray(position, np.int64)
    c, s = cosine[places][:, None], sine[places][:, None]
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * c - b * s, a * s + b * c], axis=-1).reshape(x.shape)


def dp4a_requant(a: A, w: A, bias: A, zero_a: int, zero_out: int, factor: int, shift: int) -> A:
    left = np.asarray(a, np.int64) - int(zero_a)
    sums = left @ np.asarray(w, np.int64).T + np.asarray(bias, np.int64)
    scaled = (sums * int(factor) + (1 << (int(shift) - 1))) >> int(shift)
    return np.clip(scaled + int(zero_out), -128, 127)


def nibbles(x: A) -> A:
    limited = np.clip(np.asarray(x, np.int64), -8, 7)
    pairs = np.pad(limited, (0, len(x) % 2)).reshape(-1, 2) & 15
    return pairs[:, 0] | pairs[:, 1] << 4


def band_mask(document: A, window: int) -> A:
    place = np.arange(document.shape[1])
    distance = place[:, None] - place
    same = document[:, :, None] == document[:, None, :]
    return same & (distance >= 0) & (distance < window)


def lion(p: A, m: A, g: A, rate: float, beta1: float, beta2: float, decay: float) -> dict[str, A]:
    sign = np.sign(beta1 * m + (1 - beta1) * g)
    return {"p": p - rate * (sign + decay * p), "m": beta2 * m + (1 - beta2) * g}


def byte_counters(x: A) -> A:
    return np.bincount(np.asarray(x, np.int64) >> 4, minlength=16)


def wide_product(a: A, b: A) -> dict[str, A]:
    a, b = np.asarray(a, np.uint64), np.asarray(b, np.uint64)
    half, low32 = np.uint64(32), np.uint64(0xFFFFFFFF)
    a0, a1, b0, b1 = a & low32, a >> half, b & low32, b >> half
    middle = (a0 * b0 >> half) + (a0 * b1 & low32) + (a1 * b0 & low32)
    high = a1 * b1 + (a0 * b1 >> half) + (a1 * b0 >> half) + (middle >> half)
    return {"low": a * b, "high": high}


def ring_barrier(x: A) -> A:
    return x.sum(axis=1)


def flagged_sums(x: A, flag: A) -> A:
    result = np.zeros(x.shape, np.int64)
    carried = np.zeros(len(x), np.int64)
    for c in range(x.shape[1]):
        carried = np.where(flag[:, c] != 0, 0, carried) + np.asarray(x[:, c], np.int64)
        result[:, c] = carried
    return result


def cub_softmax(x: A) -> A:
    return softmax(x)


def curand_noise(x: A, seed: int, offset: int, strength: float) -> A:
    groups, n = (len(x) + 3) // 4, len(x)
    low32, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    c = [np.full(groups, int(offset) // 4, np.uint64), np.zeros(groups, np.uint64)]
    c += [np.arange(groups, dtype=np.uint64), np.zeros(groups, np.uint64)]
    k0, k1 = int(seed) & 0xFFFFFFFF, int(seed) >> 32
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [
            p1 >> half ^ c[1] ^ np.uint64(k0),
            p1 & low32,
            p0 >> half ^ c[3] ^ np.uint64(k1),
            p0 & low32,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    words = np.stack(c, axis=1).reshape(-1)[:n]
    return x + strength * (words * 2.0**-32 + 2.0**-33 - 0.5)


def complex_poly(coefficient: A, z: A) -> A:
    places = z[:, 0] + 1j * z[:, 1]
    result = np.polyval((coefficient[:, 0] + 1j * coefficient[:, 1])[::-1], places)
    return np.stack([result.real, result.imag], axis=1)


def segment_max(x: A, segment: A) -> A:
    most = np.full(300, -np.inf)
    np.maximum.at(most, np.asarray(segment, np.int64), x)
    return np.where(np.isinf(most), 0, most)


def avg_pool3d(x: A) -> A:
    padding = [(0, 0), (1, 1), (1, 1), (1, 1)]
    windows = np.lib.stride_tricks.sliding_window_view
    means = [
        windows(np.pad(values, padding), (3, 3, 3), axis=(1, 2, 3))[:, ::2, ::2, ::2].sum(
            axis=(4, 5, 6)
        )
        for values in (x, np.ones_like(x))
    ]
    return means[0] / means[1]


def sddmm(a: A, b: A, row: A, column: A, value: A) -> A:
    left, right = a[np.asarray(row, np.int64)], b[np.asarray(column, np.int64)]
    return (left * right).sum(axis=1) * value


def rgb_to_hsv(rgb: A) -> A:
    rgb = np.asarray(rgb, np.float64)
    r, g, b = rgb.T
    most, least = rgb.max(axis=1), rgb.min(axis=1)
    width = np.where(most > least, most - least, 1)
    hue = np.where(most == g, 2 + (b - r) / width, 4 + (r - g) / width)
    hue = np.where(most == r, (g - b) / width, hue)
    hue = np.where(most > least, np.where(hue < 0, hue + 6, hue), 0)
    return np.stack([hue, (most - least) / np.maximum(most, 1), most], axis=1)


def crc32_rows(x: A) -> A:
    return np.array([zlib.crc32(bytes(np.asarray(row, np.uint8))) for row in x])


def group_by(key: A, x: A) -> A:
    return np.bincount(np.asarray(key, np.int64), weights=x, minlength=700)


def merge_sort(x: A) -> A:
    order = np.argsort(x, axis=1, kind="stable")
    return {"y": np.take_along_axis(x, order, axis=1), "order": order}


def limb_add(a: A, b: A) -> A:
    wide = np.asarray(a, np.int64) + np.asarray(b, np.int64)
    carry = np.zeros(len(wide), np.int64)
    for limb in range(wide.shape[1]):
        wide[:, limb] += carry
        carry = wide[:, limb] >> 32
    return {"sum": wide & 0xFFFFFFFF, "carry": carry}


def number_transform(x: A) -> A:
    prime, size = 998244353, np.shape(x)[1]
    root = pow(3, (prime - 1) // size, prime)
    powers = np.array([pow(root, k, prime) for k in range(size)])
    places = np.arange(size)
    table = powers[np.outer(places, places) % size]
    return np.stack([(row * table % prime).sum(axis=1) % prime for row in np.asarray(x, np.int64)])


def chacha(key: A, counter: A, nonce: A, blocks: int) -> A:
    at = int(counter[0]) + (int(counter[1]) << 32)
    counts = [(at + block) % 2**64 for block in range(blocks)]
    state = np.zeros((16, blocks), np.uint32)
    state[:4] = np.array([[0x61707865], [0x3320646E], [0x79622D32], [0x6B206574]])
    state[4:12] = np.asarray(key, np.uint32)[:, None]
    state[12] = [count % 2**32 for count in counts]
    state[13] = [count >> 32 for count in counts]
    state[14:] = np.asarray(nonce, np.uint32)[:, None]
    words = state.copy()
    for _ in range(10):
        for turn in (0, 1):
            for k in range(4):
                a, b, c, d = (4 * part + (k + part * turn) % 4 for part in range(4))
                for one, two, three, bits in (
                    (a, b, d, 16),
                    (c, d, b, 12),
                    (a, b, d, 8),
                    (c, d, b, 7),
                ):
                    words[one] += words[two]
                    mixed = words[three] ^ words[one]
                    words[three] = mixed << np.uint32(bits) | mixed >> np.uint32(32 - bits)
    return (words + state).T


def run_expand(counts: A, values: A, size: int) -> A:
    out = np.full(size, -1, np.int64)
    runs = np.repeat(np.asarray(values, np.int64), np.asarray(counts, np.int64))
    out[: len(runs)] = runs
    return out


def collatz(n: A) -> A:
    at = np.array(n, np.int64)
    steps = np.zeros(len(at), np.int64)
    while (going := at != 1).any():
        at = np.where(going, np.where(at % 2, 3 * at + 1, at // 2), 1)
        steps += going
    return steps


def rpn(tokens: A, x: A) -> A:
    result = []
    for row, numbers in zip(tokens.tolist(), x.tolist(), strict=True):
        stack: list[float] = []
        for token in row:
            if token < 4:
                stack.append(numbers[token])
            elif len(stack) > 1:
                b, a = stack.pop(), stack.pop()
                stack.append((a + b, a - b, max(a, b))[token - 4])
        result.append(stack[-1] if stack else 0.0)
    return np.array(result)


def state_machine(text: A, table: A) -> A:
    state = np.zeros(len(text), np.int64)
    for letter in np.asarray(text, np.int64).T:
        state = np.asarray(table, np.int64)[letter, state]
    return state


def bloom(keys: A, queries: A) -> A:
    def places(numbers: A, k: int) -> A:
        mixed = np.asarray(numbers, np.uint32)
        mixed = (mixed ^ mixed >> np.uint32(16)) * np.uint32(0x85EBCA6B + 2 * k)
        mixed = (mixed ^ mixed >> np.uint32(13)) * np.uint32(0xC2B2AE35)
        return (mixed ^ mixed >> np.uint32(16)) & 8191

    is_set = np.zeros(8192, bool)
    for k in range(3):
        is_set[places(keys, k)] = True
    there = np.all([is_set[places(queries, k)] for k in range(3)], axis=0)
    return {"bits": np.packbits(is_set, bitorder="little").view(np.uint32), "there": there}


def union_find(edges: A, n: int) -> A:
    label = np.arange(n)
    edges = np.asarray(edges, np.int64)
    while True:
        lower = label.copy()
        np.minimum.at(lower, edges[:, 0], label[edges[:, 1]])
        np.minimum.at(lower, edges[:, 1], label[edges[:, 0]])
        lower = lower[lower]
        if (lower == label).all():
            return label
        label = lower


def sparse_solve(columns: A, values: A, b: A) -> A:
    x = np.zeros(len(b))
    for row, earlier in enumerate(np.asarray(columns, np.int64)):
        known = earlier < row
        x[row] = b[row] - (values[row] * x[earlier])[known].sum()
    return x


def page_rank(links: A, rank: A, n: int) -> A:
    links = np.asarray(links, np.int64)
    there = links >= 0
    degree = there.sum(axis=1)
    given = np.where(there, (rank / np.maximum(degree, 1))[:, None], 0.0)
    into = np.bincount(links[there], weights=given[there], minlength=n)
    return np.float32(0.15) / n + np.float32(0.85) * (into + rank[degree == 0].sum() / n)


def staged_smooth(x: A) -> A:
    apart = np.pad(x, ((0, 0), (1, 1))) / 2
    return apart[:, :-2] + apart[:, 1:-1] + apart[:, 2:]


def bulk_rows(x: A) -> A:
    return (x * x[:, :, ::-1]).sum(axis=1)


def cluster_pair(x: A) -> A:
    return x.sum(axis=1)


def group_spread(x: A) -> A:
    return x.max(axis=1) - x.min(axis=1)


def half_warp_scan(x: A) -> A:
    wide = np.zeros(-len(x) % 16 + len(x), np.int64)
    wide[: len(x)] = x
    return wide.reshape(-1, 16).cumsum(axis=1).ravel()[: len(x)] & 0xFFFFFFFF


def barrier_relay(x: A) -> A:
    return 2 * (x[:, :, ::-1] * np.arange(1, x.shape[1] + 1)[:, None]).sum(axis=1)


def equalize(image: A) -> A:
    image = np.asarray(image, np.int64)
    below = np.bincount(image.ravel(), minlength=256).cumsum()
    first = below[image.min()]
    others = image.size - first
    if others == 0:
        return image
    return (((below - first) * 255 + others // 2) // others)[image]


def color_table(colour: A, table: A) -> A:
    v = np.clip(colour, 0, 1) * 16
    cell = np.minimum(v.astype(int), 15)
    part = v - cell
    table = table.reshape(17, 17, 17)
    result = np.zeros(len(v))
    for corner in np.ndindex(2, 2, 2):
        weight = np.where(corner, part, 1 - part).prod(axis=1)
        result += weight * table[tuple((cell + corner).T)]
    return result


def furthest_points(points: A, picks: int) -> A:
    picked = np.zeros((len(points), picks), np.int64)
    for own, places in zip(np.asarray(points, np.int64), picked, strict=True):
        distance = np.full(len(own), 2**40)
        for k in range(1, picks):
            distance = np.minimum(distance, ((own - own[places[k - 1]]) ** 2).sum(axis=1))
            places[k] = distance.argmax()
    return picked


def time_warping(a: A, b: A) -> A:
    apart = np.abs(a[:, :, None] - b[:, None, :])
    cost = np.full((len(a), a.shape[1] + 1, b.shape[1] + 1), np.inf)
    cost[:, 0, 0] = 0
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            before = np.minimum(np.minimum(cost[:, i, j], cost[:, i, j + 1]), cost[:, i + 1, j])
            cost[:, i + 1, j + 1] = apart[:, i, j] + before
    return cost[:, -1, -1]


def checkerboard(up: A, drawn: A) -> A:
    up = np.array(up, np.int64)
    colours = np.add.outer(np.arange(up.shape[0]), np.arange(up.shape[1])) % 2
    for colour in (0, 1):
        near = sum(np.roll(up, by, axis) for by in (1, -1) for axis in (0, 1))
        alike = np.where(up, near, 4 - near)
        chance = np.where(alike <= 2, 1.0, np.where(alike == 3, 0.25, 0.0625))
        up = np.where((colours == colour) & (drawn < chance), 1 - up, up)
    return up


def wkv(w: A, u: A, k: A, v: A) -> A:
    total, weight, top = np.zeros(len(w)), np.zeros(len(w)), np.full(len(w), -1e38)
    rows = []
    for key, value in zip(k, v, strict=True):
        high = np.maximum(top, u + key)
        past, now = np.exp(top - high), np.exp(u + key - high)
        rows.append((past * total + now * value) / (past * weight + now))
        high = np.maximum(top + w, key)
        past, now = np.exp(top + w - high), np.exp(key - high)
        total, weight, top = past * total + now * value, past * weight + now, high
    return np.stack(rows)


def focal_loss(x: A, target: A) -> A:
    z = np.where(np.asarray(target) == 1, x, -x)
    return np.exp(-2 * np.logaddexp(0, z)) * np.logaddexp(0, -z)


def divergence_loss(target: A, predicted: A) -> A:
    logarithm = np.log(np.where(target > 0, target, 1))
    return (target * (logarithm - predicted)).sum(axis=1)


def speculative(draft: A, wanted: A) -> A:
    kept = np.cumprod(draft == wanted[:, :8], axis=1).sum(axis=1)
    return np.where(np.arange(9) <= kept[:, None], wanted, -1)


def grouped_gemm(counts: A, x: A, w: A) -> A:
    y = np.zeros((len(x), w.shape[2]))
    first = 0
    for count, matrix in zip(np.asarray(counts, np.int64), w, strict=True):
        y[first : first + count] = x[first : first + count] @ matrix
        first += count
    return y


def q4k_blocks(d: A, dmin: A, scales: A, q: A) -> A:
    packed, q = np.asarray(scales, np.int64), np.asarray(q, np.int64).reshape(-1, 4, 32)
    lower, middle, upper = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = np.hstack([lower & 63, (upper & 15) | lower >> 6 << 4])
    least = np.hstack([middle & 63, upper >> 4 | middle >> 6 << 4])
    four = np.stack([q & 15, q >> 4], axis=2).reshape(-1, 8, 32)
    return ((d[:, None] * scale)[:, :, None] * four - (dmin[:, None] * least)[:, :, None]).reshape(
        -1, 256
    )


def determinants(a: A) -> A:
    return np.linalg.det(a)


def householder(x: A, y: A) -> A:
    v = x.copy()
    v[:, 0] += np.copysign(np.sqrt((x**2).sum(axis=1)), x[:, 0])
    square = (v**2).sum(axis=1, keepdims=True)
    along = (v * y).sum(axis=1, keepdims=True)
    return y - 2 * along / np.where(square > 0, square, 1) * v


def axis_angle(v: A) -> A:
    square = (v**2).sum(axis=1)[:, None, None]
    angle = np.sqrt(square)
    turned = np.zeros((len(v), 3, 3))
    turned[:, [2, 0, 1], [1, 2, 0]] = v
    turned[:, [1, 2, 0], [2, 0, 1]] -= v
    half = np.sinc(angle / (2 * np.pi)) ** 2 / 2
    return np.eye(3) + np.sinc(angle / np.pi) * turned + half * (turned @ turned)


def exact_sum(a: A, b: A) -> A:
    total = (a + b).astype(np.float32).astype(np.float64)
    return {"sum": total, "rest": (a - (total - (part := total - a))) + (b - part)}


def morton_codes(p: A) -> A:
    cells = np.clip(np.floor(p * 128).astype(np.int64) + 512, 0, 1023)
    code = np.zeros(len(p), np.int64)
    for bit in range(10):
        for axis in range(3):
            code |= (cells[:, axis] >> bit & 1) << 3 * bit + axis
    return code


def cholesky(g: A) -> A:
    return np.linalg.cholesky(g @ g.transpose(0, 2, 1) + 16 * np.eye(16))


def trust_ratio(w: A, step: A, rate: float) -> A:
    own = np.sqrt((w**2).sum(axis=1, keepdims=True))
    other = np.sqrt((step**2).sum(axis=1, keepdims=True))
    ratio = np.where((own > 0) & (other > 0), own / np.where(other > 0, other, 1), 1)
    return w - rate * ratio * step


def group_norm_backward(x: A, dy: A, gain: A, groups: int) -> A:
    apart = x.reshape(len(x), groups, -1)
    apart = apart - apart.mean(axis=2, keepdims=True)
    scale = 1 / np.sqrt((apart**2).mean(axis=2, keepdims=True) + np.float32(1e-3))
    g = (dy * gain[:, None]).reshape(apart.shape)
    along = (g * apart * scale).mean(axis=2, keepdims=True)
    return (scale * (g - g.mean(axis=2, keepdims=True) - apart * scale * along)).reshape(x.shape)


def row_mode(x: A) -> A:
    return np.array([np.bincount(row, minlength=16).argmax() for row in np.asarray(x, np.int64)])


def subtree_sums(x: A) -> A:
    sums = x.copy()
    for i in range(len(x) - 1, 0, -1):
        sums[(i - 1) // 2] += sums[i]
    return sums


def constant_division(x: A) -> A:
    quotient, rest = np.divmod(np.asarray(x, np.int64), 10007)
    return {"quotient": quotient, "rest": rest}


def cube_root(x: A) -> A:
    x = np.asarray(x, np.int64)
    root = np.rint(np.cbrt(x.astype(np.float64))).astype(np.int64)
    return root - (root**3 > x)


def warp_total(x: A) -> A:
    return np.where(x < 0, x**2, x).reshape(-1, 32).sum(axis=1)


def tap_filter(x: A, taps: A) -> A:
    return np.convolve(x, taps[::-1])[2:-2]


def settle(x: A) -> A:
    exponents = np.maximum(np.frexp(np.abs(x).max(axis=1))[1] - 1, 0)
    return {"y": x[:, ::-1] / np.exp2(exponents)[:, None], "turns": exponents}


def flood_fill(wall: A) -> A:
    steps = np.full(wall.shape, -1, np.int64)
    for maze, own in zip(np.asarray(wall), steps, strict=True):
        edge = [(0, 0)] if not maze[0, 0] else []
        distance = 0
        while edge:
            for place in edge:
                own[place] = distance
            distance += 1
            near = {(r + a, c + b) for r, c in edge for a, b in ((1, 0), (-1, 0), (0, 1), (0, -1))}
            inside = [place for place in near if min(place) >= 0 and max(place) < 16]
            edge = [place for place in inside if not maze[place] and own[place] < 0]
    return steps


def interpolation_search(gaps: A, wanted: A) -> A:
    return np.searchsorted(np.cumsum(np.asarray(gaps, np.int64)), np.asarray(wanted, np.int64))


def bit_reversal(x: A) -> A:
    return x[:, [int(f"{place:08b}"[::-1], 2) for place in range(256)]]


def normal_pairs(bits: A) -> A:
    whole = np.asarray(bits, np.int64)
    radius = np.sqrt(-2 * np.log((whole[:, 0] >> 9) / 2.0**23 + 2.0**-24))
    angle = (whole[:, 1] >> 8) / 2.0**23 * np.pi
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def phase_angle(re: A, im: A) -> A:
    return np.arctan2(im, re)


def equal_lanes(x: A) -> A:
    return np.array([np.unique(row).sum() for row in np.asarray(x, np.int64).reshape(-1, 32)])


def zero_tiles(x: A) -> A:
    return x * x[:, ::-1]


def sort_eight(x: A) -> A:
    return np.sort(x, axis=1)


def moe_align(expert_of: A, n: int, tile: int, capacity: int) -> dict[str, A]:
    experts = np.asarray(expert_of, np.int64)
    ordered, tiles = np.full(int(capacity), int(n)), np.full(int(capacity) // int(tile), -1)
    at = 0
    for expert in range(40):
        tokens = np.flatnonzero(experts == expert)
        ordered[at : at + tokens.size] = tokens
        end = at + -(-tokens.size // int(tile)) * int(tile)
        tiles[at // int(tile) : end // int(tile)] = expert
        at = end
    return {"sorted": ordered, "tile_expert": tiles, "total": np.array([at])}


def q5_blocks(packed: A, scale: A) -> A:
    data = np.asarray(packed, np.int64)
    bits = np.unpackbits(data[:, :4].astype(np.uint8), axis=1, bitorder="little").astype(np.int64)
    nibbles = np.concatenate([data[:, 4:] & 15, data[:, 4:] >> 4], axis=1)
    return (nibbles + 16 * bits - 16) * scale[:, None]


def block_float(x: A) -> dict[str, A]:
    values = np.asarray(x, np.int64)
    codes, shifts = np.empty_like(values), []
    for first in range(0, values.size, 48):
        block = values[first : first + 48]
        shift = max(0, int(np.abs(block).max()).bit_length() - 7)
        codes[first : first + 48] = np.clip(np.rint(block / 2.0**shift), -127, 127)
        shifts.append(shift)
    return {"code": codes, "shift": np.array(shifts)}


def stale_cache(q: A, k: A, v: A, length: A, scale: float) -> A:
    result = np.empty_like(q)
    for row, n in enumerate(np.asarray(length, np.int64)):
        scores = k[row, :n] @ q[row] * scale
        weights = np.exp(scores - scores.max())
        result[row] = weights @ v[row, :n] / weights.sum()
    return result


def token_l2(x: A, gain: A, epsilon: float) -> A:
    return x / np.sqrt((x**2).sum(axis=-1, keepdims=True) + np.float32(epsilon)) * gain


def frontier(x: A, threshold: int) -> dict[str, A]:
    values = np.asarray(x, np.int64)
    ones = np.array([bin(int(v) & 0xFFFFFFFF).count("1") + 1 for v in values])
    above = values > int(threshold)
    return {"y": np.where(above, ones, 0), "found": np.array([above.sum()])}


def resize_fixed(pixels: A, out_width: int, step: int) -> A:
    places = np.arange(int(out_width), dtype=np.int64) * int(step) >> 16
    return pixels[:, np.minimum(places, pixels.shape[1] - 1)]


def split_sum(x: A) -> A:
    values = np.asarray(x, np.int64)
    edges = np.arange(3001, dtype=np.int64) * values.size // 3000
    return np.diff(np.concatenate([[0], np.cumsum(values)])[edges])


def split_weights(upper: A, lower: A, gradient: A, rate: float) -> dict[str, A]:
    bits = np.asarray(upper, np.uint32) << 16 | np.asarray(lower, np.uint32)
    stepped = bits.view(np.float32) - np.float32(rate) * np.asarray(gradient, np.float32)
    after = stepped.astype(np.float32).view(np.uint32)
    return {"upper": after >> 16, "lower": after & 0xFFFF}


def covariance(p: A) -> A:
    apart = p - p.mean(axis=1, keepdims=True)
    return (apart[..., 0] * apart[..., 1]).sum(axis=1) / (p.shape[1] - 1)


def softcap_ce(x: A, target: A, cap: float) -> dict[str, A]:
    labels = np.asarray(target, np.int64)
    t = np.tanh(x / cap)
    powers = np.exp(cap * (t - t.max(axis=1, keepdims=True)))
    total = powers.sum(axis=1)
    counts = labels >= 0
    one_hot = labels[:, None] == np.arange(x.shape[1])
    picked = t[np.arange(len(x)), np.maximum(labels, 0)]
    loss = np.log(total) + cap * (t.max(axis=1) - picked)
    slope = (powers / total[:, None] - one_hot) * (1 - t) * (1 + t)
    return {"loss": np.where(counts, loss, 0.0), "grad": np.where(counts[:, None], slope, 0.0)}


def bicubic(picture: A, out_width: int, scale: float) -> A:
    at = (np.arange(int(out_width)) + 0.5) * np.float64(np.float32(scale)) - 0.5
    first = np.floor(at).astype(np.int64)
    result = 0.0
    for k in range(-1, 3):
        d = np.abs(at - first - k)
        near = 1.25 * d**3 - 2.25 * d**2 + 1
        far = -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
        place = np.clip(first + k, 0, picture.shape[1] - 1)
        result = result + np.where(d <= 1, near, far) * picture[:, place]
    return result


def rfft_rows(z: A) -> A:
    pairs = z[..., 0] + 1j * z[..., 1]
    real = np.fft.ifft(pairs, axis=1)
    numbers = np.stack([real.real, real.imag], axis=-1).reshape(len(z), -1)
    spectrum = np.fft.rfft(numbers, axis=1)
    return np.stack([spectrum.real, spectrum.imag], axis=-1)


def transpose_inplace(a: A) -> A:
    return np.swapaxes(a, 1, 2)


def three_stage(a: A, b: A) -> A:
    return (a * b).sum(axis=1)


def mixed_shared(x: A) -> dict[str, A]:
    return {"mean": x.mean(axis=1), "most": x.max(axis=1)}


def kmeans_bytes(x: A, centroid: A) -> dict[str, A]:
    points, means = np.asarray(x, np.int64), np.asarray(centroid, np.int64)
    distances = ((points[:, None] - means[None]) ** 2).sum(axis=2)
    return {"nearest": distances.argmin(axis=1), "distance": distances.min(axis=1)}


def distinct_keys(keys: A) -> A:
    return np.array([np.unique(row).size for row in np.asarray(keys, np.int64)])


def unpack13(words: A) -> A:
    bits = np.unpackbits(
        np.asarray(words, np.uint32).astype("<u4").view(np.uint8), bitorder="little"
    ).reshape(-1, 13)
    codes = bits.astype(np.int64) @ (1 << np.arange(13))
    return (codes ^ 4096) - 4096


def civil_date(days: A) -> A:
    dates = np.datetime64("1970-01-01") + np.asarray(days, np.int64).astype("timedelta64[D]")
    firsts = dates.astype("datetime64[M]")
    months, day = firsts.astype(np.int64), (dates - firsts).astype(np.int64)
    return np.stack([months // 12 + 1970, months % 12 + 1, day + 1], axis=1)


def round_hundreds(x: A) -> A:
    values = np.asarray(x, np.int64)
    rest = np.fmod(values, 100)
    return (values - rest) // 100 + (rest >= 50) - (rest <= -50)


def rolling_valid(x: A, there: A) -> dict[str, A]:
    bits = np.unpackbits(
        np.asarray(there, np.uint32).astype("<u4").view(np.uint8), bitorder="little"
    )[: x.size]
    present = np.concatenate([np.zeros(6), bits])
    numbers = np.concatenate([np.zeros(6), np.where(bits, x, 0.0)])
    windows = np.lib.stride_tricks.sliding_window_view
    count, total = windows(present, 7).sum(axis=1), windows(numbers, 7).sum(axis=1)
    valid = np.zeros(-(-x.size // 32) * 32, np.uint8)
    valid[: x.size] = count >= 3
    words = np.packbits(valid, bitorder="little").view("<u4")
    return {"y": np.where(count >= 3, total / np.maximum(count, 1), 0.0), "valid": words}


def count_bits(bitmap: A, first: A, last: A) -> A:
    bits = np.unpackbits(
        np.asarray(bitmap, np.uint32).astype("<u4").view(np.uint8), bitorder="little"
    )
    sums = np.concatenate([[0], np.cumsum(bits, dtype=np.int64)])
    return np.abs(sums[np.asarray(last, np.int64)] - sums[np.asarray(first, np.int64)])


def row_of_element(length: A, capacity: int) -> dict[str, A]:
    lengths = np.asarray(length, np.int64)
    row = np.full(int(capacity), -1)
    place = np.full(int(capacity), -1)
    total = int(lengths.sum())
    row[:total] = np.repeat(np.arange(lengths.size), lengths)
    place[:total] = np.concatenate([np.arange(n) for n in lengths])
    return {"row": row, "place": place}


def merge_keys(steps: A) -> dict[str, A]:
    moves = np.asarray(steps, np.int64)
    keys = np.concatenate([moves[:, :60].cumsum(axis=1), moves[:, 60:].cumsum(axis=1)], axis=1)
    order = keys.argsort(axis=1, kind="stable")
    return {"key": np.take_along_axis(keys, order, axis=1), "origin": order}


def ctc_alpha(logp: A, label: A, length: A) -> A:
    labels, lengths = np.asarray(label, np.int64), np.asarray(length, np.int64)
    losses = []
    for p, row, n in zip(logp, labels, lengths, strict=True):
        states = np.zeros(2 * n + 1, np.int64)
        states[1::2] = row[:n]
        alpha = np.full(states.size, -np.inf)
        alpha[:2] = p[0, states[:2]]
        skips = np.zeros(states.size, bool)
        skips[3::2] = states[3::2] != states[1:-2:2]
        for frame in p[1:]:
            one = np.concatenate([[-np.inf], alpha[:-1]])
            two = np.concatenate([[-np.inf] * 2, alpha[:-2]])[: states.size]
            two = np.where(skips, two, -np.inf)
            alpha = np.logaddexp(np.logaddexp(alpha, one), two) + frame[states]
        losses.append(-np.logaddexp.reduce(alpha[-2:]))
    return np.array(losses)


def delta_rule(q: A, k: A, v: A, beta: A, decay: A) -> A:
    state = np.zeros((q.shape[0], q.shape[2], q.shape[2]))
    result = np.empty_like(q)
    for s in range(q.shape[1]):
        state = state * decay[:, s, None, None]
        seen = np.einsum("hti,hi->ht", state, k[:, s])
        fresh = beta[:, s, None] * (v[:, s] - seen)
        state = state + fresh[:, :, None] * k[:, s, None, :]
        result[:, s] = np.einsum("hti,hi->ht", state, q[:, s])
    return result


def sink_attention(q: A, k: A, v: A, length: A, sink: A, scale: float) -> A:
    result = np.zeros_like(q)
    for row, n in enumerate(np.asarray(length, np.int64)):
        scores = k[row, :n] @ q[row] * scale
        most = max(sink[row], scores.max(initial=-np.inf))
        weights = np.exp(scores - most)
        result[row] = weights @ v[row, :n] / (weights.sum() + np.exp(sink[row] - most))
    return result


def awq_dequant(packed: A, zeros: A, scales: A, group: int) -> A:
    shifts = 4 * np.array([0, 4, 1, 5, 2, 6, 3, 7])
    codes = (np.asarray(packed, np.int64)[..., None] >> shifts & 15).reshape(len(packed), -1)
    points = (np.asarray(zeros, np.int64)[..., None] >> shifts & 15).reshape(len(zeros), -1)
    groups = np.arange(len(packed)) // int(group)
    return (codes - points[groups]) * scales[groups]


def prod_backward(x: A, grad: A) -> A:
    result = np.empty_like(x)
    for i in range(x.shape[1]):
        result[:, i] = grad * np.delete(x, i, axis=1).prod(axis=1)
    return result


def split_exponent(x: A) -> dict[str, A]:
    fraction, exponent = np.frexp(x)
    return {"fraction": fraction, "exponent": exponent}


def root_jump(draw: A) -> dict[str, A]:
    draws = np.asarray(draw, np.int64)
    root, depth = np.empty_like(draws), np.zeros_like(draws)
    for row in range(len(draws)):
        for t, d in enumerate(draws[row].tolist()):
            if t == 0 or d % 16 == 0:
                root[row, t] = t
            else:
                parent = d // 16 % t
                root[row, t], depth[row, t] = root[row, parent], depth[row, parent] + 1
    return {"root": root, "depth": depth}


def cell_counts(x: A) -> dict[str, A]:
    cells = np.floor(x * 2).astype(np.int64) & 15
    return {"count": np.bincount(cells, minlength=16), "cell_of": cells}


def range_histogram(x: A) -> A:
    return np.stack([np.histogram(row, bins=32, range=(0.0, 1.0))[0] for row in x])


def conv_state(ring: A, x: A, weight: A, position: A) -> dict[str, A]:
    at = np.asarray(position, np.int64)
    after, rows = ring.copy(), np.arange(len(x))
    after[rows, :, at % 4] = x
    total = np.zeros_like(x)
    for k in range(4):
        seen = (at >= k)[:, None] * after[rows, :, (at - k) % 4]
        total += weight[:, k] * seen
    return {"ring": after, "y": total}


def flip_add(a: A, view: A) -> A:
    return a + view[::-1, ::-2]


def pair_products(x: A, first: int, n: int) -> A:
    k = int(first) + np.arange(int(n), dtype=np.int64)
    i = ((np.sqrt(8.0 * k + 1) + 1) / 2).astype(np.int64)
    return x[i] * x[k - i * (i - 1) // 2]


def bottom_right(q: A, k: A, v: A, q_length: A, k_length: A, scale: float) -> A:
    result = np.zeros_like(q)
    for b, (nq, nk) in enumerate(
        zip(np.asarray(q_length, np.int64), np.asarray(k_length, np.int64), strict=True)
    ):
        for i in range(nq):
            seen = min(nk, i + 1 + nk - nq)
            if seen > 0:
                scores = k[b, :seen] @ q[b, i] * scale
                weights = np.exp(scores - scores.max())
                result[b, i] = weights @ v[b, :seen] / weights.sum()
    return result


def half_bytes(x: A) -> dict[str, A]:
    exponents = np.frexp(np.abs(x).max(axis=1))[1]
    codes = np.clip(np.rint(x * 2.0 ** (7 - exponents[:, None])), -127, 127)
    return {"code": codes, "exponent": exponents}


def base64_rows(data: A, length: A) -> A:
    result = np.zeros((len(data), 68), np.uint8)
    for row, n in enumerate(np.asarray(length, np.int64)):
        text = base64.b64encode(np.asarray(data[row][:n], np.uint8).tobytes())
        result[row, : len(text)] = np.frombuffer(text, np.uint8)
    return result


def murmur_rows(data: A, length: A, seed: int) -> A:
    def rotated(v: int, by: int) -> int:
        return (v << by | v >> (32 - by)) & 0xFFFFFFFF

    def mixed(k: int) -> int:
        return rotated(k * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF

    hashes = []
    for row, n in zip(np.asarray(data, np.uint8), np.asarray(length, np.int64), strict=True):
        key, h = row[:n].tobytes(), int(seed)
        whole = len(key) // 4 * 4
        for i in range(0, whole, 4):
            h = rotated(h ^ mixed(int.from_bytes(key[i : i + 4], "little")), 13)
            h = (h * 5 + 0xE6546B64) & 0xFFFFFFFF
        h ^= mixed(int.from_bytes(key[whole:], "little")) ^ len(key)
        h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
        h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
        hashes.append(h ^ h >> 16)
    return np.array(hashes)


def utf8_prefix(data: A, length: A, k: int) -> dict[str, A]:
    characters, prefix = [], []
    for row, n in zip(np.asarray(data, np.int64), np.asarray(length, np.int64), strict=True):
        begins = np.flatnonzero((row[:n] & 0xC0) != 0x80)
        characters.append(begins.size)
        prefix.append(begins[int(k)] if begins.size > int(k) else n)
    return {"characters": np.array(characters), "prefix": np.array(prefix)}


def varint_sizes(x: A) -> dict[str, A]:
    values = np.asarray(x, np.int64)
    zigzag = (values.view(np.uint64) << np.uint64(1)) ^ (values >> 63).view(np.uint64)
    sizes = sum((zigzag >> np.uint64(7 * k) > 0).astype(np.int64) for k in range(1, 10)) + 1
    ends = sizes.cumsum(axis=1)
    return {"begin": ends - sizes, "total": ends[:, -1]}


def rotate_rows(x: A, by: A) -> A:
    return np.stack([np.roll(row, int(n)) for row, n in zip(x, by, strict=True)])


def top_two(x: A) -> A:
    return np.sort(x, axis=1)[:, :-3:-1]


def haar_rows(x: A) -> A:
    result, n = x.copy(), x.shape[1]
    while n > 1:
        a, b = result[:, : n // 2 * 2 : 2].copy(), result[:, 1:n:2].copy()
        rest = result[:, n - 1 : n].copy() if n % 2 else result[:, :0]
        result[:, :n] = np.concatenate([(a + b) / 2**0.5, rest, (a - b) / 2**0.5], axis=1)
        n = (n + 1) // 2
    return result


def swizzle_tile(x: A) -> A:
    return x.T


def split_barrier(x: A, extra: A, rounds: int) -> A:
    own, more = x, 0.0
    for r in range(int(rounds)):
        padded = np.pad(own, ((0, 0), (1, 1)), mode="edge")
        own = 0.5 * own + 0.25 * (padded[:, :-2] + padded[:, 2:])
        more = 0.5 * more + extra[:, r]
    return own + more


def two_of_four(x: A) -> dict[str, A]:
    fours = x.reshape(-1, 4)
    order = np.sort(np.argsort(-np.abs(fours), axis=1, kind="stable")[:, :2], axis=1)
    words = np.zeros(-(-len(fours) // 8) * 8, np.int64)
    words[: len(fours)] = order[:, 0] | order[:, 1] << 2
    places = (words.reshape(-1, 8) << 4 * np.arange(8)).sum(axis=1)
    return {"kept": np.take_along_axis(fours, order, axis=1).ravel(), "places": places}


def partial_rope(x: A, position: A, cosines: A, sines: A, rotated: int) -> A:
    half, result = int(rotated) // 2, x.copy()
    c, s = cosines[position][:, None], sines[position][:, None]
    result[..., :half] = x[..., :half] * c - x[..., half : 2 * half] * s
    result[..., half : 2 * half] = x[..., half : 2 * half] * c + x[..., :half] * s
    return result


def tree_softmax(score: A, ancestors: A, context: int, drafts: int) -> A:
    rows, own = np.arange(len(score)), np.arange(int(drafts))
    seen = ancestors.astype(np.int64)[:, None] >> own & 1 | (rows[:, None] % int(drafts) == own)
    masked = score.copy()
    masked[:, int(context) :][seen == 0] = -np.inf
    return softmax(masked)


def vector_scan(x: A) -> A:
    return (np.cumsum(x, axis=1, dtype=np.int64) - x) % 2**32


def odd_even_sort(x: A) -> A:
    return np.sort(x, axis=1)


def joint_histogram(a: A, b: A) -> A:
    return np.bincount(a.astype(np.int64) * 16 + b, minlength=256)


def sell_spmv(width: A, column: A, value: A, x: A, rows: int) -> A:
    result, first = np.zeros(len(width) * 32), 0
    for s, w in enumerate(width):
        own = slice(first, first + int(w))
        result[s * 32 : s * 32 + 32] = (value[own] * x[column[own]]).sum(axis=0)
        first += int(w)
    return result[: int(rows)]


def same_conv(x: A, w: A) -> A:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 2), (2, 2)))
    result = np.zeros((len(x), 4, 7, 8))
    for r in range(4):
        for s in range(3):
            seen = padded[:, :, r : r + 13 : 2, 2 * s : 2 * s + 15 : 2]
            for o in range(4):
                own = seen[:, o // 2 * 3 : o // 2 * 3 + 3]
                result[:, o] += np.einsum("bcyx,c->byx", own, w[o, :, r, s])
    return result


def vec_norm(x: A) -> A:
    return np.sqrt((x * x).sum(axis=1))


def tile_center(x: A) -> A:
    return np.concatenate([x[i : i + 16] - x[i : i + 16].mean() for i in range(0, len(x), 16)])


def gather_async(table: A, index: A, weight: A) -> A:
    return (table[index] * weight[..., None]).sum(axis=1)


def cell_hash(cell: A, nx: int, ny: int, slots: int) -> A:
    x, y, z = cell.astype(np.int64).T
    return ((z * int(ny) + y) * int(nx) + x) % int(slots)


def padded_transpose(x: A, y: A) -> A:
    return np.concatenate([x.transpose(0, 2, 1), y[:, :, x.shape[1] :]], axis=2)


def roll_inplace(x: A, by: A) -> A:
    return rotate_rows(x, by)


def cas_product(x: A, key: A) -> A:
    return np.array([x[key == k].prod() for k in range(7)])


def row_span(x: A) -> A:
    return np.array([x.max() - x.min()])


def radix_select(x: A, k: int) -> A:
    return np.sort(x, axis=1)[:, -int(k)]


def welford_merge(x: A) -> dict[str, A]:
    return {"mean": x.mean(axis=1), "variance": x.var(axis=1)}


def and_or_rows(x: A) -> dict[str, A]:
    return {"all": np.bitwise_and.reduce(x, axis=1), "any": np.bitwise_or.reduce(x, axis=1)}


def fp4_pack(x: A) -> A:
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    borders, a = (values[1:] + values[:-1]) / 2, np.abs(x)[:, None]
    above = np.where(np.arange(7) % 2, a >= borders, a > borders)
    codes = np.append(above.sum(axis=1) + 8 * np.signbit(x), 0)
    return codes[::2] + 16 * codes[1::2]


def argmin_atomic(x: A) -> A:
    return np.array([np.argmin(x)])


def lstm_cell(gate: A, bias: A, c: A) -> dict[str, A]:
    i, f, g, o = (gate + bias).transpose(1, 0, 2)
    new = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
    return {"c": new, "h": np.tanh(new) / (1 + np.exp(-o))}


def packed_shift(x: A, share: A, length: A) -> A:
    result, first = np.zeros_like(x), 0
    for n in length:
        own = x[first : first + int(n)]
        before = np.concatenate([np.zeros_like(x[:1]), own])[: len(own)]
        result[first : first + int(n)] = share * own + (1 - share) * before
        first += int(n)
    return result


def edge_softmax(x: A, to: A, nodes: int) -> A:
    most = np.full(int(nodes), -np.inf)
    np.maximum.at(most, to, x)
    powers = np.exp(x - most[to])
    return powers / np.bincount(to, powers, int(nodes))[to]


def affine_scan(a: A, b: A, seed: int) -> A:
    state, result = np.full(len(a), int(seed), np.uint64), np.zeros(a.shape, np.uint64)
    for t in range(a.shape[1]):
        state = (a[:, t].astype(np.uint64) * state + b[:, t].astype(np.uint64)) & np.uint64(
            2**32 - 1
        )
        result[:, t] = state
    return result


def xnor_gemm(a: A, b: A, bits: int) -> A:
    signs = [
        1 - 2 * (words.astype(np.int64)[:, :, None] >> np.arange(32) & 1).reshape(len(words), -1)
        for words in (a, b)
    ]
    return signs[0][:, : int(bits)] @ signs[1][:, : int(bits)].T


def middle_mean(x: A) -> A:
    return x.mean(axis=1)


def named_barrier(x: A, rounds: int) -> A:
    result = x.copy()
    for half in range(2):
        own = x[half::2]
        for _ in range(int(rounds) - half):
            last, own = own, 0.5 * own + 0.5 * own[:, ::-1]
        result[half::2] = own + last[:, np.arange(64) ^ 1]
    return result


def half2_rows(x: A, scale: A) -> A:
    return x * scale[:, None]


def split_gemv(a: A, x: A, y: A, alpha: float, beta: float) -> A:
    return alpha * (a @ x) + beta * y
