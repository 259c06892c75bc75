"""The compilers of a device, by the kinds of kernels that need one."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from threading import Lock

from pytest_gpuenergy.devices.cuda._compat import compile_for, hash_triton
from pytest_gpuenergy.devices.cuda.binders import triton_machine_code
from pytest_gpuenergy.devices.cuda.compilers import Binary, specific
from pytest_gpuenergy.devices.cuda.nvcc import ProgramCompilers, find_nvcc, version_of
from pytest_gpuenergy.devices.cuda.nvrtc import CompilerPool
from pytest_gpuenergy.kernels import AnyKernel, CudaProgram, Job, Kernel, TritonKernel
from pytest_gpuenergy.support import WITHOUT_GPU, WorkerPool, compiled_dir

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


class CompilerPools:
    """NVRTC for CUDA text, nvcc for host programs, and Triton, each started when it is needed."""

    def __init__(self, architecture: str) -> None:
        self._plain, self._architecture = architecture, specific(architecture)
        self._nvrtc: CompilerPool | None = None
        self._nvcc: ProgramCompilers | None = None
        self._triton: TritonCompilers | None = None
        self._starting = Lock()

    def submit(self, kernel: AnyKernel) -> Future[Binary] | None:
        """Start compiling; None for a kernel that the worker prepares itself."""
        if isinstance(kernel, Kernel):
            return self._of_text().submit(kernel)
        if isinstance(kernel, CudaProgram):
            if self._nvcc is None:
                self._nvcc = ProgramCompilers(self._architecture, compiled_dir("programs"))
            return self._nvcc.submit(kernel)
        return None

    def submit_job(self, job: Job) -> None:
        """Start compiling a job's kernel, also one that the worker compiles for types."""
        if isinstance(job.kernel, TritonKernel):
            self._of_triton().submit(job)
        else:
            self.submit(job.kernel)

    def wait_for(self, job: Job) -> None:
        """Wait for what was compiled ahead for a worker that compiles itself."""
        if isinstance(job.kernel, TritonKernel):
            self._of_triton().wait(job)

    def ptx(self, kernel: Kernel) -> str:
        """The PTX of a kernel of CUDA text.

        Raises:
            KernelFault: it does not compile.
        """
        return self._of_text().ptx(kernel)

    @property
    def versions(self) -> dict[str, str]:
        """Those of the compilers that are there."""
        nvcc = find_nvcc()
        version = version_of(nvcc) if nvcc else ""
        return {"nvrtc": self._of_text().version, **({"nvcc": version} if version else {})}

    def close(self) -> None:
        """End the child processes. Idempotent."""
        for pool in (self._nvrtc, self._nvcc, self._triton):
            if pool is not None:
                pool.close()
        self._nvrtc = self._nvcc = self._triton = None

    def _of_triton(self) -> TritonCompilers:
        if self._triton is None:
            self._triton = TritonCompilers(self._plain)
        return self._triton

    def _of_text(self) -> CompilerPool:
        with self._starting:  # listings are made in another thread
            if self._nvrtc is None:
                self._nvrtc = CompilerPool(self._architecture, compiled_dir("cubin"))
            return self._nvrtc
