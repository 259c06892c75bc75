"""Records the identity of a run: its host, its device and the versions of its software."""

from __future__ import annotations

import contextlib
import functools
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pytest_gpuenergy.control import read_limits
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.record import RunInfo
from pytest_gpuenergy.support import DeviceError, host_name, run_captured

_RECORDED = (
    "pytest-gpuenergy",
    "pytest",
    "numpy",
    "nvidia-ml-py",
    "apache-tvm",
    "torch",
    "triton",
    "nvmath-python",
    "nvidia-cublas-cu12",
    "nvidia-cublas",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
    "deep_gemm",
)
"""Packages whose versions are recorded."""

_GIT_TIMEOUT_S = 10


def run_info(
    device: Device,
    run_id: str,
    options: Mapping[str, str],
    *,
    git_revision: str | None,
    cap_table_w: Sequence[float] = (),
) -> RunInfo:
    """Return the identity of a run that starts now on ``device``.

    Args:
        device: the device, opened and claimed by the caller.
        run_id: a unique ID that is usable as a folder name.
        options: the options that affect what is measured.
        git_revision: see `git_revision_of`.
        cap_table_w: the card's cap table, if the run measures under one of its caps.

    Raises:
        DeviceError: the device does not respond.
    """
    limits_w: dict[str, float] = {}
    with contextlib.suppress(DeviceError):
        read = read_limits(device)
        limits_w = {"min": read.min_w, "max": read.max_w, "at_start": read.current_w}
    return RunInfo(
        run_id=run_id,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        host=host_name(emulated=device.emulated),
        gpu_name=device.name,
        gpu_uuid=device.uuid,
        architecture=device.architecture,
        emulated=device.emulated,
        power_limits_w=limits_w,
        software=software(device),
        options=dict(options),
        git_revision=git_revision,
        cap_table_w=tuple(cap_table_w),
    )


def software(device: Device) -> dict[str, str]:
    """Return the versions of the packages, driver, runtime and compilers that a run depends on.

    Raises:
        DeviceError: the device does not respond.
    """
    return {**_packages(), **device.describe()}


@functools.cache
def _packages() -> dict[str, str]:
    """Return the versions of this process's Python and packages, which take 5 ms to look up."""
    versions = {"python": platform.python_version(), "system": platform.platform()}
    for name in _RECORDED:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def git_revision_of(folder: Path) -> str | None:
    """Return the commit checked out in ``folder``, ``-dirty`` if modified; None without git."""
    try:
        command = ("git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")
        answer = run_captured(command, folder=folder, timeout_s=_GIT_TIMEOUT_S)
        answer.check_returncode()
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
