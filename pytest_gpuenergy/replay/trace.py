"""Reads and writes traces of PyTorch's profiler: JSON events in Chrome's format, as Kineto does."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Hashable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct, field

from pytest_gpuenergy.support import (
    FormError,
    InputError,
    ReportError,
    decode,
    is_file,
    read_unpacked,
    written_atomically,
)

_LARGEST_BYTES = 1 << 31
_TAIL_BYTES = 64
_LONGEST_US = 1e17
"""Microseconds of three thousand years."""

_KINDS = {"memcpy": "copy", "memset": "set"}
"""What older profilers call ``gpu_memcpy`` and ``gpu_memset``."""


class Event(Struct, frozen=True):
    """One event of a trace; times are in microseconds. What a trace leaves out has no value here.

    Attributes:
        ph: its phase in Chrome's format: ``X`` for one that lasts.
    """

    ph: str = ""
    cat: str | None = None
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str | None = None
    tid: int | str | None = None
    args: dict[str, Any] | None = None

    @property
    def category(self) -> str:
        """In today's words: ``kernel``, ``copy``, ``set``, ``call``, ``operator``, ``annotation``.

        Any other is as it stands in the trace, in lower case.
        """
        found = (self.cat or "").lower()
        if found in ("cuda_runtime", "cuda_driver", "runtime", "driver"):
            return "call"
        if found in ("cpu_op", "operator"):
            return "operator"
        if found == "user_annotation":
            return "annotation"
        found = found.removeprefix("gpu_")
        return _KINDS.get(found, found)

    @property
    def end(self) -> float:
        """In microseconds."""
        return self.ts + self.dur

    @property
    def thread(self) -> Hashable:
        """The thread of the host that it ran on."""
        return self.pid, self.tid

    def arg(self, *names: str) -> Any:
        """The first of these arguments that the trace has; None without any."""
        values = self.args or {}
        return next((values[name] for name in names if name in values), None)


class _Document(Struct):
    events: list[Event] = field(name="traceEvents")


def read_trace(path: Path) -> list[Event]:
    """The events of a trace that last, in order of their beginning, longest first.

    Args:
        path: JSON, or compressed JSON ending in ``.gz`` or ``.xz``; an object with ``traceEvents``,
            or a bare list of events.

    Raises:
        InputError: it cannot be read, is truncated, or is not such a trace.
    """
    content = read_unpacked(path, "trace", _LARGEST_BYTES)
    try:
        events = (
            decode(content, list[Event], "the trace")
            if content[:64].lstrip().startswith(b"[")
            else decode(content, _Document, "the trace").events
        )
    except FormError as error:
        raise InputError(
            f"{path} is not a trace of PyTorch's profiler: {error}. Write one with "
            "torch.profiler.profile(...).export_chrome_trace(PATH)."
        ) from None
    lasting = [one for one in events if one.ph == "X" and one.dur >= 0]
    for one in lasting:
        if abs(one.ts) > _LONGEST_US or one.dur > _LONGEST_US:
            raise InputError(
                f"{path} has an event at {one.ts:g} µs that takes {one.dur:g} µs, which is no time "
                "of a clock: write the trace again."
            )
    return sorted(lasting, key=lambda one: (one.ts, -one.dur))


def write_trace(profiler: Any, path: Path) -> None:
    """Write what a profiler has recorded, compressed: completely or not at all.

    Args:
        profiler: PyTorch's, which only logs that it could not write.
        path: of the file, which ends in ``.gz``.

    Raises:
        ReportError, OSError: it cannot be written.
    """
    with TemporaryDirectory(prefix=".gpuenergy-", dir=path.parent) as folder:
        draft = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(draft))
        if not _is_whole(draft):
            raise ReportError(
                f"PyTorch could not write the whole trace to {path.parent}: make room there, and "
                "try again."
            )
        with (
            written_atomically(path) as file,
            gzip.GzipFile(fileobj=file, mode="wb") as packed,
            draft.open("rb") as plain,
        ):
            shutil.copyfileobj(plain, packed)


def _is_whole(path: Path) -> bool:
    """Whether the last character is that of a JSON object."""
    if not is_file(path):
        return False
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return stream.read().rstrip().endswith(b"}")
