"""The compilers of a device, one for each kind of kernel that is compiled ahead."""

from __future__ import annotations

import os
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from threading import Lock
from typing import Any, TypeVar

from pytest_gpuenergy.devices.cuda._compat import compile_for, hash_triton
from pytest_gpuenergy.devices.cuda.binders import triton_machine_code
from pytest_gpuenergy.devices.cuda.compilers import Binary, Compilers, specific_architecture
from pytest_gpuenergy.devices.cuda.nvcc import NvccCompilers, find_nvcc, nvcc_version
from pytest_gpuenergy.devices.cuda.nvrtc import NvrtcCompilers
from pytest_gpuenergy.kernels import AnyKernel, CudaProgram, Job, Kernel, TritonKernel
from pytest_gpuenergy.support import compiled_dir

_Pool = TypeVar("_Pool", bound=Compilers[Any, Any])

_MAX_TRITON_PROCESSES = 4
"""The largest number of processes that compile Triton functions: each imports PyTorch."""


class CompilerPools:
    """NVRTC for CUDA text, nvcc for host programs, and Triton, each started at its first use."""

    def __init__(self, architecture: str) -> None:
        self._plain, self._architecture = architecture, specific_architecture(architecture)
        self._pools: dict[type[Any], Any] = {}
        self._starting = Lock()  # another thread may ask for a listing

    def begin(self) -> None:
        """Start all processes that compile CUDA text, unless one has been used already."""
        self._nvrtc.begin()

    def submit(self, kernel: AnyKernel) -> Future[Binary] | None:
        """Start compiling; return None for a kernel that the worker prepares itself."""
        if isinstance(kernel, Kernel):
            return self._nvrtc.submit(kernel)
        if isinstance(kernel, CudaProgram):
            folder = compiled_dir("programs")
            return self._pool(NvccCompilers, self._architecture, folder).submit(kernel)
        return None

    def submit_job(self, job: Job) -> None:
        """Start compiling a job's kernel, also one that is compiled for types."""
        if isinstance(job.kernel, TritonKernel):
            self._pool(TritonCompilers, self._plain).submit(job)
        else:
            self.submit(job.kernel)

    def wait_for(self, job: Job) -> None:
        """Wait until a job's Triton function has been compiled ahead."""
        if isinstance(job.kernel, TritonKernel):
            self._pool(TritonCompilers, self._plain).submit(job).result()

    def ptx(self, kernel: Kernel) -> str:
        """Return the PTX of a kernel of CUDA text.

        Raises:
            KernelFault: it does not compile.
        """
        return self._nvrtc.ptx(kernel)

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the compilers that are installed."""
        nvcc = find_nvcc()
        version = nvcc_version(nvcc) if nvcc else ""
        return {"nvrtc": self._nvrtc.version, **({"nvcc": version} if version else {})}

    def close(self) -> None:
        """End the child processes. Idempotent."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    @property
    def _nvrtc(self) -> NvrtcCompilers:
        return self._pool(NvrtcCompilers, self._architecture, compiled_dir("cubin"))

    def _pool(self, kind: type[_Pool], *arguments: Any) -> _Pool:
        with self._starting:
            if kind not in self._pools:
                self._pools[kind] = kind(*arguments)
            pool: _Pool = self._pools[kind]
            return pool


class TritonCompiler:
    """Compiles Triton functions in a child process, which imports Triton once and then forks.

    Each module is thus executed in a process that no other module has changed, as it is where the
    function runs.
    """

    def __init__(self, architecture: str) -> None:
        for name in ("torch", "triton"):
            import_module(name)
        hash_triton()
        compile_for(int(architecture.removeprefix("sm_")))

    def compile(self, job: Job) -> bool:
        """Return whether a job's function compiles."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                triton_machine_code(job)
                code = 0
            finally:
                os._exit(code)  # also after an exception, which is reported where the job runs
        return os.waitpid(child, 0)[1] == 0


class TritonCompilers(Compilers[Job, bool]):
    """Compiles Triton functions without a GPU into the cache that Triton keeps on disk.

    The process that runs a function compiles it too, and finds the result in that cache. A fault
    here therefore has no consequence: it is raised where the function runs.

    Args:
        architecture: the GPU's architecture, such as ``sm_90``.
    """

    def __init__(self, architecture: str) -> None:
        processes = min(_MAX_TRITON_PROCESSES, len(os.sched_getaffinity(0)))
        super().__init__(f"{__name__}:TritonCompiler", architecture, processes=processes)

    def _key(self, source: Job) -> object:
        types = tuple((tensor.name, tensor.dtype) for tensor in source.io.tensors)
        scalars = tuple((scalar.name, scalar.dtype, scalar.value) for scalar in source.io.scalars)
        return source.kernel.digest, types, scalars

    def _compile(self, source: Job) -> bool:
        with suppress(Exception):  # for example if Triton is missing
            return bool(self._call("compile", source))
        return False
