from .cap_tables import (
    NamedSetpoints as NamedSetpoints,
    cap_table as cap_table,
    cap_words as cap_words,
    project_tables as project_tables,
    resolve_cap as resolve_cap,
    resolve_setpoints as resolve_setpoints,
    resolve_words as resolve_words,
    single_setpoint as single_setpoint,
)
from .lease import (
    Lease as Lease,
    restore_dead_runs as restore_dead_runs,
    restore_kept as restore_kept,
    restore_leftover as restore_leftover,
    restore_leftovers as restore_leftovers,
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
from .setpoint import (
    CURRENT as CURRENT,
    UNKNOWN as UNKNOWN,
    PowerLimits as PowerLimits,
    Setpoint as Setpoint,
    enforced_setpoint as enforced_setpoint,
    present_limit_mw as present_limit_mw,
    read_limits as read_limits,
)
from .sm_clocks import (
    CURRENT_CLOCKS as CURRENT_CLOCKS,
    STEPS as STEPS,
    clock_words as clock_words,
    even_steps as even_steps,
    resolve_clock as resolve_clock,
    resolve_clocks as resolve_clocks,
    supported_clocks as supported_clocks,
)
from .sudo import (
    SudoWriter as SudoWriter,
    clock_rule as clock_rule,
    digit_patterns as digit_patterns,
    find_sudo as find_sudo,
    limit_rule as limit_rule,
    own_name as own_name,
    safe_program as safe_program,
)
from .writers import (
    NvmlWriter as NvmlWriter,
    SettingsWriter as SettingsWriter,
    check_setpoint as check_setpoint,
    choose_writer as choose_writer,
    may_change_settings as may_change_settings,
)
from .zeusd import ZeusdWriter as ZeusdWriter, find_zeusd as find_zeusd, pci_key as pci_key
