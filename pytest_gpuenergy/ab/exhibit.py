"""A kernel with its inputs as data, so that another process can measure it without its project."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from pytest_gpuenergy.engine.comparison import Reference
from pytest_gpuenergy.engine.verification import bounds_of, cached_reference
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.kernels.source import plan_of, read_plan
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.support.errors import InputError, ReportError
from pytest_gpuenergy.support.files import write_atomically
from pytest_gpuenergy.support.json_input import FormError, decode, read_bytes
from pytest_gpuenergy.support.json_output import encode
from pytest_gpuenergy.workloads.workload import Array, ErrorBound, Scalar, Tensor, Workload

_LINES, _PLAN, _SOURCE, _INPUTS = "items.jsonl", "kernel.json", "kernel.cu", "inputs.npz"
_PROBLEMS, _REFERENCES = "problems.json", "references"
_LARGEST_BYTES = 1 << 30
SEED = 0
"""Of the inputs."""


@dataclass(frozen=True)
class Exhibit:
    """One item of a run that exported.

    Attributes:
        draft: the item's measurement without figures; with an outcome and an error when the kernel
            failed its verification.
        folder: where kernel and inputs are; None when the kernel failed.
        tensors: inputs and outputs.
        scalars: arguments passed by value.
        reference_path: where the right outputs are; None when the kernel failed.
        bounds: how far each output may be off, by its name.
    """

    draft: Measurement
    folder: Path | None
    tensors: tuple[Tensor, ...] = ()
    scalars: tuple[Scalar, ...] = ()
    reference_path: Path | None = None
    bounds: Mapping[str, ErrorBound] = field(default_factory=dict)

    def kernel(self) -> Kernel:
        """Read the kernel.

        Raises:
            InputError: it is damaged.
        """
        assert self.folder is not None
        return read_plan(self.folder / _PLAN)

    def inputs(self) -> dict[str, Array]:
        """Read the inputs, by tensor name."""
        assert self.folder is not None
        return _load(self.folder / _INPUTS)

    def reference(self) -> Reference:
        """Read the right outputs, by tensor name."""
        assert self.reference_path is not None
        return _load(self.reference_path)


def begin_export(folder: Path) -> None:
    """Make ``folder``, which says that energy items were collected.

    Raises:
        ReportError: it cannot be made.
    """
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)


def export_problems(folder: Path, problems: Sequence[str]) -> None:
    """Write what failed the run as a whole, as sentences.

    Raises:
        ReportError: it cannot be written.
    """
    begin_export(folder)
    with _explained(folder):
        write_atomically(folder / _PROBLEMS, encode(list(problems)))


class _Line(Struct, frozen=True):
    """An `Exhibit` as one line of JSON; ``folder`` and ``reference`` are names."""

    draft: Measurement
    folder: str | None
    tensors: tuple[Tensor, ...] = ()
    scalars: tuple[Scalar, ...] = ()
    reference: str | None = None
    bounds: dict[str, ErrorBound] = {}


def export(folder: Path, draft: Measurement, kernel: Kernel, workload: Workload) -> None:
    """Add an item to ``folder``; equal kernels with equal inputs are written once.

    Raises:
        ReportError: it cannot be written.
    """
    inputs = workload.make_inputs(SEED)
    reference = cached_reference(workload, SEED)
    name = _content_name(inputs, kernel.digest)
    right = folder / _REFERENCES / f"{_content_name(reference)}.npz"
    line = _Line(
        draft,
        name,
        tuple(workload.tensors),
        tuple(workload.scalars),
        right.name,
        dict(bounds_of(workload)),
    )
    with _explained(folder):
        if not right.exists():
            right.parent.mkdir(parents=True, exist_ok=True)
            _save(right, reference)
        own = folder / name
        if not (own / _PLAN).exists():
            own.mkdir(parents=True, exist_ok=True)
            (own / _SOURCE).write_text(kernel.source, encoding="utf-8", newline="")
            _save(own / _INPUTS, inputs)
            # The plan goes last: where it is, the others are whole.
            write_atomically(own / _PLAN, encode(plan_of(kernel, _SOURCE)))
        _append(folder, line)


def export_failure(folder: Path, draft: Measurement) -> None:
    """Add an item whose kernel failed: ``draft`` tells how.

    Raises:
        ReportError: it cannot be written.
    """
    with _explained(folder):
        _append(folder, _Line(draft, None))


def load_exhibits(folder: Path) -> tuple[Exhibit, ...]:
    """What `export` has written, in the order of the items; of an item, the last.

    Raises:
        InputError: it is damaged.
    """
    path = folder / _LINES
    if not path.exists():
        return ()
    try:
        lines = read_bytes(path, "list of exported kernels", _LARGEST_BYTES).splitlines()
        found = [_exhibit(folder, decode(line, _Line)) for line in lines]
    except (FormError, InputError) as error:
        raise InputError(f"The exported kernels in {folder} cannot be read: {error}.") from None
    return tuple({exhibit.draft.node_id: exhibit for exhibit in found}.values())


def load_problems(folder: Path) -> tuple[str, ...]:
    """What `export_problems` has written, if anything.

    Raises:
        InputError: it is damaged.
    """
    path = folder / _PROBLEMS
    if not path.exists():
        return ()
    try:
        content = read_bytes(path, "list of problems", _LARGEST_BYTES)
        return decode(content, tuple[str, ...])
    except FormError as error:
        raise InputError(f"{path} cannot be read: {error}.") from None


def _exhibit(folder: Path, line: _Line) -> Exhibit:
    if line.folder is None or line.reference is None:
        return Exhibit(line.draft, None)
    return Exhibit(
        line.draft,
        folder / Path(line.folder).name,
        line.tensors,
        line.scalars,
        folder / _REFERENCES / Path(line.reference).name,
        line.bounds,
    )


def _content_name(arrays: Mapping[str, Array], more: str = "") -> str:
    content = hashlib.sha256(more.encode())
    for name, value in sorted(arrays.items()):
        content.update(f"{name} {value.dtype} {value.shape}".encode())
        content.update(np.ascontiguousarray(value).tobytes())
    return content.hexdigest()[:32]


def _save(path: Path, arrays: Mapping[str, Array]) -> None:
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _load(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ReportError(
            f"{error.filename or folder} cannot be written: {error.strerror}."
        ) from None


def _append(folder: Path, line: _Line) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LINES).open("ab") as file:
        file.write(encode(line) + b"\n")
