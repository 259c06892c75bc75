"""What we use of CuPy and Triton beyond their public interfaces."""

from __future__ import annotations

import threading
from contextlib import suppress
from importlib import import_module
from typing import Any


class PlainReductions:
    """While anybody is inside, in whichever thread, CuPy's reductions do not use CUB's headers.

    With them, a reduction takes more than two seconds to compile when a machine first uses it: on
    an H100, six of them made up 13 of the 19 s of a first verification. Without, it takes 0.1 s.
    ``CUPY_ACCELERATORS`` would set the same for all that the process does with CuPy.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before: list[Any] = []

    def __enter__(self) -> None:
        import cupy

        with self._lock:
            if not self._inside:
                self._before = cupy._core.get_reduction_accelerators()
                cupy._core.set_reduction_accelerators([])
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        import cupy

        with self._lock:
            self._inside -= 1
            if not self._inside:
                cupy._core.set_reduction_accelerators(self._before)


PLAIN_REDUCTIONS = PlainReductions()
"""CuPy's setting is the process's, and so is this."""


def hash_triton() -> None:
    """Have Triton hash its own files, which it remembers for the life of the process.

    It does so anyway when it first compiles: hundreds of megabytes. Where a version of Triton keeps
    the function elsewhere, nothing happens here.
    """
    for module in ("triton.runtime.cache", "triton.compiler.compiler"):
        with suppress(Exception):
            import_module(module).triton_key()
            return
