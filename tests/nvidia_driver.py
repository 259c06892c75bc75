"""Stand-ins for NVIDIA's driver libraries, written in C, which the real binding loads."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from forked_python import ForkedPython

_SOURCES = Path(__file__).with_name("nvidia_stub")
_LIBRARIES = {"nvml": "libnvidia-ml.so.1", "cuda": "libcuda.so.1"}

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


def build_driver(
    folder: Path,
    *,
    without: Collection[str] = (),
    libraries: Collection[str] = ("nvml", "cuda"),
    flags: Collection[str] = (),
) -> Path:
    """Compile the libraries to ``folder``, hiding the functions named in ``without``."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / "hidden"
    hidden.write_text("{ global: *; local: " + "".join(f"{one}; " for one in without) + "};")
    for name in libraries:
        command = [
            "gcc",
            "-O0",
            "-w",
            "-fPIC",
            "-shared",
            f"-Wl,-soname,{_LIBRARIES[name]}",
            *flags,
        ]
        if without:
            command.append(f"-Wl,--version-script={hidden}")
        source = str(_SOURCES / f"{name}.c")
        subprocess.run([*command, "-o", str(folder / _LIBRARIES[name]), source], check=True)
    return folder


READY = """
import pynvml
from pytest_gpuenergy.commands.doctor import check_gpus
from pytest_gpuenergy.control import enforced_setpoint
from pytest_gpuenergy.devices import find_gpus
from pytest_gpuenergy.energy import choose_source
from pytest_gpuenergy.fleet.probe import probe_host
from pytest_gpuenergy.opening import nvml_gpu
"""


@dataclass(frozen=True)
class Driver:
    """Libraries of a driver, and programs that load them.

    Attributes:
        folder: the folder with the libraries.
        python: a Python that loads libraries from the folder that a program begins in.
    """

    folder: Path
    python: ForkedPython

    def run(self, code: str, *words: str, **stub: str) -> str:
        """Return the output of a program, with what ``stub`` says of the driver: ``STUB_NAME``."""
        given = {name: value for name, value in os.environ.items() if "CUDA_VISIBLE" not in name}
        environment = {**given, **stub}
        done = self.python.run(code, *words, folder=self.folder, environment=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def value(self, code: str, **stub: str) -> Any:
        """Return what a snippet, which assigns to ``found``, finds.

        The snippet has ``nvml`` and ``gpu``, the first one as `NvmlGpu`.
        """
        return json.loads(self.run("\n".join([BEGINNING, code, ENDING]), **stub))


BEGINNING = """
import json
from pytest_gpuenergy.devices import find_gpus
from pytest_gpuenergy.opening import nvml_gpu
nvml, gpus = find_gpus()
gpu = nvml_gpu(nvml, gpus[0].uuid)
"""
ENDING = "print(json.dumps(found))"
