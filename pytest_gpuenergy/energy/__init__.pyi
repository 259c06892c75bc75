from .card_samples import (
    CardSamples as CardSamples,
    PowerSample as PowerSample,
    read_regularly as read_regularly,
)
from .clock_states import (
    LEAST_STEP as LEAST_STEP,
    clock_states as clock_states,
    mean_clock_mhz as mean_clock_mhz,
    stepped as stepped,
    steps as steps,
)
from .counter import EnergyCounter as EnergyCounter
from .drift import Slope as Slope, power_slope as power_slope, unsettled as unsettled
from .gain import gains as gains
from .leakage import Leakage as Leakage, step_error as step_error
from .meter import EnergyMeter as EnergyMeter
from .power_log import PowerLog as PowerLog
from .preheat import LEAST_PAUSE_S as LEAST_PAUSE_S, Announce as Announce, Preheat as Preheat
from .processes import ProcessWatch as ProcessWatch, processes_on as processes_on
from .reading import Reading as Reading
from .samples import (
    PowerReading as PowerReading,
    PowerSamples as PowerSamples,
    average_power_mw as average_power_mw,
    choose_source as choose_source,
    instant_power_mw as instant_power_mw,
    probe_sensor as probe_sensor,
)
from .schedule import regular_times_s as regular_times_s
from .sensors import (
    DRIFT_K as DRIFT_K,
    INVALIDATING_REASONS as INVALIDATING_REASONS,
    RESTRAINING_REASONS as RESTRAINING_REASONS,
    SW_POWER_CAP as SW_POWER_CAP,
    answers as answers,
    doubts as doubts,
    power_by_samples_w as power_by_samples_w,
    read_conditions as read_conditions,
)
from .settings import PREHEAT_S as PREHEAT_S, MeterSettings as MeterSettings
from .source import CounterError as CounterError, Edge as Edge, EnergySource as EnergySource
from .statistics import estimate as estimate, variance_of_mean as variance_of_mean
from .thermal import Sample as Sample, Settling as Settling, ThermalModel as ThermalModel
from .windows import cut_windows as cut_windows, placement_variance as placement_variance
