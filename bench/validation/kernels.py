"""The kernels to validate: bundled ones, and two special ones of a few us and about 20 ms.

On an H200, 3 * 2**19 elements of axpy took 2.92 us, and 7,900,000 steps of lcg took 20 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from pytest_gpuenergy.devices import Arena, Device, Repeater
from pytest_gpuenergy.kernels import Job, Kernel, load_kernel
from pytest_gpuenergy.tuners import KernelStore, records_of
from pytest_gpuenergy.workloads import Array, Contract, Scalar, Tensor, Workload, find_workload

NAMES = (
    "case7-slowest",
    "case5-fastest",
    "case7-fastest",
    "case4-fastest",
    "case4-slowest",
    "case5-slowest",
    "axpy",
    "lcg",
    "case1-slowest",
    "case1-fastest",
)
"""Kernels of low power follow others of low power, except one: case4-slowest."""

SOURCES = Path(__file__).parent / "cuda"
RECORDS = Path(__file__).parents[1] / "records" / "nvidia-h200"
TIMEOUT_S = 60.0

AXPY_SIZE = 3 << 19
AXPY_BLOCK = 256
AXPY_FACTOR = 2.5
_PER_THREAD = 4

LCG_BLOCKS, LCG_BLOCK = 132, 256
"""One block for each multiprocessor of an H200, two warps for each of its schedulers."""
LCG_MULTIPLIER, LCG_INCREMENT = 1664525, 1013904223
LCG_STEPS = 7_900_000
LCG_STEPS_EMULATED = 2_000
"""The emulated GPU runs all steps on the host, where the full number would take hours."""


def named(
    name: str, records: Path, store: KernelStore, *, emulated: bool = False
) -> tuple[Kernel, Workload]:
    """``axpy``, ``lcg``, or a case's fastest or slowest kernel in a folder of records.

    Args:
        name: such as ``axpy`` or ``case5-fastest``.
        records: the folder.
        store: loads the kernels of record files.
        emulated: whether the kernel is for the emulated GPU.

    Raises:
        InputError: there is no such workload, or no records of it.
    """
    if name == "axpy":
        return axpy()
    if name == "lcg":
        return lcg(emulated=emulated)
    case, _, which = name.partition("-")
    workload = find_workload(case)
    file = records_of(records, workload)
    return store.kernel(file, file.ranks[0] if which == "fastest" else file.ranks[-1]), workload


def loaded(
    device: Device, kernel: Kernel, workload: Workload, arenas: Mapping[str, Arena]
) -> AbstractContextManager[Repeater]:
    """Load a kernel to run back to back as a bench does, in its own process."""
    return device.repeat(Job.of(kernel, workload, timeout_s=TIMEOUT_S, apart=True), arenas)


def axpy() -> tuple[Kernel, Contract]:
    """A multiply-add over 19 MB, which fit in an L2 cache."""
    kernel = load_kernel(
        SOURCES / "axpy.cu",
        entry="axpy",
        grid=AXPY_SIZE // _PER_THREAD // AXPY_BLOCK,
        block=AXPY_BLOCK,
        arguments=("x", "y", "out", "factor"),
    )
    tensors = [Tensor(name, (AXPY_SIZE,), "float32", "input") for name in ("x", "y")]
    workload = Contract(
        "axpy",
        (*tensors, Tensor("out", (AXPY_SIZE,), "float32", "output")),
        lambda inputs: {"out": AXPY_FACTOR * inputs["x"] + inputs["y"]},
        flops=2 * AXPY_SIZE,
        values=(Scalar("factor", "float32", AXPY_FACTOR),),
    )
    return kernel, workload


def lcg(*, emulated: bool) -> tuple[Kernel, Contract]:
    """Each thread steps a linear congruential generator; each step depends on the previous one.

    The exact result after any number of steps can be computed directly, see `advanced`.
    """
    steps = LCG_STEPS_EMULATED if emulated else LCG_STEPS
    kernel = load_kernel(
        SOURCES / "lcg.cu",
        entry="lcg",
        grid=LCG_BLOCKS,
        block=LCG_BLOCK,
        arguments=("seeds", "out", "multiplier", "increment", "steps"),
    )
    size = LCG_BLOCKS * LCG_BLOCK
    factor, offset = jump(steps)

    def advanced(inputs: Mapping[str, Array]) -> dict[str, Array]:
        seeds = inputs["seeds"].astype("uint64")
        return {"out": (factor * seeds + offset) % (1 << 32)}

    workload = Contract(
        "lcg",
        (
            Tensor("seeds", (size,), "uint32", "input"),
            Tensor("out", (size,), "uint32", "output"),
        ),
        advanced,
        flops=2 * steps * size,
        values=(
            Scalar("multiplier", "uint32", LCG_MULTIPLIER),
            Scalar("increment", "uint32", LCG_INCREMENT),
            Scalar("steps", "int32", steps),
        ),
    )
    return kernel, workload


def jump(steps: int) -> tuple[int, int]:
    """``factor`` and ``offset`` of that many steps combined, modulo 2**32.

    F. B. Brown, "Random Number Generation with Arbitrary Strides", Trans. Am. Nucl. Soc. 71, 1994.
    """
    factor, offset = 1, 0
    step, shift = LCG_MULTIPLIER, LCG_INCREMENT
    while steps:
        if steps & 1:
            factor, offset = factor * step % (1 << 32), (offset * step + shift) % (1 << 32)
        step, shift = step * step % (1 << 32), shift * (step + 1) % (1 << 32)
        steps >>= 1
    return factor, offset
