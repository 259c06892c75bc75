"""What compilers share: child processes that compile in parallel, each kernel once."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

from pytest_gpuenergy.kernels import AnyKernel
from pytest_gpuenergy.support import (
    WITHOUT_GPU,
    KernelFault,
    WorkerDiedError,
    WorkerPool,
    WorkerTimeoutError,
)

_FIRST_SPECIFIC = 90
_Source = TypeVar("_Source", bound=AnyKernel)
_Compiled = TypeVar("_Compiled")


@dataclass(frozen=True)
class Binary:
    """Machine code in a file, and the symbol of each entry; a host program has no entries."""

    path: Path
    symbols: dict[str, str]


class Compilers(ABC, Generic[_Source, _Compiled]):
    """Compiles kernels in parallel child processes, each kernel once.

    Args:
        factory: of the object in each child that compiles; see `Worker`.
        processes: the maximum number of children; None: one for each core, up to 16.
        timeout_s: of compiling one kernel.
    """

    def __init__(
        self, factory: str, processes: int | None = None, *, timeout_s: float = 300.0
    ) -> None:
        self._timeout_s = timeout_s
        size = processes or min(16, len(os.sched_getaffinity(0)))
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="compiler")
        self._workers = WorkerPool(factory, size=size, environment=WITHOUT_GPU)
        self._pending: dict[str, Future[_Compiled]] = {}
        self._lock = Lock()

    def submit(self, kernel: _Source) -> Future[_Compiled]:
        """Start compiling; the future holds the result or the KernelFault."""
        key = self._key(kernel)
        with self._lock:
            future = self._pending.get(key)
            if future is None:
                future = self._threads.submit(self._compile, kernel)
                self._pending[key] = future
        return future

    def close(self) -> None:
        """End the child processes. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._workers.close()

    def _key(self, kernel: _Source) -> str:
        """Kernels of equal keys are compiled once."""
        return kernel.digest

    @abstractmethod
    def _compile(self, kernel: _Source) -> _Compiled:
        """Take the result from the cache, or have a child compile it."""

    def _call(self, method: str, *arguments: object) -> object:
        with suppress(WorkerDiedError):  # a child may die of what is not the kernel's fault
            return self._answer(method, *arguments)
        try:
            return self._answer(method, *arguments)
        except WorkerDiedError as error:
            raise KernelFault("compile", str(error)) from None

    def _answer(self, method: str, *arguments: object) -> object:
        try:
            return self._workers.call(method, *arguments, timeout_s=self._timeout_s)
        except WorkerTimeoutError as error:
            raise KernelFault("compile", str(error)) from None


def specific(architecture: str) -> str:
    """The architecture with instructions that later ones lack, from Hopper's (``wgmma``) on.

    Machine code is compiled for one card anyway.
    """
    number = int(architecture.removeprefix("sm_"))
    return f"{architecture}a" if number >= _FIRST_SPECIFIC else architecture
