from .answers import Answers as Answers
from .board import power_factor as power_factor
from .card import Card as Card
from .clock import VirtualClock as VirtualClock
from .compiler import find_compiler as find_compiler
from .device import (
    EmulatedDevice as EmulatedDevice,
    Runner as Runner,
    emulated_devices as emulated_devices,
)
from .faults import (
    ALIASES as ALIASES,
    ERRORS as ERRORS,
    EVENTS as EVENTS,
    Fault as Fault,
    parse_faults as parse_faults,
)
from .governor import (
    SW_POWER_CAP as SW_POWER_CAP,
    Demand as Demand,
    operating_point as operating_point,
    power_at as power_at,
    time_at as time_at,
    voltage as voltage,
)
from .headers import EMULATED as EMULATED, SUPPORTED as SUPPORTED
from .host import HostRunner as HostRunner
from .host_kernel import (
    AFFORDABLE_S as AFFORDABLE_S,
    MOST as MOST,
    PERIOD as PERIOD,
    WHOLE_S as WHOLE_S,
    HostKernel as HostKernel,
    is_divisible as is_divisible,
)
from .load import Load as Load
from .noise import noise as noise
from .nvml import EmulatedNvml as EmulatedNvml
from .nvml_base import Handle as Handle
from .owner import Owner as Owner
from .profiles import (
    CLOCK_STEP_MHZ as CLOCK_STEP_MHZ,
    DEFAULT_PROFILE as DEFAULT_PROFILE,
    PROFILES as PROFILES,
    GpuProfile as GpuProfile,
    find_profile as find_profile,
)
from .ptx.strings import Strings as Strings, with_choice as with_choice
from .repeater import VirtualRepeater as VirtualRepeater
from .spin_loops import with_turns as with_turns
from .state import CardState as CardState, EmulatedStateWarning as EmulatedStateWarning
from .timing.block import (
    L2_BYTES_PER_CYCLE as L2_BYTES_PER_CYCLE,
    SCHEDULERS as SCHEDULERS,
    resident_blocks as resident_blocks,
)
from .timing.branched_loads import branched_share as branched_share
from .timing.coefficients import COEFFICIENTS as COEFFICIENTS, Coefficients as Coefficients
from .timing.compared import beyond_comparison as beyond_comparison, quantities as quantities
from .timing.model import demand_of as demand_of, demand_of_figures as demand_of_figures
from .timing.plan import AccessProfile as AccessProfile, LaunchProfile as LaunchProfile
from .timing.private_arrays import private_words as private_words
from .timing.traffic import Traffic as Traffic, TrafficCache as TrafficCache
from .toolchain import Toolchain as Toolchain
from .translate import KernelText as KernelText, translate as translate
from .unset_flags import with_values as with_values
