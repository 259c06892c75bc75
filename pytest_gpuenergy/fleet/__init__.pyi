from .commands import (
    failure_reason as failure_reason,
    tx_spec as tx_spec,
    usage_problem as usage_problem,
)
from .gpu_messages import (
    BEAT as BEAT,
    Failed as Failed,
    Message as Message,
    framed_request as framed_request,
    read_file as read_file,
    read_request as read_request,
)
from .heartbeat import BEATS as BEATS, Watch as Watch
from .probe import ProbedGpu as ProbedGpu, ProbedHost as ProbedHost, own_version as own_version
from .ray_interpreter import Interpreter as Interpreter, persistent_copy as persistent_copy
from .ray_probe import without_taken as without_taken
from .relay import (
    GAVE_UP as GAVE_UP,
    RELAY as RELAY,
    SLOT as SLOT,
    STATION as STATION,
    WorkerOrder as WorkerOrder,
)
from .remote_gpu import MAX_LOSSES as MAX_LOSSES, RemoteGpu as RemoteGpu
from .search_team import claim_fleet as claim_fleet
from .slots import (
    FoundSlots as FoundSlots,
    Slot as Slot,
    ask_hosts as ask_hosts,
    assign_slots as assign_slots,
    find_slots as find_slots,
    none_left as none_left,
)
from .spec import (
    MAX_WORKERS as MAX_WORKERS,
    Fleet as Fleet,
    FleetSettings as FleetSettings,
    RayFleet as RayFleet,
    SlurmFleet as SlurmFleet,
    SshFleet as SshFleet,
    SshHost as SshHost,
    parse_fleet as parse_fleet,
)
