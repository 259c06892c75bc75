"""Runs a kernel of the corpus once on the GPU, as the process that compute-sanitizer looks at."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "corpus"))

from entries import Entry, read_corpus

from pytest_gpuenergy.devices import Binary, CudaRunner
from pytest_gpuenergy.engine import seeded_arenas
from pytest_gpuenergy.kernels import Job, Kernel, Launch
from pytest_gpuenergy.workloads import Contract, Scalar, Tensor

MARK = "kernel under test: "


def kernel_of(entry: Entry) -> Kernel:
    """Return an entry as a kernel of this project."""
    launches = tuple(
        Launch(one.entry, one.grid, one.block, one.arguments, one.shared_bytes)
        for one in entry.launches
    )
    spaces = tuple(Tensor(t.name, t.shape, t.dtype, "workspace") for t in entry.workspaces)
    return Kernel(entry.source, launches, workspaces=spaces)


def workload_of(entry: Entry) -> Contract:
    """Return what an entry must compute as a workload of this project."""
    tensors = [Tensor(t.name, t.shape, t.dtype, "input") for t in entry.inputs]
    tensors += [Tensor(t.name, t.shape, t.dtype, "inout") for t in entry.inouts]
    tensors += [Tensor(t.name, t.shape, t.dtype, "output") for t in entry.outputs]
    return Contract(
        entry.family,
        tuple(tensors),
        entry.reference,
        values=tuple(Scalar(s.name, s.dtype, s.value) for s in entry.scalars),
        reduction_length=entry.terms,
        init=entry.ranges,
    )


def command(entry: Entry, binary: Binary) -> list[str]:
    """Return the command that runs this file for an entry."""
    words = [sys.executable, __file__, entry.name]
    return [*words, "--binary", str(binary.path), "--symbols", json.dumps(binary.symbols)]


def main() -> None:
    """Print the kernel's name and run it; raises the kernel's fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--symbols", type=json.loads, required=True)
    arguments = parser.parse_args()
    family = arguments.name.partition("/")[0]
    entry = next(one for one in read_corpus([family]) if one.name == arguments.name)
    workload = workload_of(entry)
    with seeded_arenas(workload, seed=0) as arenas:
        binary = Binary(arguments.binary, arguments.symbols)
        print(f"{MARK}{entry.name}", flush=True)
        CudaRunner().run_once(Job.of(kernel_of(entry), workload), binary, arenas)


if __name__ == "__main__":
    main()
