"""A reference that does not end is ended by one signal during a search."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_specs import SCALE, spec_with, write
from processes import pause

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.opening import open_device

pytestmark = pytest.mark.slow

LETS_PYTHON_RUN = "np.broadcast_to(1.0, (10**13,)).sum()"
HOLDS_PYTHON = "sum(np.broadcast_to(1.0, (10**13,)))"
LOOPS = "sum(0 for i in range(2**27) for j in range(2**27))"
PATIENCE_S = 40.0


def interrupted(
    folder: Path, endless: str, number: signal.Signals
) -> subprocess.CompletedProcess[str]:
    """Run a search that gets one signal during its first reference."""
    ready = folder / "ready"
    reference = f"np.savetxt({str(ready)!r}, [1]) or {endless}"
    spec = write(folder, spec_with(reference={"y": reference}))
    command = [sys.executable, "-m", "pytest_gpuenergy.cli", "optimize", str(spec)]
    command += ["--outdir", str(folder / "out"), "--gpus", "emulated", "--powercap", "300W"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not ready.exists() and process.poll() is None:
                pause()
            process.send_signal(number)
            _, error = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, "", error)


@pytest.mark.parametrize(
    ("endless", "number"),
    [(LETS_PYTHON_RUN, signal.SIGINT), (LOOPS, signal.SIGTERM)],
    ids=["calls C", "loops"],
)
def test_one_signal_ends_the_search_in_an_orderly_way(tmp_path, endless, number):
    done = interrupted(tmp_path, endless, number)
    assert done.returncode == 130
    last = "gpuenergy: error: Interrupted. A reference that did not end was abandoned."
    assert done.stderr.splitlines()[-1] == last
    assert "Traceback" not in done.stderr
    with open_device("emulated") as device:
        assert device.nvml.nvmlDeviceGetPowerManagementLimit(device.handle) == 700_000


def test_one_signal_ends_a_call_that_holds_python(tmp_path):
    done = interrupted(tmp_path, HOLDS_PYTHON, signal.SIGINT)
    assert done.returncode == -signal.SIGKILL
    last = "gpuenergy: a reference did not end by a signal, so the process was killed. "
    assert done.stderr.splitlines()[-1].startswith(last)
    write(tmp_path, SCALE)  # the lock is free, and what was set is restored
    options = ["--outdir", str(tmp_path / "more"), "--budget-builds", "0"]
    assert main(["optimize", str(tmp_path / "scale.json"), "--gpus", "emulated", *options]) == 0
