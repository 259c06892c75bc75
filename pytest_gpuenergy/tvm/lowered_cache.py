"""Lowered kernels on disk, by what they were lowered from. JSON: data, never code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_gpuenergy.kernels.kernel import Kernel, Launch
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.files import keep_for_later
from pytest_gpuenergy.workloads.workload import Tensor

_FORMAT = 2
"""Raised when texts that were kept before must not be used again."""


class LoweredCache:
    """Kernels by the hash of what they were lowered from and by TVM's version.

    Args:
        folder: where the entries are; it exists.
        tvm: TVM's version; None when it is not installed, where an entry by any version serves.
    """

    def __init__(self, folder: Path, tvm: str | None) -> None:
        self._folder = folder
        self._tvm = tvm

    def get(self, *parts: str) -> Kernel | None:
        """The kernel lowered from ``parts``; None when there is no sound entry."""
        for path in self._paths(_key(parts)):
            try:
                return _decode(json.loads(path.read_bytes()))
            except (OSError, ValueError, TypeError, KeyError, InputError, RecursionError):
                continue  # a missing or damaged entry is made again
        return None

    def put(self, kernel: Kernel, *parts: str) -> None:
        """Keep ``kernel``, without its origin and figures, as lowered from ``parts``."""
        if self._tvm is None:
            return
        keep_for_later(self._path(_key(parts), self._tvm), json.dumps(_encode(kernel)))

    def _paths(self, key: str) -> Iterator[Path]:
        if self._tvm is not None:
            yield self._path(key, self._tvm)
        else:
            yield from sorted(self._folder.glob(f"{key}-*.json"), reverse=True)

    def _path(self, key: str, tvm: str) -> Path:
        return self._folder / f"{key}-{tvm}.json"


def _key(parts: tuple[str, ...]) -> str:
    return hashlib.sha256(json.dumps([_FORMAT, *parts]).encode()).hexdigest()


def _encode(kernel: Kernel) -> dict[str, Any]:
    return {
        "source": kernel.source,
        "launches": [asdict(launch) for launch in kernel.launches],
        "workspaces": [asdict(space) for space in kernel.workspaces],
        "digest": kernel.digest,
    }


def _decode(value: dict[str, Any]) -> Kernel:
    launches = [
        Launch(
            entry=str(launch["entry"]),
            grid=tuple(launch["grid"]),
            block=tuple(launch["block"]),
            arguments=tuple(map(str, launch["arguments"])),
            shared_bytes=launch["shared_bytes"],
        )
        for launch in value["launches"]
    ]
    workspaces = [
        Tensor(space["name"], tuple(space["shape"]), space["dtype"], "workspace")
        for space in value["workspaces"]
    ]
    kernel = Kernel(value["source"], tuple(launches), workspaces=tuple(workspaces))
    if kernel.digest != value["digest"]:
        raise ValueError("damaged")
    return kernel
