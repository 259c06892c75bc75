"""What the host run of a kernel counted, remembered on disk by the kernel's content."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pytest_gpuenergy.devices.emulated.model import Traffic
from pytest_gpuenergy.kernels.kernel import Kernel

_NAMES = tuple(field.name for field in fields(Traffic))


class TrafficCache:
    """A folder with one JSON file per kernel. A damaged file counts as none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, kernel: Kernel) -> tuple[Traffic, ...] | None:
        """One entry per launch, if the kernel's traffic is known."""
        try:
            entries = json.loads(self._path(kernel).read_bytes())
            known = tuple(Traffic(**{name: float(e[name]) for name in _NAMES}) for e in entries)
        except (OSError, ValueError, TypeError, LookupError):
            return None
        return known if len(known) == len(kernel.launches) else None

    def put(self, kernel: Kernel, profile: Any) -> tuple[Traffic, ...]:
        """Remember an `AccessProfile`, or anything with such ``launches``."""
        traffic = tuple(
            Traffic(**{name: float(getattr(launch, name)) for name in _NAMES})
            for launch in profile.launches
        )
        path = self._path(kernel)
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps([asdict(entry) for entry in traffic]))
        scratch.replace(path)
        return traffic

    def _path(self, kernel: Kernel) -> Path:
        return self._folder / f"{kernel.digest}.json"
