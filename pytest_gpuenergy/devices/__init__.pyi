from .arena import Arena as Arena, FileMemory as FileMemory, arena_bytes as arena_bytes
from .arrays import (
    Arrays as Arrays,
    DeviceArrays as DeviceArrays,
    HostArrays as HostArrays,
    Memory as Memory,
)
from .cache import MAX_SETS as MAX_SETS, sets_needed as sets_needed
from .cuda._compat import PlainReductions as PlainReductions
from .cuda.arrays import CupyArrays as CupyArrays, can_open as can_open
from .cuda.clock_notes import LEAST_SPAN_NS as LEAST_SPAN_NS, clock_samples as clock_samples
from .cuda.compilers import Binary as Binary, specific as specific
from .cuda.device import CudaDevice as CudaDevice, HostClock as HostClock
from .cuda.driver import (
    end_persistence as end_persistence,
    monotonic_s as monotonic_s,
    stop_tracing_at_exit as stop_tracing_at_exit,
    wait_for_context as wait_for_context,
)
from .cuda.graphs import (
    GRAPH_S as GRAPH_S,
    MAX_CALLS as MAX_CALLS,
    MAX_CALLS_OF_ALL as MAX_CALLS_OF_ALL,
    GraphRepeater as GraphRepeater,
)
from .cuda.listings import sass_of as sass_of
from .cuda.machine_code import (
    cubins_in as cubins_in,
    tensor_core_instructions as tensor_core_instructions,
    variable_bytes as variable_bytes,
)
from .cuda.nvcc import (
    ProgramCompilers as ProgramCompilers,
    find_nvcc as find_nvcc,
    target_of as target_of,
    version_of as version_of,
)
from .cuda.nvrtc import Compiler as Compiler, CompilerPool as CompilerPool
from .cuda.pools import CompilerPools as CompilerPools
from .cuda.replay_log import ReplayLog as ReplayLog
from .cuda.runner import CudaRunner as CudaRunner
from .cuda.tensor_maps import encoded as encoded
from .cuda.triton_compilers import TritonCompilers as TritonCompilers
from .device import (
    CLOCK_SPAN_S as CLOCK_SPAN_S,
    Clock as Clock,
    ClockSamples as ClockSamples,
    Device as Device,
    KernelRepeater as KernelRepeater,
    Launches as Launches,
    Loaded as Loaded,
    Relaunching as Relaunching,
    Repeater as Repeater,
    Timeline as Timeline,
    Work as Work,
)
from .discovery import (
    FoundGpu as FoundGpu,
    cuda_uuids as cuda_uuids,
    find_gpus as find_gpus,
    has_context as has_context,
    nvml_uuids as nvml_uuids,
)
from .gpu import Gpu as Gpu, NvmlGpu as NvmlGpu
from .guards import GUARD_BYTES as GUARD_BYTES, Bytes as Bytes, written as written
from .lock import gpu_lock as gpu_lock
from .nvml import (
    NEEDED as NEEDED,
    WRITES_VARIABLE as WRITES_VARIABLE,
    GuardedNvml as GuardedNvml,
    absence as absence,
    deny_writes as deny_writes,
    load_nvml as load_nvml,
    name_of as name_of,
    text as text,
)
from .places import (
    MAX_PLACEMENTS as MAX_PLACEMENTS,
    PAGE_BYTES as PAGE_BYTES,
    pieces as pieces,
    placements as placements,
    pool_bytes as pool_bytes,
    scattered as scattered,
)
from .visible import VISIBLE as VISIBLE, visible_gpus as visible_gpus
