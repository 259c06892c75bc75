"""The emulated GPU with each of the supported compilers that is installed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.emulator import HostRunner, Toolchain
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Tensor

pytestmark = pytest.mark.slow

REVERSE = """
__global__ void k(const float* x, float* y) {
  __shared__ float tile[64];
  int t = threadIdx.x;
  tile[t] = x[t];
  __syncthreads();
  y[t] = tile[63 - t];
}
"""


@pytest.fixture(scope="module")
def runner(each_compiler: HostRunner) -> HostRunner:
    return each_compiler


@pytest.fixture
def arenas(tmp_path: Path) -> dict[str, Arena]:
    x, y = (
        Tensor(name, (64,), "float32", role) for name, role in (("x", "input"), ("y", "output"))
    )
    values = np.arange(64, dtype=np.float32)
    return {"x": Arena.create(tmp_path / "x", x, values), "y": Arena.create(tmp_path / "y", y)}


def kernel(source: str) -> Kernel:
    return Kernel(source, (Launch("k", (1, 1, 1), (64, 1, 1), ("x", "y")),))


def test_a_kernel_runs(runner: HostRunner, arenas: dict[str, Arena]) -> None:
    runner.run(kernel(REVERSE), arenas, {}, timeout_s=20.0)
    assert (arenas["y"].value() == np.arange(64)[::-1]).all()


def test_a_race_is_found(runner: HostRunner, arenas: dict[str, Arena]) -> None:
    with pytest.raises(KernelFault, match="race on shared memory"):
        runner.check_races(
            kernel(REVERSE.replace("__syncthreads();", "")), arenas, {}, timeout_s=20.0
        )


def test_refused_text_is_named_with_its_line(runner: HostRunner) -> None:
    source = '__global__ void k() {\n asm volatile("bar.sync 0;"); asm volatile("trap;"); }'
    with pytest.raises(KernelFault, match=r"^line 2: cannot run on the emulated GPU: inline PTX"):
        runner.compile(kernel(source))


COUNTED = """#!/bin/sh
for output; do :; done
case "$*" in --version) exec echo g++ 1;; *group-launches.cpp*) echo built >> {log};; esac
touch "$output"
"""


def test_of_several_that_need_it_at_once_one_builds_what_kernels_share(tmp_path: Path) -> None:
    compiler, log, cache = (tmp_path / name for name in ("compiler", "log", "cache"))
    compiler.write_text(COUNTED.format(log=log))
    compiler.chmod(0o755)
    cache.mkdir()
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(Toolchain.prepare, cache, str(compiler), 1) for _ in range(4)]
    assert len({future.result().folder for future in made}) == 1
    assert log.read_text() == "built\n"
