from .children import (
    run_captured as run_captured,
    run_child as run_child,
    run_together as run_together,
    start_ticks as start_ticks,
)
from .elf import section_sizes as section_sizes, sections as sections
from .endless import (
    LONGEST_S as LONGEST_S,
    EndlessError as EndlessError,
    ended_after as ended_after,
    ended_by_signals as ended_by_signals,
    enough_memory as enough_memory,
    still_running as still_running,
    watched as watched,
)
from .errors import (
    DeviceError as DeviceError,
    GpuEnergyError as GpuEnergyError,
    InputError as InputError,
    KernelFault as KernelFault,
    Outcome as Outcome,
    OutputError as OutputError,
    ReportError as ReportError,
    ReportInputError as ReportInputError,
    ResultError as ResultError,
    SetpointError as SetpointError,
    SettingRefusedError as SettingRefusedError,
    UnavailableError as UnavailableError,
    WritesDeniedError as WritesDeniedError,
    error_message as error_message,
)
from .files import (
    check_room as check_room,
    drop_torn_line as drop_torn_line,
    followed as followed,
    is_file as is_file,
    is_folder as is_folder,
    is_link as is_link,
    is_socket as is_socket,
    is_there as is_there,
    keep_for_later as keep_for_later,
    keeps_entries as keeps_entries,
    lock as lock,
    matching as matching,
    open_file as open_file,
    own_folder as own_folder,
    roots_alone as roots_alone,
    unlock as unlock,
    write_atomically as write_atomically,
    write_target as write_target,
    written_atomically as written_atomically,
)
from .host_names import (
    FLEET_GPU as FLEET_GPU,
    emulated_host as emulated_host,
    host_name as host_name,
    name_emulated_host as name_emulated_host,
)
from .json_input import (
    FormError as FormError,
    NotJsonError as NotJsonError,
    convert as convert,
    decode as decode,
    decode_versioned as decode_versioned,
    garbage_ignored as garbage_ignored,
    member as member,
    parse as parse,
    positive as positive,
    read_bytes as read_bytes,
    read_record as read_record,
    read_records as read_records,
    read_unpacked as read_unpacked,
    schema_version as schema_version,
    shown as shown,
    typed as typed,
)
from .output_formats import (
    Cell as Cell,
    csv_text as csv_text,
    dump as dump,
    encode as encode,
    plain as plain,
)
from .paths import (
    CACHE_ENTRY as CACHE_ENTRY,
    CACHE_FOLDERS as CACHE_FOLDERS,
    cache_dir as cache_dir,
    compiled_dir as compiled_dir,
    compiled_variable as compiled_variable,
    cuda_dir as cuda_dir,
    nearest as nearest,
    project_table as project_table,
    settle_places as settle_places,
    state_dir as state_dir,
    written_to_cache as written_to_cache,
)
from .requirements import (
    AS_MEASURED as AS_MEASURED,
    FORBIDDEN as FORBIDDEN,
    INSTALL as INSTALL,
    forbidden as forbidden,
    needs as needs,
)
from .scratch import (
    build_folder as build_folder,
    disk_folder as disk_folder,
    remove_leftovers as remove_leftovers,
    run_git as run_git,
    scratch_folder as scratch_folder,
    sweep as sweep,
    worktree as worktree,
)
from .signals import (
    interrupt_once as interrupt_once,
    signal_name as signal_name,
    termination_as_interrupt as termination_as_interrupt,
    undisturbed as undisturbed,
    uninterrupted as uninterrupted,
)
from .statistics import (
    NORMAL as NORMAL,
    expected_largest as expected_largest,
    student_t as student_t,
)
from .text import (
    aligned as aligned,
    counted as counted,
    emulated_mark as emulated_mark,
    fitted as fitted,
    joined_or_hashed as joined_or_hashed,
    plain_numbers as plain_numbers,
    printable as printable,
    printable_output as printable_output,
    printable_text as printable_text,
    shortened as shortened,
    show_section as show_section,
    span as span,
    terminal_width as terminal_width,
    without_controls as without_controls,
    wrapped as wrapped,
)
from .worker import (
    WITHOUT_GPU as WITHOUT_GPU,
    Worker as Worker,
    WorkerDiedError as WorkerDiedError,
    WorkerPool as WorkerPool,
    WorkerTimeoutError as WorkerTimeoutError,
)
