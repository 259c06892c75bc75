from .engine import (
    Station as Station,
    measure as measure,
    open_station as open_station,
    verify as verify,
)
from .kernels import (
    AnyKernel as AnyKernel,
    CudaProgram as CudaProgram,
    Kernel as Kernel,
    Launch as Launch,
    LibraryCall as LibraryCall,
    TritonKernel as TritonKernel,
    load_kernel as load_kernel,
)
from .record import Correctness as Correctness, Measurement as Measurement
from .report import Report as Report, load_report as load_report
from .support import (
    DeviceError as DeviceError,
    GpuEnergyError as GpuEnergyError,
    InputError as InputError,
    KernelFault as KernelFault,
    SetpointError as SetpointError,
)
from .workloads import (
    Contract as Contract,
    Conv2d as Conv2d,
    ErrorBound as ErrorBound,
    Gemm as Gemm,
    Scalar as Scalar,
    Tensor as Tensor,
    Workload as Workload,
)

__version__: str
