from .clock_states import (
    MIN_STEP as MIN_STEP,
    clock_states as clock_states,
    has_clock_step as has_clock_step,
    mean_clock_mhz as mean_clock_mhz,
    step_indices as step_indices,
)
from .cooling import KnownCooling as KnownCooling
from .counter import EnergyCounter as EnergyCounter, regular_times_s as regular_times_s
from .energy_source import CounterError as CounterError, Edge as Edge, EnergySource as EnergySource
from .meter import EnergyMeter as EnergyMeter, LoadEndedError as LoadEndedError
from .power_log import (
    CardSamples as CardSamples,
    PowerLog as PowerLog,
    PowerSample as PowerSample,
    read_regularly as read_regularly,
)
from .process_watch import ProcessWatch as ProcessWatch, cuda_process_ids as cuda_process_ids
from .reading import (
    Reading as Reading,
    cut_windows as cut_windows,
    estimate as estimate,
    placement_variance as placement_variance,
    settling_gains as settling_gains,
    variance_of_mean as variance_of_mean,
)
from .samples import (
    PowerReading as PowerReading,
    PowerSamples as PowerSamples,
    average_power_mw as average_power_mw,
    choose_source as choose_source,
    instant_power_mw as instant_power_mw,
    probe_sensor as probe_sensor,
)
from .sensors import (
    INVALIDATING_REASONS as INVALIDATING_REASONS,
    MAX_DRIFT_K as MAX_DRIFT_K,
    SW_POWER_CAP as SW_POWER_CAP,
    THROTTLE_REASONS as THROTTLE_REASONS,
    check_responds as check_responds,
    condition_flags as condition_flags,
    power_by_samples_w as power_by_samples_w,
    read_conditions as read_conditions,
    responds as responds,
)
from .steadiness import (
    ONE_SWING as ONE_SWING,
    ONE_SWING_POWER as ONE_SWING_POWER,
    POWER_SWINGS as POWER_SWINGS,
    PREHEAT_S as PREHEAT_S,
    MeterSettings as MeterSettings,
    Slope as Slope,
    former_power_effect as former_power_effect,
    power_slope as power_slope,
)
from .thermal import (
    PER_K_ERROR as PER_K_ERROR,
    Leakage as Leakage,
    Settling as Settling,
    ThermalModel as ThermalModel,
    ThermalSample as ThermalSample,
    step_error as step_error,
)
from .warmth import (
    MIN_PAUSE_S as MIN_PAUSE_S,
    Announce as Announce,
    Preheat as Preheat,
)
