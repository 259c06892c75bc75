"""Inputs and references of workloads, made once for all kernels of a case.

Large ones are computed in the memory of the device, where it has arrays; see `is_large`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Literal

import numpy as np

from pytest_gpuenergy.devices import DeviceArrays, HostArrays
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
    repeated,
    unit_roundoff,
)

FORMAT = 10
_SCALE, _OWN, _REACH = "scale:", "own:", "reach:"
_ORDINARY = len(REACHES)
_REMEMBERED = 3
"""Drawings of a case, which all of its kernels run on."""
_DOUBLE = 8  # bytes
_LARGE_ELEMENTS = 1 << 22
_LARGE_FLOPS = 10_000_000_000
"""A second of a few cores in double precision."""


@dataclass(frozen=True)
class Drawing:
    """What inputs are drawn.

    Attributes:
        seed: of the generator.
        sign: -1 or 1 for a mixture of ordinary and extreme inputs, see `Edges`; otherwise 0.
        sparse: the number of a sparse drawing, see `Edges`; otherwise 0.
        uniform: the number of a uniform drawing, see `Edges`; otherwise 0.
        literals: numbers near which inputs that are not ordinary have values.
    """

    seed: int
    sign: Literal[-1, 0, 1] = 0
    sparse: int = 0
    uniform: int = 0
    literals: tuple[float, ...] = ()

    @property
    def is_shared(self) -> bool:
        """Return whether a drawing is shared by all kernels of a workload."""
        return not (self.sparse or self.uniform or self.literals)


@dataclass(frozen=True)
class Case:
    """Inputs with the correct outputs; see `Workload.draw_inputs`."""

    inputs: Mapping[str, Array]
    reference: Reference


def is_large(workload: Workload | IoContract) -> bool:
    """Whether it takes the host longer to compute the reference than a GPU to start."""
    elements = sum(tensor.size for tensor in workload.tensors)
    return elements >= _LARGE_ELEMENTS or workload.flops >= _LARGE_FLOPS


def case_of(workload: Workload, drawing: Drawing, arrays: DeviceArrays | None = None) -> Case:
    """The inputs of a drawing and their reference, which is cached by the workload's content.

    If the reference is not finite for inputs with edges, or no numbers of the outputs' types, they
    go less far; in the end they are ordinary.

    Args:
        workload: what is computed.
        drawing: of the inputs.
        arrays: where the reference of a large workload is computed if it can be, and then kept; it
            is not cached.
    """
    if arrays is not None and is_large(workload):
        # The function may be somebody's who has never thought of a GPU, or memory may be short.
        with contextlib.suppress(Exception), arrays.used():
            case, _ = _made(workload, drawing, arrays)
            if not any(isinstance(value, np.ndarray) for value in case.reference.values()):
                return case
    if workload.digest is None or not drawing.is_shared:
        return _made(workload, drawing)[0]
    path = _path(workload, drawing)
    if (known := _load(path, workload, drawing)) is not None:
        return known
    case, reach = _made(workload, drawing)
    archive = io.BytesIO()
    np.savez(archive, allow_pickle=False, **_to_archive(case.reference, reach))
    keep_for_later(path, archive.getvalue())
    return case


CaseOf = Callable[[Workload, Drawing, DeviceArrays | None], Case]
"""`case_of`, or what keeps cases."""


def cached_reference(
    workload: Workload, seed: int, arrays: DeviceArrays | None = None
) -> Reference:
    """The reference for the ordinary inputs of ``seed``, see `case_of`."""
    return case_of(workload, Drawing(seed), arrays).reference


class KeptCases:
    """Cases that are kept where they were made, for many kernels of few workloads.

    Args:
        most_bytes: of the references that are kept; those that were not asked for longest go first.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[tuple[str, Drawing], Case] = OrderedDict()
        self._lock = Lock()

    def __call__(
        self, workload: Workload, drawing: Drawing, arrays: DeviceArrays | None = None
    ) -> Case:
        """As the function `case_of`; workloads of one name must be the same."""
        key = (workload.name, drawing)
        with self._lock:
            known = self._kept.get(key)
            if known is not None:
                self._kept.move_to_end(key)
                return known
        case = case_of(workload, drawing, arrays)
        with self._lock:
            self._kept[key] = case
            while len(self._kept) > 1 and sum(map(_nbytes, self._kept.values())) > self._most_bytes:
                self._kept.popitem(last=False)
        return case


def _nbytes(case: Case) -> int:
    return sum(value.nbytes for value in case.reference.values())


def ordinary_inputs(workload: Workload, seed: int) -> Mapping[str, Array]:
    """`Workload.draw_inputs`, drawn once for all kernels of a case."""
    return _inputs(workload, Drawing(seed), _ORDINARY)


def forget_reference(workload: Workload, drawing: Drawing) -> None:
    """Remove a reference that nobody will need again from the cache."""
    with contextlib.suppress(OSError):
        _path(workload, drawing).unlink()


def make_reference(workload: Workload, seed: int) -> Reference:
    """The reference for the ordinary inputs of ``seed``, with the conditions of its outputs."""
    return _made(workload, Drawing(seed))[0].reference


