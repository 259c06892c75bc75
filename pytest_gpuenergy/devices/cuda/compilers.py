"""The base class of compilers: child processes that compile in parallel, each kernel once."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

from pytest_gpuenergy.support import (
    WITHOUT_GPU,
    KernelFault,
    WorkerDiedError,
    WorkerPool,
    WorkerTimeoutError,
)

_FIRST_SPECIFIC = 90
"""The first architecture (Hopper) with instructions that later ones lack."""
_Source = TypeVar("_Source")
_Compiled = TypeVar("_Compiled")


@dataclass(frozen=True)
class Binary:
    """A compiled kernel.

    Attributes:
        path: the file with the machine code.
        symbols: the symbol of each entry; empty for a host program.
    """

    path: Path
    symbols: dict[str, str]


class Compilers(ABC, Generic[_Source, _Compiled]):
    """Compiles sources (kernels or jobs) in parallel child processes, each source once.

    The object that compiles in a child is made by ``factory``, see `Worker`. By default there is a
    child for each core, up to 16.
    """

    def __init__(
        self,
        factory: str,
        *arguments: object,
        processes: int | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        self._timeout_s = timeout_s
        size = processes or min(16, len(os.sched_getaffinity(0)))
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="compiler")
        self._workers = WorkerPool(factory, *arguments, size=size, environment=WITHOUT_GPU)
        self._pending: dict[object, Future[_Compiled]] = {}
        self._lock = Lock()

    def begin(self) -> None:
        """Start all child processes, without waiting for them; before the first source only."""
        with self._lock:
            if not self._pending:
                self._workers.start()

    def submit(self, source: _Source) -> Future[_Compiled]:
        """Start compiling; the future holds the result or the KernelFault."""
        key = self._key(source)
        with self._lock:
            future = self._pending.get(key)
            if future is None:
                future = self._threads.submit(self._compile, source)
                self._pending[key] = future
        return future

    def close(self) -> None:
        """End the child processes. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._workers.close()

    @abstractmethod
    def _key(self, source: _Source) -> object:
        """Return a key; sources with equal keys are compiled once."""

    @abstractmethod
    def _compile(self, source: _Source) -> _Compiled:
        """Take the result from the cache, or have a child compile it."""

    def _call(self, method: str, *arguments: object) -> object:
        """Call a method of a child's object; once more if the child dies, perhaps for another."""
        try:
            with suppress(WorkerDiedError):
                return self._workers.call(method, *arguments, timeout_s=self._timeout_s)
            return self._workers.call(method, *arguments, timeout_s=self._timeout_s)
        except (WorkerDiedError, WorkerTimeoutError) as error:
            raise KernelFault("compile", str(error)) from None


def specific_architecture(architecture: str) -> str:
    """Return the architecture name that allows instructions which later ones lack (``wgmma``).

    Machine code is compiled for a single card anyway.
    """
    number = int(architecture.removeprefix("sm_"))
    return f"{architecture}a" if number >= _FIRST_SPECIFIC else architecture
