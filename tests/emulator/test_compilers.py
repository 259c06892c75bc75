"""The emulated GPU with each of the supported compilers that is installed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from outcomes import raises

from pytest_gpuenergy.emulator import HostRunner, Toolchain

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


X = np.arange(64, dtype=np.float32)


def test_a_kernel_runs(run):
    y = run(REVERSE, {"x": X}, {"y": (64, "float32")}, block=64)["y"]
    np.testing.assert_array_equal(y, X[::-1])


def test_a_race_is_found(run):
    source = REVERSE.replace("__syncthreads();", "")
    with raises("correctness", "race on shared memory"):
        run(source, {"x": X}, {"y": (64, "float32")}, block=64, checked=True)


def test_refused_text_is_named_with_its_line(run):
    source = '__global__ void k() {\n asm volatile("bar.sync 0;"); asm volatile("brkpt;"); }'
    with raises("compile", r"^line 2: cannot run on the emulated GPU: inline PTX"):
        run(source)


COUNTED = """#!/bin/sh
for output; do :; done
case "$*" in --version) exec echo g++ 1;; *group-launches.cpp*) echo built >> {log};; esac
touch "$output"
"""


def test_of_several_that_need_it_at_once_one_builds_what_kernels_share(tmp_path):
    compiler, log, cache = (tmp_path / name for name in ("compiler", "log", "cache"))
    compiler.write_text(COUNTED.format(log=log))
    compiler.chmod(0o755)
    cache.mkdir()
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(Toolchain.prepare, cache, str(compiler), 1) for _ in range(4)]
    assert len({future.result().folder for future in made}) == 1
    assert log.read_text() == "built\n"
