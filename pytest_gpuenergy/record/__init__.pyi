from .amounts import AboveZero as AboveZero, NotNegative as NotNegative
from .anchor import (
    DRIFT as DRIFT,
    AnchorCheck as AnchorCheck,
    CheckVerdict as CheckVerdict,
    distance as distance,
)
from .board import (
    BOARD_KERNEL_SD as BOARD_KERNEL_SD,
    BoardGain as BoardGain,
    Calibrated as Calibrated,
    CalibratedItem as CalibratedItem,
)
from .checks import MOST_W as MOST_W, check as check, check_ids as check_ids
from .clock_state import ClockState as ClockState
from .conditions import Conditions as Conditions
from .correctness import Correctness as Correctness
from .estimate import WANDER as WANDER, Estimate as Estimate, Interval as Interval
from .identity import Identity as Identity, setpoint_folder as setpoint_folder
from .infos import KernelInfo as KernelInfo, LaunchInfo as LaunchInfo, WorkloadInfo as WorkloadInfo
from .measurement import (
    FIGURES as FIGURES,
    PHASES as PHASES,
    VERIFIED as VERIFIED,
    Measurement as Measurement,
)
from .metrics import METRICS as METRICS, Metric as Metric
from .peaks import PEAKS as PEAKS, Peaks as Peaks, peaks_of as peaks_of
from .ratio import (
    Sample as Sample,
    around as around,
    limited as limited,
    log_excess as log_excess,
    log_ratio as log_ratio,
    normal_quantile as normal_quantile,
    paired_log_ratio as paired_log_ratio,
    point_ratio as point_ratio,
    sample as sample,
    welch as welch,
)
from .repeatability import OTHER_BOARD_SD as OTHER_BOARD_SD, SAME_BOARD_SD as SAME_BOARD_SD
from .run import RunInfo as RunInfo
from .setpoints import (
    UNLOCKED as UNLOCKED,
    Order as Order,
    clock_label as clock_label,
    clocks as clocks,
    limit_label as limit_label,
    limits as limits,
    setpoint_order as setpoint_order,
    setpoints as setpoints,
)
from .station import StationInfo as StationInfo
from .window import Window as Window
