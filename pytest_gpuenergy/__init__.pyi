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
from .pytest_plugin import EnergyBenchmark as EnergyBenchmark
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
    distinct_shapes as distinct_shapes,
    find_workload as find_workload,
    network as network,
    parse_shape as parse_shape,
)

__version__: str
