"""The seeds of a verification: fixed ones, and one that nobody could know in advance."""

from __future__ import annotations

import contextlib
import hashlib
import math
import operator
import re
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from pytest_gpuenergy.engine.references import FORMAT, Drawing, forget_reference
from pytest_gpuenergy.kernels import AnyKernel, Kernel
from pytest_gpuenergy.support import FormError, cache_dir, decode, encode, keep_for_later
from pytest_gpuenergy.workloads import UNIFORM, UNIFORM_FLOATS, Workload, is_floating

SEEDS = (0, 1)
"""Of ordinary inputs, and of negative ones with edges."""
LARGEST_SEED = (1 << 32) - 1
_SMALL_ELEMENTS, _SMALL_FLOPS = 1 << 17, 1 << 26
"""Limits of a small workload, whose run and reference take the host milliseconds."""
_MOST_SPARSE, _SLICES = 64, 256
"""The most sparse drawings, and the slices of different kinds and places in all of them."""
_FEW_OUTPUTS = 64
_SPARSE_ELEMENTS = 1 << 22
"""In all sparse drawings of a workload that is not small, unless there are two."""
_MOST_LITERALS = 64
_USUAL = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0}
"""Numbers that ordinary drawings contain anyway."""
_NUMBER = re.compile(
    r"""(?<![\w.])(?:
        0[xX](?P<hexadecimal>[0-9a-fA-F]+)
        |(?P<digits>[0-9]+)(?![\w.])|(?P<suffixed>[0-9]+)[uUlL]{1,3}(?![\w.])
        |(?P<floating>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFlLhH]?(?![\w.])
    )""",
    re.VERBOSE | re.ASCII,
)
_DEFINED = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(?P<macro>\w+)[ \t]+(?P<body>[^\n]+)$"
    r"|\bconst(?:expr)?\b[\w \t:*&]*?\b(?P<name>\w+)[ \t]*=(?P<value>[^;,{}\n]+)[;,]",
    re.MULTILINE | re.ASCII,
)
_DIGITS = (
    r"(?:0[xX][0-9a-fA-F]+|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFlLuUhH]{0,3}"
)
_PRODUCT = re.compile(
    rf"(?<![\w./%])(?<![/%]\s)({_DIGITS})\s*([*/])\s*({_DIGITS})(?![\w.(\[])", re.ASCII
)
_SUM = re.compile(
    rf"(?<![\w.*/%-])(?<![*/%-]\s)({_DIGITS})\s*([+-]|<<)\s*({_DIGITS})(?![\w.(\[]|\s*[*/%])",
    re.ASCII,
)
_NAME = re.compile(r"\b[A-Za-z_]\w*\b", re.ASCII)
_ALONE = re.compile(
    rf"(?<!\w)\(\s*(?:(?:float|double|int|unsigned|long|size_t)\s*\)\s*)?({_DIGITS})\s*\)"
)
_MOST_FOLDS, _LONGEST_FOLDED, _MOST_BITS = 8, 50_000, 63
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


class _Drawn(Struct, frozen=True):
    """A file in the cache folder ``seeds``."""

    day: str
    seed: int


def drawings_of(
    seeds: Sequence[int], workload: Workload | None = None, kernel: AnyKernel | None = None
) -> list[Drawing]:
    """Return what a kernel is verified on.

    Inputs are ordinary for the first seed, and have edges, of both signs in turn, for the others.
    If there are more than `SEEDS`, sparse drawings of the last seed come before its own, and
    uniform ones if the workload is small.

    Args:
        seeds: of the inputs.
        workload: what the kernel computes; without it there are no sparse drawings.
        kernel: the one to verify; without it no inputs are near numbers in its text.
    """
    literals = () if kernel is None or workload is None else _literals(kernel, workload)
    drawings = [
        Drawing(seed, -1 if turn % 2 else 1, literals=literals) if turn else Drawing(seed)
        for turn, seed in enumerate(seeds)
    ]
    if workload is None or len(seeds) <= len(SEEDS):
        return drawings
    count = _sparse_drawings(workload)
    more = [Drawing(seeds[-1], sparse=number) for number in range(1, count + 1)]
    if count and _is_small(workload):
        floating = all(is_floating(tensor.dtype) for tensor in workload.inputs)
        numbers = UNIFORM_FLOATS if floating else UNIFORM
        more += [Drawing(seeds[-1], uniform=number, literals=literals) for number in numbers]
    return [*drawings[:-1], *more, drawings[-1]]


def _is_small(workload: Workload) -> bool:
    elements = sum(tensor.size for tensor in workload.tensors)
    return elements <= _SMALL_ELEMENTS and workload.flops <= _SMALL_FLOPS


