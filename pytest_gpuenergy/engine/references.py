"""Makes the inputs and references of workloads, once for all kernels of a case.

Those of large workloads are computed in the device's memory if possible, see `is_large`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Literal
from weakref import WeakValueDictionary

import numpy as np

from pytest_gpuenergy.devices import Arrays, DeviceArrays, HostArrays
from pytest_gpuenergy.engine.comparison import Reference
from pytest_gpuenergy.support import cache_dir, ended_by_signals, enough_memory, keep_for_later
from pytest_gpuenergy.workloads import (
    REACHES,
    Array,
    Condition,
    Edges,
    IoContract,
    Values,
    Workload,
    estimate_conditions,
    estimate_scales,
    estimate_terms,
    fits,
    is_floating,
    largest,
    least,
    numbers,
    repeated,
    unit_roundoff,
)

FORMAT = 13
"""The version of cached references, to be increased when their values change."""

_SCALE, _OWN, _REACH = "scale:", "own:", "reach:"
"""Prefixes of the names of further arrays in an archive."""

_ORDINARY = len(REACHES)
"""The number that stands for ordinary inputs, after those of the `REACHES`."""

_REMEMBERED_INPUTS = 12
"""The number of inputs kept in memory: those of the three seeds and the exact twin of the present
workload, of the next one (see `draw_ahead`), and of the one before, which may still be in use."""

_REMEMBERED_BYTES = 1 << 29
"""The part of the devices' memory, and of the host's, that remembered references may take."""

_DOUBLE = 8  # bytes
_LARGE_ELEMENTS = 1 << 22
_LARGE_FLOPS = 10_000_000_000
"""The operations in double precision that a few cores do in a second."""


@dataclass(frozen=True)
class Drawing:
    """The choice of the inputs to draw.

    Attributes:
        seed: the seed of the generator.
        sign: -1 or 1 for a mixture of ordinary and extreme inputs, see `Edges`; otherwise 0.
        sparse: the number of a sparse drawing, see `Edges`; otherwise 0.
        uniform: the number of a uniform drawing, see `Edges`; otherwise 0.
        literals: numbers near which some inputs are drawn, unless the drawing is ordinary.
        deciding: ranges of flat places, by input, that have its greatest values if the sign is 1,
            and its least if it is -1; all else is as in the ordinary inputs.
    """

    seed: int
    sign: Literal[-1, 0, 1] = 0
    sparse: int = 0
    uniform: int = 0
    literals: tuple[float, ...] = ()
    deciding: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = ()

    @property
    def is_shared(self) -> bool:
        """Whether all kernels of a workload share the drawing."""
        return not (self.sparse or self.uniform or self.literals or self.deciding)


@dataclass(frozen=True)
class Case:
    """Inputs with the correct outputs; see `Workload.draw_inputs`."""

    inputs: Mapping[str, Array]
    reference: Reference


def is_large(workload: Workload | IoContract) -> bool:
    """Return whether the host takes longer to compute the reference than a GPU takes to start."""
    elements = sum(tensor.size for tensor in workload.tensors)
    return elements >= _LARGE_ELEMENTS or workload.flops >= _LARGE_FLOPS


def case_of(workload: Workload, drawing: Drawing, arrays: DeviceArrays | None = None) -> Case:
    """Return the inputs of a drawing and their reference, which is cached by workload digest.

    If the reference of inputs with edges is not finite, or exceeds the outputs' types, the inputs
    are made less extreme; in the end they are ordinary.

    Args:
        workload: what is computed.
        drawing: which inputs to draw.
        arrays: the device that computes and keeps the reference of a large workload if it can; the
            latest of these are remembered in its memory.
    """
    if arrays is not None and is_large(workload):

        def made_there() -> Case:
            with arrays.used():
                case, _ = _made(workload, drawing, arrays)
            if any(isinstance(value, np.ndarray) for value in case.reference.values()):
                raise TypeError("the reference is on the host")
            return case

        # A user's function may not support device arrays, or memory may be short.
        with contextlib.suppress(Exception):
            if workload.digest is None:
                return made_there()
            return _ON_DEVICES.kept((workload.digest, drawing, id(arrays)), made_there)
    if workload.digest is None:
        return _made(workload, drawing)[0]
    return _ON_HOST.kept((workload.digest, drawing), lambda: _made_or_read(workload, drawing))


def _made_or_read(workload: Workload, drawing: Drawing) -> Case:
    if not drawing.is_shared:  # by some kernels at most, so that it is not worth a file
        return _made(workload, drawing)[0]
    path = _path(workload, drawing)
    if (cached := _load(path, workload, drawing)) is not None:
        return cached
    case, reach = _made(workload, drawing)
    archive = io.BytesIO()
    np.savez(archive, allow_pickle=False, **_to_archive(case.reference, reach))
    keep_for_later(path, archive.getvalue())
    return case


def cached_reference(
    workload: Workload, seed: int, arrays: DeviceArrays | None = None
) -> Reference:
    """Return the reference for the ordinary inputs of ``seed``, see `case_of`."""
    return case_of(workload, Drawing(seed), arrays).reference


class _Locks:
    """Locks by key, each of which exists as long as a thread holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[Hashable, Lock] = WeakValueDictionary()
        self._lock = Lock()

    def of(self, key: Hashable) -> Lock:
        """Return the lock of a key."""
        with self._lock:
            return self._locks.setdefault(key, Lock())


