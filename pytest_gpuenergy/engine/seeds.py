"""Chooses the inputs of a verification: fixed seeds, and one that cannot be known in advance."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import operator
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from pytest_gpuenergy.devices import Threshold
from pytest_gpuenergy.engine.references import FORMAT, Drawing, forget_reference, is_large
from pytest_gpuenergy.kernels import AnyKernel, Kernel, without_comments
from pytest_gpuenergy.support import FormError, cache_dir, decode, encode, keep_for_later
from pytest_gpuenergy.workloads import (
    UNIFORM,
    UNIFORM_FLOATS,
    Workload,
    is_floating,
    stored_as,
)

SEEDS = (0, 1)
"""The fixed seeds: of ordinary inputs, and of negative ones with edges."""

MAX_SEED = (1 << 32) - 1

_SMALL_ELEMENTS, _SMALL_FLOPS = 1 << 17, 1 << 26
"""The limits of a small workload, whose run and reference take the host milliseconds."""

_MAX_SPARSE, _MIN_SLICES = 64, 256
"""The most sparse drawings, and the fewest slices of different kinds and places in all of them."""

_MAX_OUTPUTS = 64
"""The most outputs for which a workload that is not small has sparse drawings."""

_MAX_SPARSE_ELEMENTS = 1 << 22
"""The most elements in all sparse drawings of such a workload, if it has more than two."""

_MAX_LITERALS = 64
"""The most numbers of a kernel's text near which inputs are drawn."""

_REMEMBERED_TEXTS = 16
"""The number of texts whose numbers are kept, since a verification asks for them repeatedly."""

_USUAL = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0}
"""Numbers that ordinary drawings contain anyway."""

# Parts of the text of a CUDA or Triton kernel: numbers, constants, and operations on numbers.
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
_MAX_FOLDS, _MAX_FOLDED_CHARACTERS, _MAX_SHIFT_BITS = 8, 50_000, 63
"""Limits of computing constants: rounds, characters of the text, and bits of a shift."""


class _Drawn(Struct, frozen=True):
    """The random seed of a day: a file in the cache folder ``seeds``."""

    day: str
    seed: int


def drawings_of(
    seeds: Sequence[int], workload: Workload | None = None, kernel: AnyKernel | None = None
) -> list[Drawing]:
    """Return the drawings of inputs that a kernel is verified on.

    Inputs are ordinary for the first seed, and have edges, of both signs in turn, for the others.
    If there are more seeds than in `SEEDS`, sparse drawings of the last seed come before its own
    drawing, and uniform ones if the workload is small.

    Args:
        seeds: the seeds of the inputs.
        workload: what the kernel computes; without it there are no sparse drawings.
        kernel: the kernel to verify; without it no inputs are drawn near numbers in its text.
    """
    literals: tuple[float, ...] = ()  # only the drawings after the first one need them
    if kernel is not None and workload is not None and len(seeds) > 1:
        literals = _literals(kernel, workload)
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
        more += [
            Drawing(seeds[-1], 1 if number == 9 else 0, uniform=number, literals=literals)
            for number in numbers
        ]
    return [*drawings[:-1], *more, drawings[-1]]


def drawings_near(
    thresholds: Collection[Threshold], drawings: Sequence[Drawing], workload: Workload
) -> list[Drawing]:
    """Return further drawings with inputs near what a kernel has compared with.

    Its text need not contain these numbers: they may be computed, or come from a table. There are
    no further drawings if the text did contain them, or if the reference of a large workload would
    have to be computed again.

    Args:
        thresholds: what the kernel has compared with.
        drawings: those that it was verified on, see `drawings_of`.
        workload: what it computes.
    """
    if len(drawings) <= len(SEEDS) or is_large(workload):
        return []
    kinds = {is_floating(tensor.dtype) for tensor in workload.inputs}
    known = np.array([*drawings[-1].literals, *_USUAL])
    new = [
        size
        for size in dict.fromkeys(abs(each.value) for each in thresholds if each.real in kinds)
        if size < 2.0**64 and not np.isclose(size, known, rtol=1e-6, atol=0).any()
    ]
    if not new:
        return []
    literals = tuple(sorted(new[:_MAX_LITERALS]))
    return [Drawing(drawings[-1].seed, sign, literals=literals) for sign in (1, -1)]


