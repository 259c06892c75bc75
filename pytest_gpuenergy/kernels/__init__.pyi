from .calls import LIBRARY_ENTRIES as LIBRARY_ENTRIES, LibraryCall as LibraryCall
from .export import export_kernels as export_kernels, workload_header as workload_header
from .exported_folder import (
    SIGN as SIGN,
    ExportedFolder as ExportedFolder,
    check_exportable as check_exportable,
    write_export as write_export,
)
from .folder import read_kernel as read_kernel, write_kernel as write_kernel
from .job import CACHE_STATES as CACHE_STATES, CacheState as CacheState, Job as Job
from .kernel import (
    AnyKernel as AnyKernel,
    Dim3 as Dim3,
    Kernel as Kernel,
    Launch as Launch,
    Origin as Origin,
    RecordedFigures as RecordedFigures,
    check_source as check_source,
    is_entry as is_entry,
)
from .launch_info import launch_infos as launch_infos, static_shared_bytes as static_shared_bytes
from .launch_source import RankedKernel as RankedKernel, launch_source as launch_source
from .program import CudaProgram as CudaProgram, Headers as Headers
from .reachable import HOST_HEADER as HOST_HEADER, reachable as reachable
from .source import load_kernel as load_kernel, plan_of as plan_of, read_plan as read_plan
from .tensor_map import MapType as MapType, TensorMap as TensorMap
from .triton import Constant as Constant, TritonKernel as TritonKernel
