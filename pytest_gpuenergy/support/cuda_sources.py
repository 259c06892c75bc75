"""Where the CUDA C++ sources are."""

from __future__ import annotations

from pathlib import Path

from pytest_gpuenergy.support.errors import DeviceError
from pytest_gpuenergy.support.files import is_file


def cuda_dir() -> Path:
    """``<checkout>/cuda`` in a checkout; ``pytest_gpuenergy/_cuda`` in an installed wheel.

    Raises:
        DeviceError: neither exists.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "cuda", package / "_cuda"):
        if is_file(folder / "host" / "kernel.h"):
            return folder
    raise DeviceError(f"The CUDA sources beside {package} are missing: reinstall pytest-gpuenergy.")
