"""The folder of a search's raw results: whose search it is, and that it can be continued."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.errors import InputError
from pytest_gpuenergy.kernels.database import RECORD_FILE
from pytest_gpuenergy.kernels.json_input import FormError, parse, read_bytes
from pytest_gpuenergy.workloads.conv2d import Conv2d

IDENTITY_FILE = "search.json"
_LARGEST_BYTES = 1 << 20


def gpu_name(device: Device) -> str:
    """The device's name for record files; an emulated one is called so."""
    return f"{device.name} (emulated)" if device.emulated else device.name


def open_raw(folder: Path, workload: Conv2d, device: Device) -> Path:
    """Create ``folder`` for a search, or get ready to continue the one it holds.

    Raises:
        InputError: the folder holds a search of something else or on another GPU, or cannot be
            written.
    """
    identity = {
        "workload": {"name": workload.name, **asdict(workload.shape)},
        "gpu": gpu_name(device),
        "architecture": device.architecture,
    }
    path = folder / IDENTITY_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _check(path, identity)
            _drop_torn_line(folder / RECORD_FILE)
        else:
            path.write_text(json.dumps(identity, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{error.filename} cannot be written: {error.strerror}.") from None
    return folder


def _check(path: Path, identity: dict[str, Any]) -> None:
    try:
        found = parse(read_bytes(path, "description of a search", _LARGEST_BYTES))
    except FormError as error:
        raise InputError(
            f"{path} cannot be used, because {error}: name another folder with --out."
        ) from None
    if found != identity:
        raise InputError(
            f"{path.parent} holds another search than one of {identity['workload']['name']} on "
            f"{identity['gpu']}: name another folder with --out."
        )


def _drop_torn_line(path: Path) -> None:
    # A search that was killed may have left half a line, which TVM would not read.
    if not path.exists():
        return
    with path.open("rb+") as stream:
        content = stream.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            stream.truncate(whole)
