from .arguments import (
    Argument as Argument,
    StructLayout as StructLayout,
    argument_names as argument_names,
    argument_text as argument_text,
    checked_arguments as checked_arguments,
)
from .cuda_tokens import (
    COMMENT as COMMENT,
    LITERAL as LITERAL,
    CudaToken as CudaToken,
    cuda_tokens as cuda_tokens,
    without_comments as without_comments,
)
from .exported_programs import (
    profile_kernels as profile_kernels,
    profiling_tools as profiling_tools,
)
from .job import CACHE_STATES as CACHE_STATES, CacheState as CacheState, Job as Job
from .kernel import (
    AnyKernel as AnyKernel,
    Dim3 as Dim3,
    Kernel as Kernel,
    Launch as Launch,
    Origin as Origin,
    RecordedFigures as RecordedFigures,
    check_source as check_source,
    function_name as function_name,
    is_entry as is_entry,
)
from .kernel_export import (
    SIGN as SIGN,
    ExportedFolder as ExportedFolder,
    RankedKernel as RankedKernel,
    check_exportable as check_exportable,
    export_kernels as export_kernels,
    write_export as write_export,
)
from .kernel_files import (
    launch_plan as launch_plan,
    load_kernel as load_kernel,
    read_kernel as read_kernel,
    read_plan as read_plan,
    write_kernel as write_kernel,
)
from .kernel_kinds import (
    LIBRARY_ENTRIES as LIBRARY_ENTRIES,
    TRITON_MODULES as TRITON_MODULES,
    CudaProgram as CudaProgram,
    Headers as Headers,
    KernelConstant as KernelConstant,
    LibraryCall as LibraryCall,
    TritonKernel as TritonKernel,
)
from .needed_source import HOST_HEADER as HOST_HEADER, reachable as reachable
from .tensor_map import Im2col as Im2col, MapType as MapType, TensorMap as TensorMap
