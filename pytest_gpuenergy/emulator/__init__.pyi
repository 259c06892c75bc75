from .card.card_state import (
    CardState as CardState,
    EmulatedStateWarning as EmulatedStateWarning,
    VirtualClock as VirtualClock,
)
from .card.emulated_nvml import EmulatedNvml as EmulatedNvml
from .card.faults import (
    ALIASES as ALIASES,
    ERRORS as ERRORS,
    EVENTS as EVENTS,
    Fault as Fault,
    Owner as Owner,
    parse_faults as parse_faults,
)
from .card.governor import (
    SW_POWER_CAP as SW_POWER_CAP,
    Demand as Demand,
    noise as noise,
    operating_point as operating_point,
    power_at as power_at,
    power_factor as power_factor,
    time_at as time_at,
    voltage as voltage,
)
from .card.load import Load as Load
from .card.physics import EmulatedCard as EmulatedCard
from .card.profiles import (
    DEFAULT_PROFILE as DEFAULT_PROFILE,
    PROFILES as PROFILES,
    GpuProfile as GpuProfile,
    find_profile as find_profile,
)
from .emulated_device import (
    EmulatedDevice as EmulatedDevice,
    VirtualRepeater as VirtualRepeater,
)
from .host.access_profile import (
    LaunchProfile as LaunchProfile,
    TrafficCache as TrafficCache,
)
from .host.compiler import find_compiler as find_compiler
from .host.host_kernel import HostKernel as HostKernel
from .host.host_protocol import ProcessAnswers as ProcessAnswers
from .host.host_runner import HostRunner as HostRunner
from .host.toolchain import Toolchain as Toolchain
from .timing.block import (
    COEFFICIENTS as COEFFICIENTS,
    L1_SECTORS_PER_CYCLE as L1_SECTORS_PER_CYCLE,
    L2_BYTES_PER_CYCLE as L2_BYTES_PER_CYCLE,
    LOADS_IN_FLIGHT as LOADS_IN_FLIGHT,
    REGISTERS_OWN as REGISTERS_OWN,
    REGISTERS_PER_SM as REGISTERS_PER_SM,
    REGISTERS_PER_WORD as REGISTERS_PER_WORD,
    SCHEDULERS as SCHEDULERS,
    SECTOR_BYTES as SECTOR_BYTES,
    Coefficients as Coefficients,
    resident_blocks as resident_blocks,
)
from .timing.model import (
    DRAM_SHARE as DRAM_SHARE,
    LAUNCH_S as LAUNCH_S,
    POWER_DRAM as POWER_DRAM,
    beyond_comparison as beyond_comparison,
    kernel_demand as kernel_demand,
    quantities as quantities,
    recorded_demand as recorded_demand,
    unlimited_power_w as unlimited_power_w,
)
from .timing.traffic import (
    Traffic as Traffic,
    branched_share as branched_share,
    private_words as private_words,
)
from .translation.outline import EMULATED as EMULATED, SUPPORTED as SUPPORTED
from .translation.spin_loops import with_turns as with_turns
from .translation.sums import with_vectors as with_vectors
from .translation.translate import KernelText as KernelText, translate as translate
from .translation.uninitialized import needs_zeros as needs_zeros, with_values as with_values
