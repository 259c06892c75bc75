"""Checks that this machine has enough memory left for what is about to be computed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from pytest_gpuenergy.support.errors import InputError

_TABLE = Path("/proc/meminfo")
_ROW = re.compile(r"^(MemAvailable|SwapFree): +([0-9]+) kB$", re.MULTILINE)
_SMALL = 1 << 28
"""Bytes below which the memory that is left is not checked."""


@contextlib.contextmanager
def enough_memory(what: str, least_bytes: int) -> Iterator[None]:
    """Run a block that needs at least ``least_bytes`` of memory.

    The system does not refuse memory that it does not have; it kills this process or another one
    once that memory is used.

    Args:
        what: the subject of the message, such as ``The reference of NAME``.
        least_bytes: what the block needs at least.

    Raises:
        InputError: there is not enough memory.
    """
    if least_bytes >= _SMALL and (left := available_bytes()) is not None and least_bytes > left:
        raise InputError(
            f"{what} needs at least {least_bytes / 2**30:.1f} GiB of this machine's memory, which "
            f"has {left / 2**30:.1f} GiB left: choose smaller sizes."
        )
    try:
        yield
    except MemoryError:
        raise InputError(
            f"{what} needs more memory than this machine has left: choose smaller sizes."
        ) from None


def available_bytes() -> int | None:
    """Return the memory that is left, swap included; None where the kernel does not report it."""
    try:
        found = dict(_ROW.findall(_TABLE.read_text(encoding="ascii")))
    except (OSError, UnicodeDecodeError):
        return None
    return sum(int(kib) << 10 for kib in found.values()) if "MemAvailable" in found else None
