"""The store of kernels: TVM lowers them from records in child processes; they are cached on disk.

Cached kernels are JSON: data, never code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from msgspec import Struct

from pytest_gpuenergy.kernels import Kernel, Launch, Origin
from pytest_gpuenergy.support import (
    WITHOUT_GPU,
    FormError,
    InputError,
    KernelFault,
    UnavailableError,
    WorkerDiedError,
    WorkerPool,
    WorkerTimeoutError,
    cache_dir,
    decode,
    encode,
    keep_for_later,
)
from pytest_gpuenergy.tuners.tvm.database import METASCHEDULE, Database, DatabaseRecord
from pytest_gpuenergy.tuners.tvm.tvm_requirements import INSTALL, crash_hint, installed_tvm
from pytest_gpuenergy.tuning import RecordFile
from pytest_gpuenergy.workloads import Tensor, Workload

_FORMAT = 2
"""The version of entries; it changes when texts that were cached before must not be used."""


class KernelCache:
    """A cache of kernels by TVM's version and the hash of what they were lowered from.

    Args:
        folder: the folder of the entries, which exists.
        tvm: TVM's version. None if it is not installed; entries of any version are used then.
    """

    def __init__(self, folder: Path, tvm: str | None) -> None:
        self._folder = folder
        self._tvm = tvm

    def get(self, *parts: str) -> Kernel | None:
        """Return the kernel lowered from ``parts``; None if there is no valid entry."""
        key = _key(parts)
        if self._tvm is not None:
            paths = [self._path(key, self._tvm)]
        else:
            paths = sorted(self._folder.glob(f"{key}-*.json"), reverse=True)
        for path in paths:
            try:
                entry = decode(path.read_bytes(), _StoredKernel)
                kernel = Kernel(entry.source, entry.launches, workspaces=entry.workspaces)
                if kernel.digest == entry.digest:
                    return kernel
            except (OSError, FormError, InputError):
                continue  # a missing or damaged entry is made again
        return None

    def put(self, kernel: Kernel, *parts: str) -> None:
        """Store ``kernel``, lowered from ``parts``, without its origin and figures."""
        if self._tvm is None:
            return
        entry = _StoredKernel(kernel.source, kernel.launches, kernel.workspaces, kernel.digest)
        keep_for_later(self._path(_key(parts), self._tvm), encode(entry))

    def _path(self, key: str, tvm: str) -> Path:
        return self._folder / f"{key}-{tvm}.json"


def _key(parts: tuple[str, ...]) -> str:
    return hashlib.sha256(json.dumps([_FORMAT, *parts]).encode()).hexdigest()


class _StoredKernel(Struct, frozen=True):
    source: str
    launches: tuple[Launch, ...]
    workspaces: tuple[Tensor, ...]
    digest: str


_TIMEOUT_S = 120.0


class TvmCrashError(InputError):
    """TVM crashed: the record is bad, or the installed TVM and its FFI do not work together."""


class KernelStore:
    """Makes the kernels of record files and databases; a context manager.

    A kernel that was lowered before is read from disk and needs neither TVM nor a process. The
    store may be used from several threads.

    Args:
        processes: the number of kernels that may be lowered at the same time.
    """

    def __init__(self, processes: int = 1) -> None:
        self._tvm = installed_tvm()
        self._cache = KernelCache(cache_dir("lowered"), self._tvm)
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="lower")
        self._workers = WorkerPool(
            "pytest_gpuenergy.tuners.tvm.lower:Lowerer", size=processes, environment=WITHOUT_GPU
        )

    def kernels(self, file: RecordFile, ranks: Sequence[int]) -> list[Kernel]:
        """Return the kernels of ``ranks``, in that order; see `kernel`."""
        return [self.kernel(file, rank) for rank in ranks]

    def kernel(self, file: RecordFile, rank: int) -> Kernel:
        """Return the kernel of one rank, with its origin and its measured figures.

        Raises:
            UnavailableError: TVM is needed and missing.
            InputError: there is no such rank, or TVM crashes on this record.
            KernelFault: the record does not apply to its workload or cannot be lowered.
        """
        record = file.record(rank)
        name = f"{file.workload.name} kernel {rank}"
        parts = (file.workload.signature, record.recipe)
        kernel = self._cache.get(*parts)
        if kernel is None:
            kernel = self._lower(name, "lower", file.workload, record.recipe)
            self._cache.put(kernel, *parts)
        return file.named(kernel, rank)

    def lower(self, workload: Workload, record: str) -> Future[Kernel]:
        """Start to lower a MetaSchedule record (JSON text) of a search; it is not cached on disk.

        The future holds the kernel, or a KernelFault if the record cannot be lowered or crashes
        TVM.
        """

        def lower() -> Kernel:
            try:
                return self._lower("The schedule", "lower", workload, record)
            except TvmCrashError as error:
                raise KernelFault("compile", str(error)) from None

        return self._threads.submit(lower)

    def database_kernel(
        self, database: Database, record: DatabaseRecord, workload: Workload | None = None
    ) -> Kernel:
        """Return the kernel of a raw database's record, lowered from the workload stored beside it.

        Args:
            database: the database that contains the record.
            record: a record that did not fail.
            workload: a workload after whose tensors the arguments are named, by position. None
                keeps the names of the stored workload's buffers.

        Raises:
            InputError: the trial failed; the database has no workloads; TVM is missing or crashes.
            KernelFault: the stored workload has other tensors, or the record cannot be lowered.
        """
        name = f"line {record.line} of {database.path}"
        if record.failed:
            raise InputError(f"The trial in {name} failed and has no kernel: choose another one.")
        if record.workload_index >= len(database.workloads):
            raise InputError(
                f"The workload of {name} is missing: put database_workload.json beside it."
            )
        stored = database.workloads[record.workload_index]
        tensors = None if workload is None else workload.tensors
        signature = [(t.name, t.shape, t.dtype) for t in tensors or ()]
        parts = ("stored", stored, record.text, json.dumps(signature))
        kernel = self._cache.get(*parts)
        if kernel is None:
            kernel = self._lower(name, "lower_stored", stored, record.text, tensors)
            self._cache.put(kernel, *parts)
        details: dict[str, str | int | float] = {
            "database": str(database.path),
            "line": record.line,
        }
        return replace(kernel, origin=Origin(METASCHEDULE.tuner, None, details))

    def close(self) -> None:
        """End the child processes. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._workers.close()

    def __enter__(self) -> KernelStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lower(self, name: str, method: str, *arguments: object) -> Kernel:
        if self._tvm is None:
            raise UnavailableError(
                f"Making {name} from its record needs Apache TVM, which is not installed: {INSTALL}"
            )
        try:
            kernel: Kernel = self._workers.call(method, *arguments, timeout_s=_TIMEOUT_S)
        except KernelFault as fault:
            raise KernelFault(fault.outcome, f"{name}: {fault}") from None
        except WorkerTimeoutError:
            raise KernelFault(
                "compile", f"{name}: TVM did not lower the record within {_TIMEOUT_S:g} s."
            ) from None
        except WorkerDiedError as error:
            raise TvmCrashError(
                f"TVM ended its process while making {name} ({str(error).rstrip('.')}); "
                f"{crash_hint()}"
            ) from None
        return kernel
