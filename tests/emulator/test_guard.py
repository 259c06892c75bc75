"""The host compiler and the processes it has started end with the process that needs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import has_ended

from pytest_gpuenergy.emulator import HostRunner, Toolchain
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import DeviceError, KernelFault

pytestmark = pytest.mark.slow

KERNEL = Kernel(
    'extern "C" __global__ void f(float* y) { y[0] = 1; }',
    (Launch("f", (1, 1, 1), (1, 1, 1), ("y",)),),
)
PATIENCE_S = 60.0
# Builds the shared runtime as empty files; for a kernel it starts a process that does not return.
DRIVER = """#!/bin/sh
for output; do :; done
case "$*" in *kernel-*.cpp*) ;; --version) exec echo g++ 1;; *) exec touch "$output";; esac
sleep 1000 &
echo $! > {folder}/started.draft
mv {folder}/started.draft {folder}/started
wait
"""
COMPILES = """
import sys
from pathlib import Path
from pytest_gpuenergy.emulator import HostRunner
sys.path[:0] = sys.argv[3:]
from test_guard import KERNEL
HostRunner(Path(sys.argv[1]), compiler=sys.argv[2]).compile(KERNEL)
"""


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    path = tmp_path / "driver"
    path.write_text(DRIVER.format(folder=tmp_path))
    path.chmod(0o755)
    return path


def started(folder: Path) -> int:
    """The number of the process that the driver starts; waits for it."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if (folder / "started").exists():
            return int((folder / "started").read_text())
        os.sched_yield()
    raise AssertionError("nothing was started")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_it_ends_with_the_process_that_compiles(
    tmp_path: Path, driver: Path, number: signal.Signals
) -> None:
    words = [str(tmp_path / "cache"), str(driver), *sys.path]
    with subprocess.Popen(
        [sys.executable, "-c", COMPILES, *words], stderr=subprocess.DEVNULL
    ) as process:
        other = started(tmp_path)
        process.send_signal(number)
    assert has_ended(other)


def test_it_ends_when_its_time_is_up(
    tmp_path: Path, driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache := tmp_path / "cache").mkdir()
    runner = HostRunner(cache, compiler=str(driver))
    Toolchain.prepare(cache, str(driver), jobs=1)
    monkeypatch.setattr("pytest_gpuenergy.emulator.host.compiler.TIMEOUT_S", 1.0)
    with pytest.raises(KernelFault, match="did not finish within 1 s") as caught:
        runner.compile(KERNEL)
    assert caught.value.outcome == "compile"
    assert has_ended(started(tmp_path))


def test_text_that_takes_all_memory_to_compile_is_a_fault(
    host_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_gpuenergy.emulator.host.compiler.MEMORY_BYTES", 1 << 28)
    doubled = "".join(f"#define A{n} A{n - 1} A{n - 1}\n" for n in range(1, 25))
    much = f"#define A0 1,\n{doubled}__device__ int much[] = {{A24}};\n"
    used = KERNEL.source.replace("{", "{ if (!much[0]) return;", 1)
    with pytest.raises(KernelFault) as caught:
        HostRunner(host_cache).compile(Kernel(much + used, KERNEL.launches))
    assert caught.value.outcome == "compile"
    assert "memory" in str(caught.value)


def test_a_compiler_that_cannot_be_started_is_a_device_error(tmp_path: Path) -> None:
    path = tmp_path / "compiler"
    path.write_text(
        "#!/bin/sh\nrm $0\necho compiler 1.0\n"
    )  # deletes itself when it prints its version
    path.chmod(0o755)
    with pytest.raises(DeviceError, match=r"cannot be started \((not found|No such file.*)\)"):
        HostRunner(tmp_path / "cache", compiler=str(path)).compile(KERNEL)
