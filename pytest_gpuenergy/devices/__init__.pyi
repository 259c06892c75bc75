from .arena import Arena as Arena, arena_bytes as arena_bytes
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
)
from .emulated.answers import Answers as Answers
from .emulated.board import power_factor as power_factor
from .emulated.card import Card as Card
from .emulated.clock import VirtualClock as VirtualClock
from .emulated.compiler import find_compiler as find_compiler
from .emulated.device import (
    EmulatedDevice as EmulatedDevice,
    Runner as Runner,
    emulated_devices as emulated_devices,
)
from .emulated.faults import (
    ALIASES as ALIASES,
    ERRORS as ERRORS,
    EVENTS as EVENTS,
    Fault as Fault,
    parse_faults as parse_faults,
)
from .emulated.governor import (
    SW_POWER_CAP as SW_POWER_CAP,
    Demand as Demand,
    operating_point as operating_point,
    power_at as power_at,
    time_at as time_at,
    voltage as voltage,
)
from .emulated.headers import EMULATED as EMULATED, SUPPORTED as SUPPORTED
from .emulated.host import HostRunner as HostRunner
from .emulated.host_kernel import (
    AFFORDABLE_S as AFFORDABLE_S,
    MOST as MOST,
    PERIOD as PERIOD,
    WHOLE_S as WHOLE_S,
    HostKernel as HostKernel,
    is_divisible as is_divisible,
)
from .emulated.load import Load as Load
from .emulated.noise import noise as noise
from .emulated.nvml import EmulatedNvml as EmulatedNvml
from .emulated.nvml_base import Handle as Handle
from .emulated.owner import Owner as Owner
from .emulated.profiles import (
    CLOCK_STEP_MHZ as CLOCK_STEP_MHZ,
    DEFAULT_PROFILE as DEFAULT_PROFILE,
    PROFILES as PROFILES,
    GpuProfile as GpuProfile,
    find_profile as find_profile,
)
from .emulated.ptx.strings import Strings as Strings, with_choice as with_choice
from .emulated.repeater import VirtualRepeater as VirtualRepeater
from .emulated.spin_loops import with_turns as with_turns
from .emulated.state import CardState as CardState, EmulatedStateWarning as EmulatedStateWarning
from .emulated.timing.block import (
    L2_BYTES_PER_CYCLE as L2_BYTES_PER_CYCLE,
    SCHEDULERS as SCHEDULERS,
    resident_blocks as resident_blocks,
)
from .emulated.timing.branched_loads import branched_share as branched_share
from .emulated.timing.coefficients import COEFFICIENTS as COEFFICIENTS, Coefficients as Coefficients
from .emulated.timing.compared import (
    beyond_comparison as beyond_comparison,
    quantities as quantities,
)
from .emulated.timing.model import demand_of as demand_of, demand_of_figures as demand_of_figures
from .emulated.timing.plan import AccessProfile as AccessProfile, LaunchProfile as LaunchProfile
from .emulated.timing.private_arrays import private_words as private_words
from .emulated.timing.traffic import Traffic as Traffic, TrafficCache as TrafficCache
from .emulated.toolchain import Toolchain as Toolchain
from .emulated.translate import KernelText as KernelText, translate as translate
from .emulated.unset_flags import with_values as with_values
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
from .select import (
    EmulatedSpec as EmulatedSpec,
    check_spec as check_spec,
    count_gpus as count_gpus,
    nvml_gpu as nvml_gpu,
    open_device as open_device,
    open_emulated as open_emulated,
    open_gpu as open_gpu,
    open_recorded as open_recorded,
)
from .visible import VISIBLE as VISIBLE, visible_gpus as visible_gpus
