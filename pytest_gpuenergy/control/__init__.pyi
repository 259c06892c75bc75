from .clocks import (
    CURRENT_CLOCKS as CURRENT_CLOCKS,
    STEPS as STEPS,
    clock_words as clock_words,
    even_steps as even_steps,
    resolve_clock as resolve_clock,
    resolve_clocks as resolve_clocks,
    supported_clocks as supported_clocks,
)
from .lease import (
    Lease as Lease,
    restore_kept as restore_kept,
    restore_leftover as restore_leftover,
)
from .lease_record import (
    Change as Change,
    LeaseRecord as LeaseRecord,
    dead_run_uuids as dead_run_uuids,
    kept_record as kept_record,
    leftover as leftover,
    locked_mhz as locked_mhz,
    recorded_uuids as recorded_uuids,
    restorable_uuids as restorable_uuids,
    run_uuids as run_uuids,
)
from .leftovers import (
    restore_dead_runs as restore_dead_runs,
    restore_leftovers as restore_leftovers,
)
from .limits import (
    PowerLimits as PowerLimits,
    enforced_setpoint as enforced_setpoint,
    present_limit_mw as present_limit_mw,
    read_limits as read_limits,
)
from .setpoint import CURRENT as CURRENT, UNKNOWN as UNKNOWN, Setpoint as Setpoint
from .tables import (
    NamedSetpoints as NamedSetpoints,
    cap_table as cap_table,
    cap_words as cap_words,
    one_setpoint as one_setpoint,
    project_tables as project_tables,
    resolve_one as resolve_one,
    resolve_setpoints as resolve_setpoints,
    resolve_words as resolve_words,
)
from .writers import (
    SettingsWriter as SettingsWriter,
    check_setpoint as check_setpoint,
    choose_writer as choose_writer,
)
from .writers.nvml import NvmlWriter as NvmlWriter, may_change_settings as may_change_settings
from .writers.sudo import SudoWriter as SudoWriter, find_sudo as find_sudo
from .writers.sudo_rule import (
    clock_rule as clock_rule,
    clocks_line as clocks_line,
    digit_patterns as digit_patterns,
    own_name as own_name,
    rule as rule,
    safe_program as safe_program,
    sudoers_line as sudoers_line,
)
from .writers.zeusd import ZeusdWriter as ZeusdWriter, find_zeusd as find_zeusd, pci_key as pci_key
