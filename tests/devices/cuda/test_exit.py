"""How a process ends in which PyTorch's profiler has run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from nvidia_driver import needs_compiler

pytestmark = [needs_compiler, pytest.mark.slow]

STUBS = Path(__file__).parents[2] / "nvidia_stub"
PROFILED = """
import ctypes, sys
from pytest_gpuenergy.devices.cuda.cupti import stop_tracing_at_exit

ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
client = ctypes.CDLL(sys.argv[2])
if sys.argv[3] == "stopped":
    stop_tracing_at_exit()
    stop_tracing_at_exit()
client.client_profile()
print("the last line", flush=True)
"""


@pytest.fixture
def libraries(tmp_path: Path) -> list[str]:
    """Stand-ins for CUPTI and for a library that uses it and ends before it."""
    made = {"cupti": tmp_path / "libcupti.so.12", "client": tmp_path / "client.so"}
    for name, path in made.items():
        command = ["gcc", "-O0", "-w", "-fPIC", "-shared", "-o", str(path)]
        subprocess.run([*command, str(STUBS / f"{name}.c")], check=True)
    return [str(path) for path in made.values()]


def ended(libraries: list[str], how: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", PROFILED, *libraries, how]
    return subprocess.run(words, capture_output=True, text=True)


def test_buffers_are_returned_before_they_are_freed(libraries):
    found = ended(libraries, "stopped")
    assert (found.returncode, found.stdout, found.stderr) == (0, "the last line\n", "")


def test_otherwise_the_stand_ins_free_a_buffer_twice(libraries):
    found = ended(libraries, "as it was")
    assert (found.returncode, found.stderr) == (-signal.SIGABRT, "a buffer is freed twice\n")


def test_without_cupti_nothing_is_done():
    code = (
        "from pytest_gpuenergy.devices.cuda.cupti import stop_tracing_at_exit as s\ns()\nprint(1)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, "1\n", "")
