"""Stand-ins for NVIDIA's driver libraries, written in C, which the real binding loads."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

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


def run_with(
    driver: Path, *words: str, stub: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with the driver and with what ``stub`` says of it, such as ``STUB_NAME``."""
    environment = {
        **{name: value for name, value in os.environ.items() if "CUDA_VISIBLE" not in name},
        "LD_LIBRARY_PATH": str(driver),
        **(stub or {}),
    }
    return subprocess.run(
        [sys.executable, *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def value_with(driver: Path, code: str, **stub: str) -> Any:
    """What a snippet, which assigns to ``found``, finds in a child; it must not fail.

    The snippet has ``nvml`` and ``gpu``, the first one as `NvmlGpu`.
    """
    lines = (
        "import json",
        "from pytest_gpuenergy.devices import find_gpus",
        "from pytest_gpuenergy.opening import nvml_gpu",
        "nvml, gpus = find_gpus()",
        "gpu = nvml_gpu(nvml, gpus[0].uuid)",
        code,
        "print(json.dumps(found))",
    )
    done = run_with(driver, "-c", "\n".join(lines), stub=stub)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
