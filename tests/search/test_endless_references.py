"""A reference that does not end is ended by one signal during a search."""

from __future__ import annotations

import os
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

HOLDS_PYTHON = "sum(np.broadcast_to(1.0, (10**13,)))"
PATIENCE_S = 40.0
IMPATIENT = """
import sys
from pytest_gpuenergy import cli
from pytest_gpuenergy.support import endless

endless.GRACE_S, cli._PATIENCE_S = float(sys.argv[1]), 0.2
sys.exit(cli.main(sys.argv[2:]))
"""
"""The command line, which waits for less long than it does for users."""


def interrupted(
    folder: Path, endless: str, number: signal.Signals, grace_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a search that gets one signal during its first reference."""
    ready = folder / "ready"
    reference = f"np.savetxt({str(ready)!r}, [1]) or {endless}"
    spec = write(folder, spec_with(reference={"y": reference}))
    command = [sys.executable, "-c", IMPATIENT, str(grace_s), "optimize", str(spec)]
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


def test_one_signal_ends_the_search_in_an_orderly_way(tmp_path):
    os.mkfifo(tmp_path / "nobody writes")
    waits_in_c = f"np.fromfile({str(tmp_path / 'nobody writes')!r})"
    # Twice as long as it takes to restore the limit on a busy machine.
    done = interrupted(tmp_path, waits_in_c, signal.SIGTERM, grace_s=2.0)
    assert done.returncode == 130
    last = "gpuenergy: error: Interrupted. A reference that did not end was abandoned."
    assert done.stderr.splitlines()[-1] == last
    assert "Traceback" not in done.stderr
    with open_device("emulated") as device:
        assert device.nvml.nvmlDeviceGetPowerManagementLimit(device.handle) == 700_000


def test_one_signal_ends_a_call_that_holds_python(tmp_path):
    done = interrupted(tmp_path, HOLDS_PYTHON, signal.SIGINT, grace_s=0.3)
    assert done.returncode == -signal.SIGKILL
    last = "gpuenergy: a reference did not end by a signal, so the process was killed. "
    assert done.stderr.splitlines()[-1].startswith(last)
    write(tmp_path, SCALE)  # the lock is free, and what was set is restored
    options = ["--outdir", str(tmp_path / "more"), "--budget-builds", "0"]
    assert main(["optimize", str(tmp_path / "scale.json"), "--gpus", "emulated", *options]) == 0