def _made(
    workload: Workload, drawing: Drawing, arrays: DeviceArrays | None = None
) -> tuple[Case, int]:
    """The case, and the number of its `REACHES`.

    Raises:
        InputError: memory does not suffice.
    """
    if arrays is not None:
        with ended_by_signals():
            return _computed(workload, drawing, arrays)
    copies = sum(
        tensor.size * _DOUBLE if is_floating(tensor.dtype) else tensor.nbytes
        for tensor in workload.tensors
    )
    # One without a digest is a function of somebody else's.
    ending = ended_by_signals() if workload.digest is None else contextlib.nullcontext()
    with enough_memory(f"The reference of {workload.name}", copies), ending:
        return _computed(workload, drawing, None)


def _computed(
    workload: Workload, drawing: Drawing, arrays: DeviceArrays | None
) -> tuple[Case, int]:
    for reach in _reaches(workload) if drawing != Drawing(drawing.seed) else ():
        inputs = _inputs(workload, drawing, reach)
        with _refusing() as overflows:
            wide = workload.widened(_whole(workload, inputs, arrays))
            values = workload.reference(workload.widened(wide))
            tiny = _tiny(workload) if drawing.uniform else None
            if fits(values, _limits(workload), infinite=not overflows, tiny=tiny):
                scales = estimate_scales(workload.reference, wide, values)
                if drawing.uniform:
                    # Tiny inputs and zeros show what is added or divided by, not how results near 0
                    # are rounded: errors are relative to values near 1, as ordinary inputs give.
                    scales = {
                        name: replace(one, scale=max(one.scale, math.sqrt(values[name].size)))
                        for name, one in scales.items()
                    }
                terms = _terms(workload, inputs, values, arrays)
                return Case(inputs, Reference(values, scales, arrays, terms)), reach
    inputs = _inputs(workload, drawing, _ORDINARY)
    wide = workload.widened(_whole(workload, inputs, arrays))
    values = workload.reference(workload.widened(wide))
    bounds = {t.name: workload.bound_of(t) for t in workload.outputs}
    judged = {t.name: bounds[t.name] for t in workload.outputs if workload.is_judged_by_element(t)}
    conditions = estimate_conditions(workload.reference, wide, values, judged)
    terms = _terms(workload, inputs, values, arrays)
    return Case(inputs, Reference(values, conditions, arrays, terms)), _ORDINARY


def _terms(
    workload: Workload,
    inputs: Mapping[str, Array],
    right: Mapping[str, Values],
    arrays: DeviceArrays | None = None,
) -> Callable[[float], Mapping[str, Values]]:
    """Return what computes `estimate_terms` a case's outputs."""

    def compute(needed: float) -> Mapping[str, Values]:
        wide = workload.widened(_whole(workload, inputs, arrays))
        return estimate_terms(
            lambda some: workload.reference(workload.widened(some)), wide, right, needed
        )

    return compute


def _whole(
    workload: Workload, inputs: Mapping[str, Array], arrays: DeviceArrays | None
) -> Mapping[str, Array]:
    put = (arrays or HostArrays()).put
    return {one.name: repeated(put(inputs[one.name]), one.shape) for one in workload.inputs}


def _reaches(workload: Workload) -> range:
    """The numbers of the `REACHES` that differ for this workload."""
    floating = [tensor for tensor in workload.inputs if is_floating(tensor.dtype)]
    if any(tensor.name not in workload.ranges for tensor in floating):
        return range(_ORDINARY)
    return range(3) if floating else range(0, 3, 2)


@contextlib.contextmanager
def _refusing() -> Iterator[list[str]]:
    """Suppress the errors that a reference raises for inputs outside its domain.

    Yields a list to which each overflow is added: infinities may then be due to one.
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
    """The numbers that a kernel can return, floating-point ones with room for its rounding."""
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
    return _drawn(_Draw(workload.digest, drawing, reach, workload))


@functools.lru_cache(maxsize=_REMEMBERED)
def _drawn(draw: _Draw) -> dict[str, Array]:
    return _draw(draw.workload, draw.drawing, draw.reach)


def _draw(workload: Workload, drawing: Drawing, reach: int) -> dict[str, Array]:
    if reach == _ORDINARY:
        return workload.draw_inputs(drawing.seed)
    # A maximum or minimum of everything is hidden by any value close to 0.
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


def _from_archive(arrays: Mapping[str, Values], names: list[str]) -> Reference:
    conditions = {
        name: Condition(float(arrays[_SCALE + name]), arrays.get(_OWN + name))
        for name in names
        if _SCALE + name in arrays
    }
    return Reference({name: arrays[name] for name in names}, conditions)


def _load(path: Path, workload: Workload, drawing: Drawing) -> Case | None:
    try:
        state = path.stat()
        arrays = _read_archive(path, state.st_mtime_ns, state.st_size)
        known = _from_archive(arrays, [tensor.name for tensor in workload.outputs])
        good = all(known[tensor.name].shape == tensor.shape for tensor in workload.outputs)
        reach = int(arrays[_REACH])
    except Exception:  # a damaged archive raises almost anything, and is written again
        return None
    if not good or reach not in range(_ORDINARY + 1):
        return None
    inputs = _inputs(workload, drawing, reach)
    return Case(inputs, Reference(known, known.conditions, terms=_terms(workload, inputs, known)))


@functools.lru_cache(maxsize=_REMEMBERED)
def _read_archive(path: Path, _mtime_ns: int, _size: int) -> dict[str, Values]:
    """The arrays of an archive, checksums verified; read once for all kernels of a case."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return dict(stored.items())