class _Firsts:
    """Lets one thread do the first work of each kind alone.

    CuPy compiles a function when it is first called, once in each of the threads that call it at
    the same time, and NVRTC compiles for one of them after the other.
    """

    def __init__(self) -> None:
        self._done: set[Hashable] = set()
        self._locks = _Locks()

    @contextlib.contextmanager
    def alone(self, kind: Hashable) -> Iterator[None]:
        """Do work of a kind, alone if it is the first."""
        if kind not in self._done:
            with self._locks.of(kind):
                if kind not in self._done:
                    yield
                    self._done.add(kind)
                    return
        yield


class KeptCases:
    """Keeps cases in memory, for many kernels of few workloads.

    Args:
        max_bytes: the limit of all references kept; the least recently used is dropped first.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Hashable, Case] = OrderedDict()
        self._lock = Lock()
        self._making = _Locks()

    def case_of(
        self, workload: Workload, drawing: Drawing, arrays: DeviceArrays | None = None
    ) -> Case:
        """Return what `case_of` does; workloads with the same name must be the same."""
        return self.kept((workload.name, drawing), lambda: case_of(workload, drawing, arrays))

    def kept(self, key: Hashable, make: Callable[[], Case]) -> Case:
        """Return the case of a key, which one thread makes if it is not kept; others wait."""
        with self._making.of(key):
            with self._lock:
                kept = self._kept.get(key)
                if kept is not None:
                    self._kept.move_to_end(key)
                    return kept
            case = make()
            with self._lock:
                self._kept[key] = case
                while len(self._kept) > 1 and self._nbytes() > self._max_bytes:
                    self._kept.popitem(last=False)
            return case

    def _nbytes(self) -> int:
        references = [case.reference for case in self._kept.values()]
        return sum(value.nbytes for reference in references for value in reference.values())


_ON_DEVICES = KeptCases(_REMEMBERED_BYTES)
"""Cases whose references are in the memory of devices, by digest, drawing and device."""
_ON_HOST = KeptCases(_REMEMBERED_BYTES)
"""The latest cases of the host, by digest and drawing: also of drawings near numbers in a kernel's
text, since the same kernel is verified again under the next power cap, and kernels of one template
share them."""
_FIRST_REFERENCES = _Firsts()
"""The kinds of workloads of which a device has computed a reference."""
_DRAWING = _Locks()
"""Locks of inputs that are being drawn, since a later item's are drawn ahead."""


def ordinary_inputs(workload: Workload, seed: int) -> Mapping[str, Array]:
    """Return the inputs of `Workload.draw_inputs`, drawn once for all kernels of a case."""
    return _inputs(workload, Drawing(seed), _ORDINARY)


def draw_ahead(workload: Workload, drawing: Drawing) -> None:
    """Draw the inputs that `case_of` will try first, so that it need not."""
    is_ordinary = drawing == Drawing(drawing.seed)
    _inputs(workload, drawing, _ORDINARY if is_ordinary else _reaches(workload)[0])


def forget_reference(workload: Workload, drawing: Drawing) -> None:
    """Remove a reference that will not be needed again from the cache."""
    with contextlib.suppress(OSError):
        _path(workload, drawing).unlink()


def _made(
    workload: Workload, drawing: Drawing, arrays: DeviceArrays | None = None
) -> tuple[Case, int]:
    """Make a case; return it with the number of its entry in `REACHES`.

    Raises:
        InputError: there is not enough memory.
    """
    if arrays is not None:
        with ended_by_signals():
            return _computed(workload, drawing, arrays)
    copies = sum(
        tensor.size * _DOUBLE if is_floating(tensor.dtype) else tensor.nbytes
        for tensor in workload.tensors
    )
    # A workload without a digest has a user's function as its reference.
    ending = ended_by_signals() if workload.digest is None else contextlib.nullcontext()
    with enough_memory(f"The reference of {workload.name}", copies), ending:
        return _computed(workload, drawing, None)


