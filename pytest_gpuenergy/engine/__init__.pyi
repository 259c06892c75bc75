from .anchors import AnchorWatch as AnchorWatch
from .arena_check import (
    ArenaCheck as ArenaCheck,
    check_again as check_again,
    falsified as falsified,
)
from .arenas import (
    file_arenas as file_arenas,
    seeded_arenas as seeded_arenas,
)
from .boards import BoardWatch as BoardWatch, board_kernels as board_kernels
from .callables import (
    CallableCheck as CallableCheck,
    VerifiedCallable as VerifiedCallable,
    WatchedRepeater as WatchedRepeater,
    first_call as first_call,
)
from .candidates import (
    DURATION_S as DURATION_S,
    QUICK as QUICK,
    TIMEOUT_S as TIMEOUT_S,
    Evaluation as Evaluation,
    Rig as Rig,
    Sustained as Sustained,
    Typical as Typical,
    confirm as confirm,
    cost_ms as cost_ms,
    measure_sustained as measure_sustained,
    measure_time_ms as measure_time_ms,
    median_time_ms as median_time_ms,
    promising as promising,
    quick_job as quick_job,
    verify_timed as verify_timed,
)
from .card_scales import CardScales as CardScales
from .comparison import Reference as Reference, compare as compare
from .harness import (
    Harness as Harness,
    Replayable as Replayable,
    Subject as Subject,
    describe_workload as describe_workload,
    keeps_to_lock as keeps_to_lock,
    lock_flags as lock_flags,
)
from .identity import git_revision_of as git_revision_of, run_info as run_info
from .jobs import (
    PreparedJob as PreparedJob,
    StoredJob as StoredJob,
    load_arrays as load_arrays,
    read_job as read_job,
    save_arrays as save_arrays,
    write_job as write_job,
)
from .kernel_choice import best_of as best_of
from .references import (
    Case as Case,
    Drawing as Drawing,
    KeptCases as KeptCases,
    cached_reference as cached_reference,
    case_of as case_of,
)
from .results import (
    Expected as Expected,
    Specification as Specification,
    expect as expect,
    overlap as overlap,
    overwrite as overwrite,
)
from .seeds import (
    MAX_SEED as MAX_SEED,
    SEEDS as SEEDS,
    drawings_of as drawings_of,
    drawn_seed as drawn_seed,
)
from .standalone import measure as measure, verify as verify
from .station import (
    LOCK_WAIT_S as LOCK_WAIT_S,
    Settings as Settings,
    Station as Station,
    claim as claim,
    open_station as open_station,
    pinned_at as pinned_at,
    refuse_locked as refuse_locked,
)
from .team import (
    ClaimedGpus as ClaimedGpus,
    GpuWorker as GpuWorker,
    HostLostError as HostLostError,
    Member as Member,
    Team as Team,
    claim_gpus as claim_gpus,
    gpu_names as gpu_names,
    lost_twice as lost_twice,
)
from .verification import (
    CASES_AT_ONCE as CASES_AT_ONCE,
    seeded_check as seeded_check,
    verify_on_device as verify_on_device,
)
from .verifier import Verifier as Verifier
