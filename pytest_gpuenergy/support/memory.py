"""How much of this machine's memory is left, and a refusal of what needs more."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from pytest_gpuenergy.support.errors import InputError

_TABLE = Path("/proc/meminfo")
_ROW = re.compile(r"^(MemAvailable|SwapFree): +([0-9]+) kB$", re.MULTILINE)
_SMALL = 1 << 28
"""Bytes for which nobody looks how much memory is left."""


@contextlib.contextmanager
def enough_memory(what: str, least_bytes: int) -> Iterator[None]:
    """Do something that takes at least so many bytes of memory.

    If there are fewer, the system would end this process, or another one, instead of refusing.

    Raises:
        InputError: memory does not suffice.
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
    """Memory that processes can still get, swap included; None where the kernel does not tell."""
    try:
        found = dict(_ROW.findall(_TABLE.read_text(encoding="ascii")))
    except (OSError, UnicodeDecodeError):
        return None
    return sum(int(kib) << 10 for kib in found.values()) if "MemAvailable" in found else None
