from .account.account import (
    EAGER as EAGER,
    GRAPH as GRAPH,
    LAYERS as LAYERS,
    Account as Account,
    account_for_step as account_for_step,
    gaps_key as gaps_key,
    host_gaps_key as host_gaps_key,
    module_level as module_level,
    savings as savings,
    step_key as step_key,
)
from .account.call_figures import (
    profiled_gpu_us as profiled_gpu_us,
)
from .account.change_savings import (
    CallChange as CallChange,
    change_lines as change_lines,
    change_savings as change_savings,
)
from .account.product_savings import (
    CapSavings as CapSavings,
    ProductCosts as ProductCosts,
    ProductSavings as ProductSavings,
    StepCosts as StepCosts,
    alternatives as alternatives,
    product_savings as product_savings,
    savings_lines as savings_lines,
)
from .account.replay_report import (
    ReplayReport as ReplayReport,
    report_lines as report_lines,
    report_path as report_path,
    schema_document as schema_document,
)
from .account.serving import (
    ServingReport as ServingReport,
    best_setpoints as best_setpoints,
    serving_lines as serving_lines,
    serving_of as serving_of,
)
from .extract.calls import (
    CallForm as CallForm,
    GraphCalls as GraphCalls,
    LaunchForm as LaunchForm,
    UniqueCall as UniqueCall,
    read_calls as read_calls,
    unevenly_called as unevenly_called,
    unique_calls as unique_calls,
    with_calls_of_graph as with_calls_of_graph,
    write_calls as write_calls,
)
from .extract.exchanges import merged as merged
from .extract.kernel_extraction import (
    KernelExtraction as KernelExtraction,
    extract_kernels as extract_kernels,
    write_extraction as write_extraction,
)
from .extract.kernel_list import read_list as read_list, understood as understood
from .extract.model_products import (
    ModelProducts as ModelProducts,
    ProductCalls as ProductCalls,
    RecordedProduct as RecordedProduct,
    Storage as Storage,
    matrix_storage as matrix_storage,
    model_products as model_products,
    recorded_product as recorded_product,
)
from .extract.summary import (
    PhasePower as PhasePower,
    json_document as json_document,
    phase_powers as phase_powers,
    terminal as terminal,
)
from .extract.timeline import (
    chart_specs as chart_specs,
    write_results as write_results,
)
from .extract.trace import (
    Event as Event,
    TraceLaunch as TraceLaunch,
    host_operators as host_operators,
    launches as launches,
    read_trace as read_trace,
    write_trace as write_trace,
)
from .extract.unique_kernels import (
    Signature as Signature,
    UniqueKernel as UniqueKernel,
    replay_signature as replay_signature,
    unique_kernels as unique_kernels,
)
from .play.call_windows import CallWindow as CallWindow, choose_windows as choose_windows
from .play.changes import (
    ModuleCalls as ModuleCalls,
    ResultReads as ResultReads,
    call_changes as call_changes,
    fusible_modules as fusible_modules,
)
from .play.rank_replay import (
    ReplayOptions as ReplayOptions,
    call_settings as call_settings,
    slight_modules as slight_modules,
)
from .play.recorded import (
    argument_bytes as argument_bytes,
    read_measurements as read_measurements,
)
from .play.replay_plan import (
    ReplayPlan as ReplayPlan,
    model_name as model_name,
    replayed_key as replayed_key,
    step_workload as step_workload,
)
from .play.replay_run import (
    choose_planner as choose_planner,
    replay_profile as replay_profile,
    replay_schedule as replay_schedule,
    replay_source as replay_source,
    serving_path as serving_path,
)
from .play.step_capture import (
    capture_step as capture_step,
    with_empty_kernels as with_empty_kernels,
)
from .play.turns import call_turns as call_turns, changed_before_read as changed_before_read
from .power import (
    CLOCK as CLOCK,
    Bracket as Bracket,
    ClockError as ClockError,
    ClockRead as ClockRead,
    PowerAlignment as PowerAlignment,
    PowerCurve as PowerCurve,
    PowerSampler as PowerSampler,
    Span as Span,
    align as align,
    read_power as read_power,
    write_power as write_power,
)
from .profile.capture import (
    CallRecorder as CallRecorder,
    LiveCall as LiveCall,
    copied_tensor as copied_tensor,
    describe as describe,
)
from .profile.chains import ChainRecorder as ChainRecorder
from .profile.exported import Export as Export, exported_program as exported_program
from .profile.language_models import (
    LanguageModel as LanguageModel,
    load_model as load_model,
    load_program as load_program,
)
from .profile.profiling import (
    ProfileOptions as ProfileOptions,
    ProfileRun as ProfileRun,
    profile_model as profile_model,
    profile_sizes as profile_sizes,
)
from .profile.programs import (
    ExportRecord as ExportRecord,
    FunctionProgram as FunctionProgram,
    Prompt as Prompt,
    check_packages as check_packages,
    read_record as read_record,
    told_of_capture as told_of_capture,
)
from .profile.reuse import (
    Reuse as Reuse,
    ReuseSpan as ReuseSpan,
    ReuseStack as ReuseStack,
    copies as copies,
)
from .profile_folder import (
    ProfileRecord as ProfileRecord,
    rank_folders as rank_folders,
    read_profile as read_profile,
    write_profile as write_profile,
)
from .ranks import (
    ALONE as ALONE,
    EXCHANGES as EXCHANGES,
    Ranks as Ranks,
    device_word as device_word,
)
from .schedule import (
    BUCKET_TOKENS as BUCKET_TOKENS,
    MAX_BATCH as MAX_BATCH,
    Batching as Batching,
    Request as Request,
    Schedule as Schedule,
    Step as Step,
    batched as batched,
    read_schedule as read_schedule,
    served_steps as served_steps,
)
