"""Inputs and references of workloads, made once for all kernels of a case."""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pytest_gpuenergy.engine.comparison import Reference
from pytest_gpuenergy.support.files import keep_for_later
from pytest_gpuenergy.support.paths import cache_dir
from pytest_gpuenergy.workloads.number_types import Array
from pytest_gpuenergy.workloads.sensitivity import Condition, Values, conditions_of
from pytest_gpuenergy.workloads.workload import Workload

SEEDS = (0, 1)
_FORMAT = 4
_SCALE, _OWN = "scale:", "own:"


def seeded_inputs(workload: Workload, seed: int) -> dict[str, Array]:
    """`Workload.make_inputs`, drawn once for all kernels of a case."""
    if workload.digest is None:
        return workload.make_inputs(seed)
    return _drawn(_Draw(workload.digest, seed, workload))


def cached_reference(workload: Workload, seed: int) -> Reference:
    """The reference for the inputs of ``seed``, cached on disk by the workload's content."""
    if workload.digest is None:
        return make_reference(workload, seed)
    key = hashlib.sha256(f"{_FORMAT} {workload.digest} {seed}".encode()).hexdigest()
    path = cache_dir("references") / f"{key}.npz"
    if (known := _load_reference(path, workload)) is not None:
        return known
    reference = make_reference(workload, seed)
    archive = io.BytesIO()
    np.savez(archive, allow_pickle=False, **_to_archive(reference))
    keep_for_later(path, archive.getvalue())
    return reference


def make_reference(workload: Workload, seed: int) -> Reference:
    """`Workload.reference` for the inputs of ``seed``, with the conditions of its outputs."""
    inputs = workload.widened(seeded_inputs(workload, seed))
    values = workload.reference(inputs)
    if not workload.judged_by_element:
        return Reference(values)
    bounds = workload.io.bounds
    return Reference(values, conditions_of(workload.reference, inputs, values, bounds))


@dataclass(frozen=True)
class _Draw:
    digest: str
    seed: int
    workload: Workload = field(compare=False)


@functools.lru_cache(maxsize=len(SEEDS))
def _drawn(draw: _Draw) -> dict[str, Array]:
    return draw.workload.make_inputs(draw.seed)


def _to_archive(reference: Reference) -> dict[str, Values]:
    arrays: dict[str, Values] = dict(reference)
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


def _load_reference(path: Path, workload: Workload) -> Reference | None:
    try:
        state = path.stat()
        arrays = _read_archive(path, state.st_mtime_ns, state.st_size)
        known = _from_archive(arrays, [tensor.name for tensor in workload.outputs])
        good = all(known[tensor.name].shape == tensor.shape for tensor in workload.outputs)
    except Exception:  # a damaged archive raises almost anything, and is written again
        return None
    return known if good else None


@functools.lru_cache(maxsize=len(SEEDS))
def _read_archive(path: Path, _mtime_ns: int, _size: int) -> dict[str, Values]:
    """The arrays of an archive, checksums verified; read once for all kernels of a case."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return dict(stored.items())
