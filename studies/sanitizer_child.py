"""What studies/sanitize.py runs under compute-sanitizer: one bundled kernel, once."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_gpuenergy.devices import Binary, CudaRunner
from pytest_gpuenergy.engine import seeded_arenas
from pytest_gpuenergy.kernels import Dim3, Job, Kernel
from pytest_gpuenergy.tuners import KernelStore, load_records

MARK = "kernel under test: "


def first_blocks(kernel: Kernel, most: int) -> Kernel:
    """The kernel with at most ``most`` blocks of each launch: the first by x, then y, then z.

    Blocks are taken in whole rows and planes, so that they form a grid.
    """

    def part(grid: Dim3) -> Dim3:
        x, y, z = grid
        if most < x:
            return (most, 1, 1)
        return (x, most // x, 1) if most < x * y else (x, y, min(z, most // (x * y)))

    launches = tuple(replace(launch, grid=part(launch.grid)) for launch in kernel.launches)
    return replace(kernel, launches=launches)


def command(records: Path, rank: int, binary: Binary, blocks: int) -> list[str]:
    """The command that runs this file for a kernel of a record file."""
    words = [sys.executable, __file__, str(records), "--rank", str(rank), "--blocks", str(blocks)]
    return [*words, "--binary", str(binary.path), "--symbols", json.dumps(binary.symbols)]


def main(words: Sequence[str] | None = None) -> None:
    """Print the kernel's name and run it; raises the kernel's fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--symbols", type=json.loads, required=True)
    arguments = parser.parse_args(words)
    file = load_records(arguments.records)
    with KernelStore() as store, seeded_arenas(file.workload, seed=0) as arenas:
        kernel = first_blocks(store.kernel(file, arguments.rank), arguments.blocks)
        binary = Binary(arguments.binary, arguments.symbols)
        print(f"{MARK}{file.workload.name}-k{arguments.rank:02d}", flush=True)
        CudaRunner().run_once(Job.of(kernel, file.workload), binary, arenas)


if __name__ == "__main__":
    main()
