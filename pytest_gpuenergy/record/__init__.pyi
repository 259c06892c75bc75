from .arithmetic_modes import (
    AS_EXACT as AS_EXACT,
    CONV_MODES as CONV_MODES,
    FLOAT8_MODES as FLOAT8_MODES,
    MODES as MODES,
    Mode as Mode,
    split_mode as split_mode,
)
from .board_checks import (
    BOARD_KERNEL_SD as BOARD_KERNEL_SD,
    DRIFT as DRIFT,
    AnchorCheck as AnchorCheck,
    BoardGain as BoardGain,
    Calibrated as Calibrated,
    CalibratedItem as CalibratedItem,
    CheckVerdict as CheckVerdict,
    distance as distance,
)
from .measurement import (
    FIGURES as FIGURES,
    PHASES as PHASES,
    VERIFIED as VERIFIED,
    WIDE_FLAGS as WIDE_FLAGS,
    ClockState as ClockState,
    Conditions as Conditions,
    Correctness as Correctness,
    Identity as Identity,
    KernelInfo as KernelInfo,
    LaunchInfo as LaunchInfo,
    Measurement as Measurement,
    Window as Window,
    WorkloadInfo as WorkloadInfo,
)
from .metrics import (
    METRICS as METRICS,
    OTHER_BOARD_SD as OTHER_BOARD_SD,
    SAME_BOARD_SD as SAME_BOARD_SD,
    WANDER as WANDER,
    AboveZero as AboveZero,
    Estimate as Estimate,
    Interval as Interval,
    Metric as Metric,
    NotNegative as NotNegative,
)
from .peaks import PEAKS as PEAKS, Peaks as Peaks, peaks_of as peaks_of
from .plausibility import MAX_W as MAX_W, check as check, check_ids as check_ids
from .ratio import (
    SessionMean as SessionMean,
    clipped as clipped,
    log_excess as log_excess,
    log_ratio as log_ratio,
    normal_quantile as normal_quantile,
    paired_log_ratio as paired_log_ratio,
    point_ratio as point_ratio,
    session_mean as session_mean,
    t_interval as t_interval,
    welch as welch,
)
from .run_info import RunInfo as RunInfo, StationInfo as StationInfo, new_run_id as new_run_id
from .setpoint_labels import (
    UNLOCKED as UNLOCKED,
    Order as Order,
    clock_label as clock_label,
    clocks as clocks,
    limit_label as limit_label,
    limits as limits,
    setpoint_folder as setpoint_folder,
    setpoint_order as setpoint_order,
    setpoints as setpoints,
)
