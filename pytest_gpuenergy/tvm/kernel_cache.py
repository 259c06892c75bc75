"""Kernels cached on disk under what they were lowered from. JSON: data, never code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import FormError, InputError, decode, encode, keep_for_later
from pytest_gpuenergy.workloads import Tensor

_FORMAT = 2
"""Incremented when texts that were cached before must not be used any more."""


class KernelCache:
    """Kernels by TVM's version and the hash of what they were lowered from.

    Args:
        folder: of the entries; it exists.
        tvm: TVM's version; None if it is not installed, in which case an entry of any version is
            used.
    """

    def __init__(self, folder: Path, tvm: str | None) -> None:
        self._folder = folder
        self._tvm = tvm

    def get(self, *parts: str) -> Kernel | None:
        """The kernel lowered from ``parts``; None if there is no valid entry."""
        for path in self._paths(_key(parts)):
            try:
                return _decode(path.read_bytes())
            except (OSError, FormError, InputError):
                continue  # a missing or damaged entry is made again
        return None

    def put(self, kernel: Kernel, *parts: str) -> None:
        """Store ``kernel``, lowered from ``parts``, without its origin and figures."""
        if self._tvm is None:
            return
        keep_for_later(self._path(_key(parts), self._tvm), _encode(kernel))

    def _paths(self, key: str) -> Iterator[Path]:
        if self._tvm is not None:
            yield self._path(key, self._tvm)
        else:
            yield from sorted(self._folder.glob(f"{key}-*.json"), reverse=True)

    def _path(self, key: str, tvm: str) -> Path:
        return self._folder / f"{key}-{tvm}.json"


def _key(parts: tuple[str, ...]) -> str:
    return hashlib.sha256(json.dumps([_FORMAT, *parts]).encode()).hexdigest()


class _Entry(Struct, frozen=True):
    source: str
    launches: tuple[Launch, ...]
    workspaces: tuple[Tensor, ...]
    digest: str


def _encode(kernel: Kernel) -> bytes:
    return encode(_Entry(kernel.source, kernel.launches, kernel.workspaces, kernel.digest))


def _decode(content: bytes) -> Kernel:
    entry = decode(content, _Entry)
    kernel = Kernel(entry.source, entry.launches, workspaces=entry.workspaces)
    if kernel.digest != entry.digest:
        raise FormError("it is damaged")
    return kernel
