"""What buffers a real GPU's kernel is loaded with, on a CuPy whose memory is the host's."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_cupy import Memory, host_gpu

from pytest_gpuenergy.devices import (
    GUARD_BYTES,
    MAX_PLACEMENTS,
    PAGE_BYTES,
    Arena,
    Binary,
    CudaRunner,
)
from pytest_gpuenergy.devices.cuda import runner as cuda_runner
from pytest_gpuenergy.engine import seeded_arenas
from pytest_gpuenergy.kernels import Job, Kernel, Launch
from pytest_gpuenergy.workloads import Contract, Tensor

KERNEL = Kernel(
    "__global__ void f() {}",
    (Launch("f", (1, 1, 1), (1, 1, 1), ("large", "small", "out", "space")),),
    workspaces=(Tensor("space", (100,), "float32", "workspace"),),
)
WORKLOAD = Contract(
    "w",
    (
        Tensor("large", (400_000,), "float32", "input"),
        Tensor("small", (300,), "float32", "input"),
        Tensor("out", (300,), "float32", "output"),
    ),
    lambda inputs: {"out": inputs["small"]},
)


class Loaded:
    """The arguments of each turn's launches that the runner binds, in order."""

    def __init__(self, turns: Any, *, multiple: int = 1, **_: Any) -> None:
        self.turns, self.multiple = turns, multiple


@contextmanager
def runner() -> Iterator[tuple[CudaRunner, list[tuple[Memory, ...]]]]:
    bound: list[tuple[Memory, ...]] = []

    def launch(*arguments: Memory) -> None:
        bound.append(arguments)

    with host_gpu(launch), pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_runner, "GraphRepeater", Loaded)
        yield CudaRunner(), bound


def test_modules_are_imported_when_a_process_starts_and_those_missing_are_no_error():
    sys.modules.pop("this", None)
    with host_gpu(lambda *_: None), contextlib.redirect_stdout(io.StringIO()):
        CudaRunner(("no_such_module_at_all", "this"))
    assert sys.modules.pop("this")


def load(arenas: Mapping[str, Arena], cache: Any = "hot", *, spread: bool) -> list[Any]:
    """Return the arguments of every set, in the order of its turns."""
    with runner() as (found, bound):
        job = Job.of(KERNEL, WORKLOAD, cache=cache, apart=spread)
        found.load(job, Binary(Path("f.cubin"), {"f": "f"}), arenas)
        loaded: Any = found._repeater
        for _ in range(loaded.multiple):
            for turn in loaded.turns:
                turn()
        return bound


@pytest.fixture
def arenas() -> Iterator[Mapping[str, Arena]]:
    with seeded_arenas(WORKLOAD, seed=0) as made:
        yield made


def addresses(sets: list[Any]) -> list[int]:
    return [int(buffer.__array_interface__["data"][0]) for one in sets for buffer in one]


@pytest.mark.parametrize(
    ("cache", "spread", "sets"),
    [("hot", False, 1), ("hot", True, MAX_PLACEMENTS), ("cold", True, 7)],
)
def test_every_set_has_the_inputs_between_guard_bands(arenas, cache, spread, sets):
    found = load(arenas, cache, spread=spread)
    assert len(found) == sets
    assert len(set(addresses(found))) == 4 * sets
    for large, small, out, space in found:
        for name, buffer in (("large", large), ("small", small)):
            image = arenas[name].image()
            assert bytes(buffer) == bytes(image[GUARD_BYTES : GUARD_BYTES + buffer.nbytes])
        assert [one.nbytes for one in (large, small, out, space)] == [1_600_000, 1200, 1200, 400]
        assert bytes(space) == b"\xff" * 400


@pytest.mark.slow
def test_sets_lie_apart_and_elsewhere_each_time(arenas):
    seen = set()
    for _ in range(3):
        large = addresses(load(arenas, spread=True))[::4]
        distances = tuple(np.diff(sorted(large)) // PAGE_BYTES)
        assert min(distances) >= 1
        seen.add(distances)
    assert len(seen) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cache", "spread"), [("hot", False), ("hot", True), ("cold", True)], ids=str
)
def test_an_inout_has_its_initial_contents_at_each_launch(cache, spread):
    out = replace(WORKLOAD.contract[2], role="inout")
    workload = replace(WORKLOAD, contract=(*WORKLOAD.contract[:2], out))
    found: list[bytes] = []

    def launch(*arguments: Memory) -> None:
        array = np.asarray(arguments[2])
        found.append(array.tobytes())
        array[...] = 0

    with (
        host_gpu(launch),
        pytest.MonkeyPatch.context() as patch,
        seeded_arenas(workload, seed=0) as arenas,
    ):
        patch.setattr(cuda_runner, "GraphRepeater", Loaded)
        runner = CudaRunner()
        job = Job.of(KERNEL, workload, cache=cache, apart=spread)
        runner.load(job, Binary(Path("f.cubin"), {"f": "f"}), arenas)
        loaded: Any = runner._repeater
        for _ in range(2 * loaded.multiple):
            for turn in loaded.turns:
                turn()
        initial = arenas["out"].value().tobytes()
    assert len(found) > 1
    assert set(found) == {initial}
