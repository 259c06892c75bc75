"""CUPTI, the tracing library that PyTorch's profiler uses, at the end of a process."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import re
from pathlib import Path

from pytest_gpuenergy.devices.cuda.driver import wait_for_context

_LIBRARY = re.compile(r"\S+/libcupti\.so[.\d]*$", re.MULTILINE)
"""The path of CUPTI in the list of a process's mappings."""

_ACTIVITY_KINDS = range(1, 100)

_FLUSH_FORCED = 1
"""CUPTI's flag to return also buffers that are not full."""


@functools.cache
def stop_tracing_at_exit() -> None:
    """Have CUPTI, which PyTorch's profiler uses, return its buffers before the process ends.

    CUPTI stays attached when a profile ends, and asks for a buffer when it records something later,
    such as the loading of a kernel. At exit, the profiler's library frees the buffers that it has
    lent. CUPTI, which was loaded earlier and ends later, then writes into them and returns them:
    "double free or corruption".
    """

    def stop() -> None:
        maps = Path("/proc/self/maps")
        with contextlib.suppress(OSError, AttributeError, ValueError):
            for path in sorted(set(_LIBRARY.findall(maps.read_text(errors="replace")))):
                library = ctypes.CDLL(path)
                wait_for_context()
                for kind in _ACTIVITY_KINDS:  # CUPTI ignores kinds that it does not have
                    library.cuptiActivityDisable(kind)
                library.cuptiActivityFlushAll(_FLUSH_FORCED)

    atexit.register(stop)
