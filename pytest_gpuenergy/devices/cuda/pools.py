"""The compilers of a device, by the kinds of kernels that need one."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Lock

from pytest_gpuenergy.devices.cuda.compilers import Binary, specific
from pytest_gpuenergy.devices.cuda.nvcc import ProgramCompilers, find_nvcc, version_of
from pytest_gpuenergy.devices.cuda.nvrtc import CompilerPool
from pytest_gpuenergy.kernels.kernel import AnyKernel, Kernel
from pytest_gpuenergy.kernels.program import CudaProgram
from pytest_gpuenergy.support.paths import compiled_dir


class CompilerPools:
    """NVRTC for CUDA text and nvcc for host programs, each started when it is first needed."""

    def __init__(self, architecture: str) -> None:
        self._architecture = specific(architecture)
        self._nvrtc: CompilerPool | None = None
        self._nvcc: ProgramCompilers | None = None
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
        for pool in (self._nvrtc, self._nvcc):
            if pool is not None:
                pool.close()
        self._nvrtc = self._nvcc = None

    def _of_text(self) -> CompilerPool:
        with self._starting:  # listings are made in another thread
            if self._nvrtc is None:
                self._nvrtc = CompilerPool(self._architecture, compiled_dir("cubin"))
            return self._nvrtc
