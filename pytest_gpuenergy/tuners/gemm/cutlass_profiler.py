"""Asks a user's own build of the CUTLASS profiler for its fastest kernel."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import subprocess
import tempfile
from pathlib import Path

from pytest_gpuenergy.support import (
    InputError,
    UnavailableError,
    cache_dir,
    keep_for_later,
    run_child,
)
from pytest_gpuenergy.workloads import Gemm

_TYPES = {
    "float32": "f32",
    "3xtf32": "f32",
    "tf32": "f32:{0},tf32",
    "float16": "f16",
    "bfloat16": "bf16",
}
_NAME, _RUNTIME, _DISPOSITION = "Operation", "Runtime", "Disposition"
_VERIFIED = "passed"
_TIMEOUT_S = 1800.0
"""The time for all kernels of a product; a build with thousands of them takes many minutes."""


def profiled_kernel(profiler: Path, gemm: Gemm, gpu: str) -> str:
    """Return the name of the profiler's fastest kernel for a product, among those it verified.

    The answer is cached by the profiler's file, the product and the GPU. A profiler knows only
    packed matrices, so leading dimensions are left out.

    Args:
        profiler: the program ``cutlass_profiler``.
        gemm: the product.
        gpu: the UUID of the GPU on which it runs.

    Raises:
        InputError: it cannot be run.
        UnavailableError: the profiler has no kernel for the product that it could verify.
    """
    try:
        status = profiler.stat()
    except OSError as error:
        raise InputError(
            f"--cutlass-profiler {profiler} cannot be used: {error.strerror}."
        ) from None
    options = profiler_options(gemm)
    key = json.dumps([str(profiler.resolve()), status.st_mtime_ns, status.st_size, options, gpu])
    memory = cache_dir("cutlass") / f"{hashlib.sha256(key.encode()).hexdigest()}.csv"
    try:
        return fastest_verified(memory.read_text(errors="replace"), gemm)
    except (OSError, UnavailableError):
        table = _profile(profiler, options, gpu)
        name = fastest_verified(table, gemm)
        keep_for_later(memory, table)
        return name


def profiler_options(gemm: Gemm) -> list[str]:
    """Return the profiler's options: the column-major product of the transposed matrices.

    Rows of a matrix are columns of its transpose, so B comes first and has N rows.
    """
    first, second = ("row" if letter == "t" else "column" for letter in gemm.layout)
    types = _TYPES[gemm.mode]
    return [
        "--operation=Gemm",
        f"--m={gemm.N}",
        f"--n={gemm.M}",
        f"--k={gemm.K}",
        f"--A={types.format(first)}:{first}",
        f"--B={types.format(second)}:{second}",
        f"--D={_TYPES[gemm.dtype]}:column",
        f"--op_class={'simt' if gemm.mode == 'float32' else 'tensorop'}",
        "--beta=0",
        "--split_k_slices=1",
        "--providers=cutlass",
    ]


def fastest_verified(table: str, gemm: Gemm) -> str:
    """Return the name of the fastest kernel in a table of the profiler.

    Args:
        table: the table as CSV, with a heading.
        gemm: the product that it is for.

    Raises:
        UnavailableError: the table has no verified kernel.
    """
    times: dict[str, float] = {}
    try:
        rows = [*csv.DictReader(io.StringIO(table))]
    except csv.Error:
        rows = []
    for row in rows:
        try:
            name, time_ms = row[_NAME], float(row[_RUNTIME])
        except (KeyError, TypeError, ValueError):
            continue
        if row.get(_DISPOSITION) == _VERIFIED and 0 < time_ms < times.get(name, float("inf")):
            times[name] = time_ms
    if not times:
        raise UnavailableError(
            f"The CUTLASS profiler has no kernel for {gemm.name} that it could verify: build it "
            "with kernels of these types and layouts, and with cuBLAS, which verifies them."
        )
    return min(times, key=times.__getitem__)


def _profile(profiler: Path, options: list[str], gpu: str) -> str:
    with tempfile.TemporaryDirectory(prefix="gpuenergy-cutlass-") as folder:
        output = Path(folder, "kernels")
        command = [str(profiler.absolute()), *options, f"--output={output}.csv"]
        try:
            done = run_child(
                command,
                Path(folder),
                environment={**os.environ, "CUDA_VISIBLE_DEVICES": gpu},
                timeout_s=_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise InputError(
                f"--cutlass-profiler {profiler} did not end within {_TIMEOUT_S:.0f} s: build it "
                "with fewer kernels."
            ) from None
        except OSError as error:
            raise InputError(
                f"--cutlass-profiler {profiler} cannot be run: {error.strerror}."
            ) from None
        try:
            return Path(f"{output}.gemm.csv").read_text(errors="replace")
        except OSError:
            lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
            message = f" and says {lines[-1]!r:.200}" if lines else ""
            raise InputError(
                f"--cutlass-profiler {profiler} writes no table; it exits with "
                f"{done.returncode}{message}."
            ) from None
