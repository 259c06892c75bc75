from .arena import (
    GUARD_BYTES as GUARD_BYTES,
    Arena as Arena,
    Arrays as Arrays,
    Bytes as Bytes,
    DeviceArrays as DeviceArrays,
    FileMemory as FileMemory,
    HostArrays as HostArrays,
    Memory as Memory,
    arena_bytes as arena_bytes,
    changed_guard_bytes as changed_guard_bytes,
)
from .buffer_sets import (
    MAX_PLACEMENTS as MAX_PLACEMENTS,
    MAX_SETS as MAX_SETS,
    PAGE_BYTES as PAGE_BYTES,
    placements as placements,
    pool_bytes as pool_bytes,
    scattered_offsets as scattered_offsets,
    set_layout as set_layout,
    sets_needed as sets_needed,
)
from .cuda._compat import PlainReductions as PlainReductions
from .cuda.array_kernels import KernelMath as KernelMath, array_kernels as array_kernels
from .cuda.arrays import CupyArrays as CupyArrays, can_open as can_open
from .cuda.binders import encoded_map as encoded_map
from .cuda.clock_notes import (
    MAX_NOTES as MAX_NOTES,
    MIN_SPAN_NS as MIN_SPAN_NS,
    NOTE_PTX as NOTE_PTX,
    clock_samples as clock_samples,
)
from .cuda.compiler_pools import CompilerPools as CompilerPools, TritonCompilers as TritonCompilers
from .cuda.compilers import Binary as Binary, specific_architecture as specific_architecture
from .cuda.cuda_device import CudaDevice as CudaDevice
from .cuda.cupti import stop_tracing_at_exit as stop_tracing_at_exit
from .cuda.driver import (
    reset_persisting_l2 as reset_persisting_l2,
    wait_for_context as wait_for_context,
)
from .cuda.graphs import (
    GRAPH_S as GRAPH_S,
    MAX_CALLS as MAX_CALLS,
    MAX_CALLS_OF_ALL as MAX_CALLS_OF_ALL,
    GraphRepeater as GraphRepeater,
    ReplayLog as ReplayLog,
)
from .cuda.machine_code import (
    host_program_cubins as host_program_cubins,
    sass_listing as sass_listing,
    tensor_core_instructions as tensor_core_instructions,
    variable_bytes as variable_bytes,
)
from .cuda.nvcc import (
    NvccCompilers as NvccCompilers,
    find_nvcc as find_nvcc,
    nvcc_target as nvcc_target,
    nvcc_version as nvcc_version,
)
from .cuda.nvrtc import NvrtcCompiler as NvrtcCompiler, NvrtcCompilers as NvrtcCompilers
from .cuda.runner import CudaRunner as CudaRunner
from .device import (
    CLOCK_SPAN_S as CLOCK_SPAN_S,
    SINGLES as SINGLES,
    ClockSamples as ClockSamples,
    Device as Device,
    Gpu as Gpu,
    Heater as Heater,
    KernelRepeater as KernelRepeater,
    Launches as Launches,
    Loaded as Loaded,
    NvmlGpu as NvmlGpu,
    Relaunching as Relaunching,
    Repeater as Repeater,
    Threshold as Threshold,
    Timeline as Timeline,
    Work as Work,
)
from .discovery import (
    VISIBLE as VISIBLE,
    FoundGpu as FoundGpu,
    cuda_uuids as cuda_uuids,
    find_gpus as find_gpus,
    has_context as has_context,
    nvml_uuids as nvml_uuids,
    visible_gpus as visible_gpus,
)
from .host_clock import HostClock as HostClock, monotonic_s as monotonic_s
from .lock import gpu_lock as gpu_lock
from .nvml import (
    NEEDED as NEEDED,
    WRITES_VARIABLE as WRITES_VARIABLE,
    GuardedNvml as GuardedNvml,
    deny_writes as deny_writes,
    gpu_name as gpu_name,
    load_nvml as load_nvml,
    printable_text as printable_text,
    unavailable_errors as unavailable_errors,
)