def drawings_deciding(
    unread: Mapping[str, Sequence[tuple[int, int]]],
    drawings: Sequence[Drawing],
    workload: Workload,
) -> list[Drawing]:
    """Return further drawings, in which what a kernel has not read has the extremes of its input.

    A kernel whose outputs select, such as a maximum, may leave out a part of its input, and is
    right as long as no extreme lies there. There are no further drawings if the kernel has read
    everything, or if the reference of a large workload would have to be computed again.

    Args:
        unread: ranges of bytes, by input, see `Loaded.unread`.
        drawings: those that it was verified on, see `drawings_of`.
        workload: what it computes.
    """
    if len(drawings) <= len(SEEDS) or is_large(workload) or not _draws_each_element(workload):
        return []
    deciding = []
    for tensor in workload.inputs:
        size = stored_as(tensor.dtype).itemsize
        inside = [(-(-begin // size), end // size) for begin, end in unread.get(tensor.name, ())]
        if places := tuple(each for each in inside if each[0] < each[1]):
            deciding.append((tensor.name, places))
    if not deciding:
        return []
    return [Drawing(drawings[0].seed, sign, deciding=tuple(deciding)) for sign in (1, -1)]


def _draws_each_element(workload: Workload) -> bool:
    """Return whether single elements may be drawn anew, because the kind of workload allows it.

    A kind with a `make_inputs` of its own, and without `draw_inputs`, makes each input as a whole.
    """
    kind = type(workload)
    return bool(workload.inputs) and (
        kind.make_inputs is Workload.make_inputs or kind.draw_inputs is not Workload.draw_inputs
    )


def _is_small(workload: Workload) -> bool:
    elements = sum(tensor.size for tensor in workload.tensors)
    return elements <= _SMALL_ELEMENTS and workload.flops <= _SMALL_FLOPS


def _sparse_drawings(workload: Workload) -> int:
    """Return how many sparse drawings it takes until each part of the inputs decides an output.

    A small workload has at least one per axis. If it has few outputs, each of which depends on many
    inputs, it has more, so that extremes are in many places. So does a workload that is not small,
    up to a number of elements. Other workloads need none: the mixtures have enough slices.
    """
    if not _draws_each_element(workload):
        return 0
    elements = sum(tensor.size for tensor in workload.tensors)
    outputs = max(tensor.size for tensor in workload.outputs)
    largest = max(tensor.size for tensor in workload.inputs)
    count = min(_MAX_SPARSE, math.ceil(_MIN_SLICES / outputs), largest // outputs)
    if _is_small(workload):
        axes = max(len(tensor.shape) for tensor in workload.inputs)
        return max(count, axes, 1)
    if outputs <= _MAX_OUTPUTS:
        return min(count, max(2, _MAX_SPARSE_ELEMENTS // elements))
    return 0


def _literals(kernel: AnyKernel, workload: Workload) -> tuple[float, ...]:
    """Return the numbers in a kernel's text that it may compare its inputs with.

    Most integers only compute indices. Therefore they count as floating-point values in small
    workloads only, where a reference for each kernel is affordable.
    """
    text = getattr(kernel, "source", "")
    if isinstance(kernel, Kernel):
        text = "\n".join([text, *(launch.entry for launch in kernel.launches)])
    wholes = _is_small(workload) or not all(is_floating(tensor.dtype) for tensor in workload.inputs)
    scalars = tuple((scalar.name, repr(scalar.rounded)) for scalar in workload.scalars)
    values = tuple(
        abs(float(scalar.value))
        for scalar in workload.scalars
        if wholes or isinstance(scalar.value, float)
    )
    return _literals_of(text, scalars, values, wholes=wholes)


@functools.lru_cache(maxsize=_REMEMBERED_TEXTS)
def _literals_of(
    text: str, scalars: tuple[tuple[str, str], ...], values: tuple[float, ...], *, wholes: bool
) -> tuple[float, ...]:
    """Return the numbers in a text and ``values``; scalars have a name and digits."""
    literals: dict[float, None] = {}
    text = without_comments(text)
    for match in _NUMBER.finditer(f"{text} {_computed(text, scalars)}"):
        if match["floating"] is not None:
            literals[float(match["floating"])] = None
        elif wholes:
            digits = match["digits"] or match["suffixed"]
            literals[float(int(match["hexadecimal"], 16) if digits is None else int(digits))] = None
    literals |= dict.fromkeys(values)
    unusual = [value for value in literals if value not in _USUAL and value < 2.0**64]
    unusual.sort(key=lambda value: value.is_integer())  # fractions first: they are no indices
    return tuple(sorted(unusual[:_MAX_LITERALS]))


def _computed(text: str, scalars: Sequence[tuple[str, str]]) -> str:
    """Return the numbers that a text computes from numbers, constants and the workload's scalars.

    They can be thresholds as well, such as ``1 << 12``, ``2 * LIMIT`` or ``3.0f * scale``.
    """
    if len(text) > _MAX_FOLDED_CHARACTERS:
        return ""
    values = dict(scalars)
    for match in _DEFINED.finditer(text):
        name, value = match["macro"] or match["name"], match["body"] or match["value"]
        values.setdefault(name, f"({value.strip()})")
    results: dict[str, None] = {}

    def fold(match: re.Match[str]) -> str:
        with contextlib.suppress(ArithmeticError, ValueError):  # such as for thousands of digits
            left, right = (_number(digits) for digits in match.group(1, 3))
            operation = _OPERATIONS[match[2]]
            if match[2] == "<<" and right > _MAX_SHIFT_BITS:
                return match[0]
            if isinstance(left, int) and isinstance(right, int) and match[2] == "/":
                operation = operator.floordiv
            results[result := repr(abs(operation(left, right)))] = None
            return result
        return match[0]

    for _ in range(_MAX_FOLDS):
        before = text
        text = _NAME.sub(lambda word: values.get(word[0], word[0]), text)
        text = _ALONE.sub(r" \1 ", text)
        text = _SUM.sub(fold, _PRODUCT.sub(fold, text))
        if text == before or len(text) > _MAX_FOLDED_CHARACTERS:
            break
    return " ".join(results)


def _number(digits: str) -> int | float:
    """Return the value of a C++ literal."""
    plain = digits.rstrip("uUlL")
    if plain[:2] in ("0x", "0X"):
        return int(plain, 16)
    return int(plain) if plain.isdecimal() else float(plain.rstrip("fFhHlL"))


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "*": operator.mul,
    "/": operator.truediv,
    "+": operator.add,
    "-": operator.sub,
    "<<": operator.lshift,
}


def drawn_seed(workload: Workload) -> int:
    """Return a random seed, so that no kernel can be written for all seeds of a verification.

    All kernels of a workload share it for a day (UTC) on this machine, so that they share their
    reference. A workload without a digest gets another seed each time.
    """
    if workload.digest is None:
        return _draw()
    today = datetime.now(UTC).date().isoformat()
    name = hashlib.sha256(f"{FORMAT} {workload.digest}".encode()).hexdigest()
    path = cache_dir("seeds") / f"{name}.json"
    drawn = _read(path)
    if drawn is not None and drawn.day == today:
        return drawn.seed
    if drawn is not None:
        forget_reference(workload, drawings_of((*SEEDS, drawn.seed))[-1])
    keep_for_later(path, encode(_Drawn(today, _draw())))
    drawn = _read(path)  # another process may have been faster
    return _draw() if drawn is None else drawn.seed


def _draw() -> int:
    return len(SEEDS) + secrets.randbelow(MAX_SEED - len(SEEDS))


def _read(path: Path) -> _Drawn | None:
    try:
        drawn = decode(path.read_bytes(), _Drawn)
    except (OSError, FormError):
        return None
    return drawn if len(SEEDS) <= drawn.seed <= MAX_SEED else None
