"""A kernel as a folder: what it is as JSON, and its source beside it."""

from __future__ import annotations

from pathlib import Path

from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.kernels.source import plan_of, read_plan
from pytest_gpuenergy.support.files import write_atomically
from pytest_gpuenergy.support.json_output import encode

_PLAN, _SOURCE = "kernel.json", "kernel.cu"


def write_kernel(folder: Path, kernel: Kernel) -> None:
    """Write ``kernel`` into ``folder``, unless one is there.

    Raises:
        OSError: it cannot be written.
    """
    if (folder / _PLAN).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / _SOURCE, kernel.source)
    # The plan goes last: where it is, the source is whole.
    write_atomically(folder / _PLAN, encode(plan_of(kernel, _SOURCE)))


def read_kernel(folder: Path) -> Kernel:
    """What `write_kernel` has written.

    Raises:
        InputError: it is missing or damaged.
    """
    return read_plan(folder / _PLAN)
