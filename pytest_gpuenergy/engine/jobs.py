"""Stores jobs on disk with inputs and reference, so that any host can run and verify them.

A folder contains many jobs, and stores only once what several of them share:

- ``jobs/NAME.json``: the `Job` without its kernel, and the names of its other files;
- ``kernels/DIGEST/``: a launch plan with its source;
- ``arrays/HASH.npz``: inputs, correct outputs in float64, or `Condition.own` of outputs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct

from pytest_gpuenergy.devices import Arena, DeviceArrays
from pytest_gpuenergy.engine.arena_check import ArenaCheck
from pytest_gpuenergy.engine.arenas import memory_or_file_arenas
from pytest_gpuenergy.engine.comparison import Reference
from pytest_gpuenergy.engine.references import Case, cached_reference
from pytest_gpuenergy.kernels import CacheState, Job, read_kernel, write_kernel
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    decode_versioned,
    encode,
    is_there,
    read_bytes,
    write_atomically,
)
from pytest_gpuenergy.workloads import (
    Array,
    Condition,
    IoContract,
    Tensor,
    Workload,
    check_tensor,
    stored_as,
)

JOB_VERSION = 1
"""The ``schema_version`` of the jobs written and read here."""

_JOBS, _KERNELS, _ARRAYS = "jobs", "kernels", "arrays"
_MAX_BYTES = 1 << 20
"""The most bytes of ``jobs/NAME.json``."""
_HEADER_BYTES = 4096
"""The most bytes that an array may take in an archive in addition to its elements."""


@dataclass(frozen=True)
class StoredJob:
    """A job with its inputs and reference, which are read on demand.

    Attributes:
        job: the job.
        inputs_path: the archive of the inputs.
        reference_path: the archive of the correct outputs, in float64.
        scales: the `Condition.scale` of each output that has one, by name.
        owns: the archives of `Condition.own` by the name of the output; each has one array, of that
            name.
    """

    job: Job
    inputs_path: Path
    reference_path: Path
    scales: Mapping[str, float] = field(default_factory=dict)
    owns: Mapping[str, Path] = field(default_factory=dict)

    def inputs(self) -> dict[str, Array]:
        """Read the inputs, by tensor name.

        Raises:
            InputError: they cannot be read.
        """
        return load_arrays(self.inputs_path, [t for t in self.job.io.tensors if t.is_read])

    def reference(self, arrays: DeviceArrays | None = None) -> Reference:
        """Read the correct outputs, by tensor name, into the memory of ``arrays`` if they fit.

        Raises:
            InputError: they cannot be read.
        """
        outputs = {t.name: replace(t, dtype="float64") for t in self.job.io.tensors if t.is_written}
        values = load_arrays(self.reference_path, list(outputs.values()))
        owns = {name: load_arrays(path, [outputs[name]])[name] for name, path in self.owns.items()}
        if arrays is not None:
            with contextlib.suppress(Exception), arrays.used():  # CuPy has errors of its own
                values_there = {name: arrays.put(value) for name, value in values.items()}
                owns_there = {name: arrays.put(own) for name, own in owns.items()}
                return _reference(values_there, self.scales, owns_there, arrays)
        return _reference(values, self.scales, owns)

    @contextlib.contextmanager
    def opened(
        self, arrays: DeviceArrays | None = None
    ) -> Iterator[tuple[dict[str, Arena], ArenaCheck]]:
        """Make arenas with the inputs, and the check to call after a run.

        The arenas and the reference of a large job are in the memory of ``arrays`` if possible.

        Raises:
            DeviceError: there is no room for the arenas.
            InputError: the inputs cannot be read.
        """
        contract = self.job.io
        with memory_or_file_arenas(contract, self.inputs(), arrays) as arenas:
            in_place = all(arena.memory.in_place for arena in arenas.values())
            reference = functools.cache(lambda: self.reference(arrays if in_place else None))
            yield arenas, ArenaCheck(arenas, reference, contract.bounds, self.job.seed)


@dataclass(frozen=True)
class PreparedJob:
    """A job with its inputs and reference in memory.

    Attributes:
        job: the job.
        case: the inputs and the reference of its seed.
    """

    job: Job
    case: Case

    @contextlib.contextmanager
    def opened(
        self, arrays: DeviceArrays | None = None
    ) -> Iterator[tuple[dict[str, Arena], ArenaCheck]]:
        """Make arenas with the inputs, and the check to call after a run; see `StoredJob.opened`.

        Raises:
            DeviceError: there is no room for the arenas.
        """
        contract = self.job.io
        with memory_or_file_arenas(contract, self.case.inputs, arrays) as arenas:
            check = ArenaCheck(arenas, lambda: self.case.reference, contract.bounds, self.job.seed)
            yield arenas, check


def _reference(
    values: Mapping[str, Any],
    scales: Mapping[str, float],
    owns: Mapping[str, Any],
    arrays: DeviceArrays | None = None,
) -> Reference:
    conditions = {name: Condition(scale, owns.get(name)) for name, scale in scales.items()}
    return Reference(values, conditions, arrays)


class _Stored(Struct, frozen=True):
    """The content of ``jobs/NAME.json``."""

    schema_version: int
    kernel: str
    inputs: str
    reference: str
    io: IoContract
    seed: Annotated[int, Meta(ge=0)]
    cache: CacheState
    timeout_s: Annotated[float, Meta(gt=0)]
    apart: bool
    scales: dict[str, Annotated[float, Meta(ge=0)]] = {}
    owns: dict[str, str] = {}


def write_job(
    folder: Path, job: Job, workload: Workload, arrays: DeviceArrays | None = None
) -> str:
    """Add a job to ``folder``, with the inputs and the reference of its workload.

    Args:
        folder: the folder, for `read_job`.
        job: the job.
        workload: what it computes.
        arrays: the device that computes the reference of a large workload, see `case_of`.

    Returns:
        The job's name, for `read_job`; equal jobs have equal names.

    Raises:
        OSError: the job cannot be written.
    """
    reference = cached_reference(workload, job.seed, arrays).on_host()
    owns = {n: c.own for n, c in reference.conditions.items() if c.own is not None}
    stored = _Stored(
        JOB_VERSION,
        job.kernel.digest,
        save_arrays(folder / _ARRAYS, workload.make_inputs(job.seed)),
        save_arrays(folder / _ARRAYS, reference),
        *(job.io, job.seed, job.cache, job.timeout_s, job.apart),
        {name: condition.scale for name, condition in reference.conditions.items()},
        {name: save_arrays(folder / _ARRAYS, {name: own}) for name, own in owns.items()},
    )
    write_kernel(folder / _KERNELS / stored.kernel, job.kernel)
    content = encode(stored)
    name = hashlib.sha256(content).hexdigest()[:32]
    path = folder / _JOBS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return name


def read_job(folder: Path, name: str) -> StoredJob:
    """Read a job that `write_job` has written.

    Raises:
        InputError: the job is missing or damaged.
    """
    path = folder / _JOBS / f"{Path(name).name}.json"
    content = read_bytes(path, "job", _MAX_BYTES)
    try:
        stored = decode_versioned(content, _Stored, JOB_VERSION)
        for tensor in stored.io.tensors:
            check_tensor(tensor, stored.io.name)
        names = [tensor.name for tensor in stored.io.tensors]
        names += [scalar.name for scalar in stored.io.scalars]
        if len(set(names)) != len(names):
            raise FormError("two of its arguments share a name")
        outputs = {tensor.name for tensor in stored.io.tensors if tensor.is_written}
        if not outputs or outputs != set(stored.io.bounds):
            raise FormError("its outputs and bounds do not have the same names")
        if not stored.owns.keys() <= stored.scales.keys() <= stored.io.bounds.keys():
            raise FormError("its scales are not those of its outputs")
    except FormError as error:
        raise InputError(
            f"The job {path} cannot be used, because {error}: write it again."
        ) from None
    kernel = read_kernel(folder / _KERNELS / Path(stored.kernel).name)
    job = Job(kernel, stored.io, stored.seed, stored.cache, stored.timeout_s, stored.apart)
    arrays = folder / _ARRAYS
    inputs, reference = (arrays / Path(name).name for name in (stored.inputs, stored.reference))
    owns = {name: arrays / Path(archive).name for name, archive in stored.owns.items()}
    return StoredJob(job, inputs, reference, stored.scales, owns)


def save_arrays(folder: Path, arrays: Mapping[str, Array]) -> str:
    """Save ``arrays`` under a name derived from their content, and return that name.

    Raises:
        OSError: they cannot be written.
    """
    content = hashlib.sha256()
    for name, value in sorted(arrays.items()):
        content.update(f"{name} {value.dtype} {value.shape}".encode())
        content.update(np.ascontiguousarray(value).tobytes())
    path = folder / f"{content.hexdigest()[:32]}.npz"
    if not is_there(path):
        folder.mkdir(parents=True, exist_ok=True)
        archive = io.BytesIO()
        np.savez(archive, allow_pickle=False, **arrays)
        write_atomically(path, archive.getvalue())
    return path.name


def load_arrays(path: Path, tensors: Sequence[Tensor]) -> dict[str, Any]:
    """Read ``tensors`` from an archive, refusing one that is larger than they can be.

    Raises:
        InputError: they cannot be read.
    """
    most = sum(tensor.nbytes + _HEADER_BYTES for tensor in tensors)
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(part.file_size for part in archive.infolist())
        if size > most:
            raise FormError(f"it holds {size} bytes, and its tensors take at most {most}")
        with np.load(path, allow_pickle=False) as stored:
            arrays = {tensor.name: stored[tensor.name] for tensor in tensors}
        for tensor in tensors:
            array = arrays[tensor.name]
            if (array.shape, array.dtype) != (tensor.shape, stored_as(tensor.dtype)):
                raise FormError(f"{tensor.name} does not have the shape and dtype of its tensor")
    except FormError as error:
        problem = str(error)
    except Exception as error:  # a damaged archive raises almost anything
        problem = f"{type(error).__name__}: {error}"
    else:
        return arrays
    raise InputError(f"The arrays in {path} cannot be used ({problem}): write the job again.")