def _computed(
    workload: Workload, drawing: Drawing, arrays: DeviceArrays | None
) -> tuple[Case, int]:
    there = arrays or HostArrays()

    def first() -> contextlib.AbstractContextManager[None]:
        kind = None if arrays is None else (id(arrays), type(workload))
        return contextlib.nullcontext() if kind is None else _FIRST_REFERENCES.alone(kind)

    for reach in _reaches(workload) if drawing != Drawing(drawing.seed) else ():
        inputs = _inputs(workload, drawing, reach)
        with first(), _refusing() as overflows:
            wide = workload.widened(_whole(workload, inputs, there), there)
            values = workload.reference(workload.widened(wide))
            tiny, limits = _tiny(workload) if drawing.uniform else None, _limits(workload)
            if fits(values, limits, infinite=not overflows, tiny=tiny, arrays=there):
                scales = estimate_scales(workload.reference, wide, values, there)
                if drawing.uniform:
                    # Tiny inputs and zeros show what is added or divided by, not how results near 0
                    # are rounded: errors are relative to values near 1, as ordinary inputs give.
                    scales = {
                        name: replace(cond, scale=max(cond.scale, math.sqrt(values[name].size)))
                        for name, cond in scales.items()
                    }
                terms = _terms(workload, inputs, values, there)
                return Case(inputs, Reference(values, scales, arrays, terms)), reach
    inputs = _inputs(workload, drawing, _ORDINARY)
    with first():
        wide = workload.widened(_whole(workload, inputs, there), there)
        values = workload.reference(workload.widened(wide))
    bounds = {t.name: workload.bound_of(t) for t in workload.outputs}
    judged = {t.name: bounds[t.name] for t in workload.outputs if workload.is_judged_by_element(t)}
    conditions = estimate_conditions(workload.reference, wide, values, judged, there)
    terms = _terms(workload, inputs, values, there)
    return Case(inputs, Reference(values, conditions, arrays, terms)), _ORDINARY


def _terms(
    workload: Workload,
    inputs: Mapping[str, Array],
    right: Mapping[str, Values],
    arrays: Arrays,
) -> Callable[[float], Mapping[str, Values]]:
    """Return the function that computes `estimate_terms` for a case's outputs."""

    def compute(needed: float) -> Mapping[str, Values]:
        wide = workload.widened(_whole(workload, inputs, arrays), arrays)
        return estimate_terms(
            lambda some: workload.reference(workload.widened(some)), wide, right, needed, arrays
        )

    return compute


def _whole(workload: Workload, inputs: Mapping[str, Array], arrays: Arrays) -> Mapping[str, Array]:
    return {t.name: repeated(arrays.put(inputs[t.name]), t.shape) for t in workload.inputs}


def _reaches(workload: Workload) -> range:
    """Return the numbers of the `REACHES` that differ for this workload."""
    floating = [tensor for tensor in workload.inputs if is_floating(tensor.dtype)]
    if any(tensor.name not in workload.ranges for tensor in floating):
        return range(_ORDINARY)
    return range(3) if floating else range(0, 3, 2)


@contextlib.contextmanager
def _refusing() -> Iterator[list[str]]:
    """Suppress the errors that a reference raises for inputs outside its domain.

    Yields:
        A list to which each overflow is added; if there is one, infinities may be due to it.
    """
    overflows: list[str] = []

    def note(kind: str, _: int) -> None:
        overflows.append(kind)

    with (
        contextlib.suppress(Exception),
        np.errstate(divide="raise", invalid="raise", over="call", under="ignore", call=note),
    ):
        yield overflows


def _limits(workload: Workload) -> dict[str, tuple[float, float]]:
    """Return the range of each output's type, halved for floating-point ones to allow rounding."""
    return {
        tensor.name: (least(tensor.dtype) / part, largest(tensor.dtype) / part)
        for tensor in workload.outputs
        for part in [2 if is_floating(tensor.dtype) else 1]
    }


def _tiny(workload: Workload) -> dict[str, float]:
    """Return the magnitudes above which outputs keep all digits of their types."""
    return {
        tensor.name: 1 / largest(tensor.dtype) / unit_roundoff(tensor.dtype)
        for tensor in workload.outputs
        if is_floating(tensor.dtype)
    }


