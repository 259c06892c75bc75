"""The compilers of a device, by the kinds of kernels that need one."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Lock

from pytest_gpuenergy.devices.cuda.compilers import Binary, specific
from pytest_gpuenergy.devices.cuda.nvcc import ProgramCompilers, find_nvcc, version_of
from pytest_gpuenergy.devices.cuda.nvrtc import CompilerPool
from pytest_gpuenergy.devices.cuda.triton_compilers import TritonCompilers
from pytest_gpuenergy.kernels import AnyKernel, CudaProgram, Job, Kernel, TritonKernel
from pytest_gpuenergy.support import compiled_dir


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
