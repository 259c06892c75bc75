"""The uses of CuPy and Triton beyond their public interfaces."""

from __future__ import annotations

import threading
from contextlib import suppress
from importlib import import_module
from typing import Any


class PlainReductions:
    """A context in which CuPy's reductions do not use CUB; threads may enter it concurrently.

    With CUB's headers, a reduction takes more than two seconds to compile when a machine first uses
    it: on an H100, six reductions took 13 of the 19 s of a first verification. Without, each takes
    0.1 s. ``CUPY_ACCELERATORS`` would change the setting for everything the process does with CuPy.
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
"""The only instance in a process, because CuPy's setting is the process's."""


def hash_triton() -> None:
    """Have Triton hash its own files, hundreds of megabytes, ahead of its first compilation.

    Triton remembers the result for the life of the process. Nothing happens with a version of
    Triton that keeps the function elsewhere.
    """
    for module in ("triton.runtime.cache", "triton.compiler.compiler"):
        with suppress(Exception):
            import_module(module).triton_key()
            return


def compile_for(capability: int) -> None:
    """Let Triton compile for a compute capability, such as 90, without a GPU.

    The entries in Triton's cache get the same keys as on such a GPU.
    """
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    class Target:
        def get_current_target(self) -> Any:
            return GPUTarget("cuda", capability, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, _device: int) -> int:
            return 0

    driver.set_active(Target())