@dataclass(frozen=True)
class _Draw:
    digest: str
    drawing: Drawing
    reach: int
    workload: Workload = field(compare=False)


def _inputs(workload: Workload, drawing: Drawing, reach: int) -> dict[str, Array]:
    if workload.digest is None or not drawing.is_shared:
        return _draw(workload, drawing, reach)
    draw = _Draw(workload.digest, drawing, reach, workload)
    with _DRAWING.of(draw):
        return _drawn(draw)


@functools.lru_cache(maxsize=_REMEMBERED_INPUTS)
def _drawn(draw: _Draw) -> dict[str, Array]:
    return _draw(draw.workload, draw.drawing, draw.reach)


def _draw(workload: Workload, drawing: Drawing, reach: int) -> dict[str, Array]:
    if reach == _ORDINARY:
        return workload.draw_inputs(drawing.seed)
    if drawing.deciding:
        inputs = dict(workload.draw_inputs(drawing.seed))
        types = {tensor.name: tensor.dtype for tensor in workload.inputs}
        for name, ranges in drawing.deciding:
            inputs[name] = _exchanged(inputs[name], types[name], ranges, drawing.sign)
        return inputs
    # With a single output, such as a minimum of positive inputs, a value close to 0 hides the rest.
    several = any(tensor.size > 1 for tensor in workload.outputs)
    reached, zeros, equal = REACHES[reach]
    edges = Edges(
        drawing.sign,
        reached,
        zeros,
        small=drawing.sparse + drawing.uniform > 0 or (drawing.sign > 0 and several),
        equal=equal,
        literals=drawing.literals,
        sparse=drawing.sparse,
        whole=not several,
        uniform=drawing.uniform,
    )
    return workload.draw_inputs(drawing.seed, edges)


def _exchanged(values: Array, dtype: str, ranges: Sequence[tuple[int, int]], sign: int) -> Array:
    """Return a copy in which the greatest values, or the least, have changed places with others.

    Elsewhere, the greatest value becomes the least one, or the reverse: where few values occur, as
    in flags, the extreme would be everywhere.

    Args:
        values: the elements.
        dtype: their type.
        ranges: flat places, from the first up to the second, at which the extremes are to be.
        sign: 1 for the greatest values, -1 for the least.
    """
    flat = values.reshape(-1).copy()
    wanted = np.concatenate([np.arange(begin, end) for begin, end in ranges])
    order = np.argsort(sign * numbers(flat, dtype).astype(np.float64), kind="stable")
    present = order[-wanted.size :]
    extreme, opposite = flat[order[-1]], flat[order[0]]
    there, here = np.setdiff1d(present, wanted), np.setdiff1d(wanted, present)
    flat[there], flat[here] = flat[here], flat[there]
    elsewhere = np.ones(flat.size, bool)
    elsewhere[wanted] = False
    flat[elsewhere & (flat == extreme)] = opposite
    return flat.reshape(values.shape)


def _path(workload: Workload, drawing: Drawing) -> Path:
    key = f"{FORMAT} {workload.digest} {drawing.seed} {drawing.sign}"
    return cache_dir("references") / f"{hashlib.sha256(key.encode()).hexdigest()}.npz"


def _to_archive(reference: Reference, reach: int) -> dict[str, Values]:
    arrays: dict[str, Values] = {**reference, _REACH: np.array(float(reach))}
    for name, condition in reference.conditions.items():
        arrays[_SCALE + name] = np.array(condition.scale)
        if condition.own is not None:
            arrays[_OWN + name] = condition.own
    return arrays


def _load(path: Path, workload: Workload, drawing: Drawing) -> Case | None:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = dict(stored.items())  # whose checksums are verified
        names = [tensor.name for tensor in workload.outputs]
        conditions = {
            name: Condition(float(arrays[_SCALE + name]), arrays.get(_OWN + name))
            for name in names
            if _SCALE + name in arrays
        }
        reference = Reference({name: arrays[name] for name in names}, conditions)
        good = all(reference[tensor.name].shape == tensor.shape for tensor in workload.outputs)
        reach = int(arrays[_REACH])
    except Exception:  # a damaged archive raises almost anything, and is written again
        return None
    if not good or reach not in range(_ORDINARY + 1):
        return None
    inputs = _inputs(workload, drawing, reach)
    terms = _terms(workload, inputs, reference, HostArrays())
    return Case(inputs, Reference(reference, reference.conditions, terms=terms))
