"""Compiles Triton functions ahead, without a GPU, into the cache that Triton has on disk.

The process that runs a function compiles it, and finds there what was compiled ahead. What becomes
of a function here is therefore of no consequence: it is tried again where it runs.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from threading import Lock

from pytest_gpuenergy.devices.cuda._compat import compile_for, hash_triton
from pytest_gpuenergy.devices.cuda.binders import triton_machine_code
from pytest_gpuenergy.kernels import Job
from pytest_gpuenergy.support import WITHOUT_GPU, WorkerPool

_PROCESSES = 4
_TIMEOUT_S = 300.0


class TritonCompiler:
    """The child's side. It imports Triton once, and forks for each function.

    So a module is executed in a process that no other one has changed, as where it runs.

    Args:
        architecture: such as ``sm_90``.
    """

    def __init__(self, architecture: str) -> None:
        for name in ("torch", "triton"):
            import_module(name)
        hash_triton()
        compile_for(int(architecture.removeprefix("sm_")))

    def compile(self, job: Job) -> bool:
        """Whether a job's function compiles."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                triton_machine_code(job)
                code = 0
            finally:
                os._exit(code)  # whatever was raised: nobody waits for it here
        return os.waitpid(child, 0)[1] == 0


class TritonCompilers:
    """Children that compile in parallel, each function once for the same types and scalars.

    Args:
        architecture: such as ``sm_90``.
        factory: see `Worker`.
    """

    def __init__(self, architecture: str, factory: str = f"{__name__}:TritonCompiler") -> None:
        size = min(_PROCESSES, len(os.sched_getaffinity(0)))
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="triton")
        self._workers = WorkerPool(factory, architecture, size=size, environment=WITHOUT_GPU)
        self._pending: dict[object, Future[bool]] = {}
        self._lock = Lock()

    def submit(self, job: Job) -> None:
        """Start compiling, unless that was done before."""
        with self._lock:
            key = _key(job)
            if key not in self._pending:
                self._pending[key] = self._threads.submit(self._compile, job)

    def wait(self, job: Job) -> None:
        """Wait until a job's function has been compiled, if that can be."""
        self.submit(job)
        self._pending[_key(job)].result()

    def close(self) -> None:
        """End the children. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._workers.close()

    def _compile(self, job: Job) -> bool:
        with suppress(Exception):  # without Triton, for example
            return bool(self._workers.call("compile", job, timeout_s=_TIMEOUT_S))
        return False


def _key(job: Job) -> object:
    types = tuple((one.name, one.dtype) for one in job.io.tensors)
    scalars = tuple((one.name, one.dtype, one.value) for one in job.io.scalars)
    return job.kernel.digest, types, scalars