def _sparse_drawings(workload: Workload) -> int:
    """How many sparse drawings it takes for every part of the inputs to decide an output.

    A small workload has one for each axis at least. If an output depends on many inputs and there
    are few outputs, it has more, so that extremes are at many places. So has one that is not small,
    up to a number of elements; in others the mixtures have slices enough.
    """
    mine = type(workload)
    if not workload.inputs or (
        mine.make_inputs is not Workload.make_inputs
        and mine.draw_inputs is Workload.draw_inputs  # which leaves everything to the former
    ):
        return 0
    elements = sum(tensor.size for tensor in workload.tensors)
    outputs = max(tensor.size for tensor in workload.outputs)
    largest = max(tensor.size for tensor in workload.inputs)
    count = min(_MOST_SPARSE, math.ceil(_SLICES / outputs), largest // outputs)
    if _is_small(workload):
        axes = max(len(tensor.shape) for tensor in workload.inputs)
        return max(count, axes, 1)
    if outputs <= _FEW_OUTPUTS:
        return min(count, max(2, _SPARSE_ELEMENTS // elements))
    return 0


def _literals(kernel: AnyKernel, workload: Workload) -> tuple[float, ...]:
    """Return the numbers in a kernel's text that its inputs may be compared with.

    All that computes indices is among the integers; they count as floating-point values of small
    workloads only, which can afford a reference for each kernel.
    """
    text = getattr(kernel, "source", "")
    if isinstance(kernel, Kernel):
        text = "\n".join([text, *(launch.entry for launch in kernel.launches)])
    found: dict[float, None] = {}
    wholes = _is_small(workload) or not all(is_floating(tensor.dtype) for tensor in workload.inputs)
    text = _COMMENT.sub(" ", text)
    for match in _NUMBER.finditer(f"{text} {_computed(text, workload)}"):
        if match["floating"] is not None:
            found[float(match["floating"])] = None
        elif wholes:
            digits = match["digits"] or match["suffixed"]
            found[float(int(match["hexadecimal"], 16) if digits is None else int(digits))] = None
    for scalar in workload.scalars:
        if wholes or isinstance(scalar.value, float):
            found[abs(float(scalar.value))] = None
    telling = [value for value in found if value not in _USUAL and value < 2.0**64]
    telling.sort(key=lambda value: value.is_integer())  # fractions are no indices
    return tuple(sorted(telling[:_MOST_LITERALS]))


def _computed(text: str, workload: Workload) -> str:
    """Return the numbers that a text computes from numbers, its constants and the scalars by name.

    They are thresholds as well, such as ``1 << 12``, ``2 * LIMIT`` or ``3.0f * scale``.
    """
    if len(text) > _LONGEST_FOLDED:
        return ""
    values = {scalar.name: repr(scalar.rounded) for scalar in workload.scalars}
    for match in _DEFINED.finditer(text):
        name, value = match["macro"] or match["name"], match["body"] or match["value"]
        values.setdefault(name, f"({value.strip()})")
    found: dict[str, None] = {}

    def fold(match: re.Match[str]) -> str:
        with contextlib.suppress(ArithmeticError, ValueError):  # of thousands of digits, too
            left, right = (_number(digits) for digits in match.group(1, 3))
            operation = _OPERATIONS[match[2]]
            if isinstance(left, int) and isinstance(right, int) and match[2] == "/":
                operation = operator.floordiv
            found[result := repr(abs(operation(left, right)))] = None
            return result
        return match[0]

    for _ in range(_MOST_FOLDS):
        before = text
        text = _NAME.sub(lambda word: values.get(word[0], word[0]), text)
        text = _ALONE.sub(r" \1 ", text)
        text = _SUM.sub(fold, _PRODUCT.sub(fold, text))
        if text == before or len(text) > _LONGEST_FOLDED:
            break
    return " ".join(found)


def _number(digits: str) -> int | float:
    """Return the value of a number of C++."""
    plain = digits.rstrip("uUlL")
    if plain[:2] in ("0x", "0X"):
        return int(plain, 16)
    return int(plain) if plain.isdecimal() else float(plain.rstrip("fFhHlL"))


def _shifted(value: int, bits: int) -> int:
    if bits > _MOST_BITS:
        raise OverflowError
    return value << bits


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "*": operator.mul,
    "/": operator.truediv,
    "+": operator.add,
    "-": operator.sub,
    "<<": _shifted,
}


def drawn_seed(workload: Workload) -> int:
    """A random seed, in addition to `SEEDS`, so that no kernel can be made for all of them.

    All kernels of a workload share it for a day (UTC) on this machine, and with it their reference;
    a workload that has no digest gets another one each time.
    """
    if workload.digest is None:
        return _draw()
    today = datetime.now(UTC).date().isoformat()
    name = hashlib.sha256(f"{FORMAT} {workload.digest}".encode()).hexdigest()
    path = cache_dir("seeds") / f"{name}.json"
    known = _read(path)
    if known is not None and known.day == today:
        return known.seed
    if known is not None:
        forget_reference(workload, drawings_of((*SEEDS, known.seed))[-1])
    keep_for_later(path, encode(_Drawn(today, _draw())))
    known = _read(path)  # another process may have been faster
    return _draw() if known is None else known.seed


def _draw() -> int:
    return len(SEEDS) + secrets.randbelow(LARGEST_SEED - len(SEEDS))


def _read(path: Path) -> _Drawn | None:
    try:
        known = decode(path.read_bytes(), _Drawn)
    except (OSError, FormError):
        return None
    return known if len(SEEDS) <= known.seed <= LARGEST_SEED else None
