"""How a workload is computed: source text, launches, argument order, origin."""

from pytest_gpuenergy.kernels.calls import LibraryCall
from pytest_gpuenergy.kernels.job import Job
from pytest_gpuenergy.kernels.kernel import AnyKernel, Kernel, Launch, Origin, RecordedFigures
from pytest_gpuenergy.kernels.program import CudaProgram, Headers
from pytest_gpuenergy.kernels.triton import TritonKernel

__all__ = [
    "AnyKernel",
    "CudaProgram",
    "Headers",
    "Job",
    "Kernel",
    "Launch",
    "LibraryCall",
    "Origin",
    "RecordedFigures",
    "TritonKernel",
]
