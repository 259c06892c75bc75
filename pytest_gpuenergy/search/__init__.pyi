from .analysis.cuda_kernel import CudaKernel as CudaKernel
from .analysis.output_reads import outputs_read as outputs_read
from .analysis.text_checks import (
    additions as additions,
    assembler_statements as assembler_statements,
    not_understood as not_understood,
)
from .llm.consultant import FILE_NAME as FILE_NAME, AnswerLog as AnswerLog, Consultant as Consultant
from .llm.endpoint import (
    KEY_VARIABLE as KEY_VARIABLE,
    MODEL as MODEL,
    PRIOR as PRIOR,
    TIMEOUT_S as TIMEOUT_S,
    URL_VARIABLE as URL_VARIABLE,
    Endpoint as Endpoint,
    LlmSettings as LlmSettings,
    Prices as Prices,
    Protocol as Protocol,
    Reply as Reply,
    read_reply as read_reply,
    url_in_environment as url_in_environment,
)
from .llm.proposals import (
    LlmMoves as LlmMoves,
    PatchError as PatchError,
    Refusal as Refusal,
    apply_patch as apply_patch,
)
from .llm.request import VOCABULARY as VOCABULARY, Context as Context
from .moves import MOVES as MOVES
from .moves.element_kernel import without_early_return as without_early_return
from .moves.move import (
    REGIONS as REGIONS,
    Application as Application,
    Move as Move,
    Region as Region,
    SourceMove as SourceMove,
    TextChange as TextChange,
)
from .priors.bottlenecks import (
    CardModel as CardModel,
    Costs as Costs,
    costs_of as costs_of,
    dominant as dominant,
    power_w as power_w,
    shares_of_energy as shares_of_energy,
    shares_of_time as shares_of_time,
    work_of as work_of,
)
from .priors.prior import (
    BottleneckPrior as BottleneckPrior,
    Situation as Situation,
    changed as changed,
    improvement as improvement,
    involvement as involvement,
    saved as saved,
    situation_of as situation_of,
)
from .priors.tactics import (
    GLOBAL_TACTICS as GLOBAL_TACTICS,
    SearchTactics as SearchTactics,
    Tactic as Tactic,
    pooled as pooled,
    tactics_at_start as tactics_at_start,
    tactics_from as tactics_from,
    write_tactics as write_tactics,
)
from .priors.work import KernelWork as KernelWork
from .running.evaluators import (
    EvaluationTask as EvaluationTask,
    Evaluator as Evaluator,
    OwnProcess as OwnProcess,
    TeamEvaluator as TeamEvaluator,
)
from .running.explorer import GraphExplorer as GraphExplorer, Guide as Guide, foreseen as foreseen
from .running.gains_summary import (
    Summary as Summary,
    summary_of as summary_of,
    table_of as table_of,
    totals_of as totals_of,
)
from .running.kernel_folder import (
    BASELINE as BASELINE,
    SPEC_JSON as SPEC_JSON,
    STATE_JSON as STATE_JSON,
    VARIANTS as VARIANTS,
    KernelFolder as KernelFolder,
    read_control as read_control,
)
from .running.ncu_profiler import (
    Profiler as Profiler,
    metrics as metrics,
    read_counters as read_counters,
)
from .running.search import (
    Search as Search,
    SearchOptions as SearchOptions,
    identity_of as identity_of,
)
from .running.search_record import (
    SearchRecord as SearchRecord,
    files_of as files_of,
    listed as listed,
    read_searches as read_searches,
    search_folders as search_folders,
    search_values as search_values,
)
from .running.search_state import (
    SearchIdentity as SearchIdentity,
    SearchState as SearchState,
    read_state as read_state,
)
from .source.counted_loops import with_counted_loops as with_counted_loops
from .source.edits import Edit as Edit, edited as edited
from .source.entry_extraction import ExtractedKernel as ExtractedKernel, extract as extract
from .source.polynomials import Atom as Atom, Polynomial as Polynomial
from .source.preprocessor import Preprocessor as Preprocessor
from .source.tree import start_of as start_of
from .source.triton_checks import ModuleError as ModuleError
from .spec.kernel_spec import (
    Constant as Constant,
    KernelSpec as KernelSpec,
    LaunchPlan as LaunchPlan,
    ScalarSpec as ScalarSpec,
    State as State,
    TensorSpec as TensorSpec,
)
from .spec.sizes import evaluate as evaluate, names_in as names_in
from .spec.spec_checks import check_spec as check_spec
from .spec.spec_file import (
    raw_spec as raw_spec,
    read_spec as read_spec,
    schema_document as schema_document,
    spec_paths as spec_paths,
    spec_schema as spec_schema,
    write_spec as write_spec,
)
from .spec.spec_workload import (
    SpecWorkload as SpecWorkload,
    floor_ms as floor_ms,
    workload_of as workload_of,
)
from .spec.state_kernel import kernel_of as kernel_of, refusal_of as refusal_of
from .spec.tensors import Layout as Layout, fixed_input as fixed_input, layout_of as layout_of
from .strategy.action_space import (
    Action as Action,
    Incumbent as Incumbent,
    Proposal as Proposal,
    Strategy as Strategy,
)
from .strategy.graph import GraphEdge as GraphEdge, GraphNode as GraphNode
from .strategy.policy import (
    Experience as Experience,
    GraphStrategy as GraphStrategy,
    StoredSearch as StoredSearch,
)
from .strategy.search_parameters import SearchParameters as SearchParameters
from .strategy.strategies import (
    Exhaustive as Exhaustive,
    HillClimbing as HillClimbing,
    RandomExpansion as RandomExpansion,
    RandomSearch as RandomSearch,
)
from .strategy.t4 import RecordedSpace as RecordedSpace, read_t4 as read_t4, state_id as state_id
from .trust.gain import (
    CONFIRMED as CONFIRMED,
    LASTING_SD as LASTING_SD,
    ROUNDS as ROUNDS,
    Confirmation as Confirmation,
    compare as compare,
    gain_of as gain_of,
    is_out_of_reach as is_out_of_reach,
    is_worth_comparing as is_worth_comparing,
    proven_change as proven_change,
)
from .trust.hidden import between as between, has_others as has_others, other_sizes as other_sizes
from .trust.result import (
    Limit as Limit,
    Result as Result,
    SearchNode as SearchNode,
    VariantGain as VariantGain,
    limit_of as limit_of,
)
from .trust.state_evaluation import Bench as Bench
from .trust.variant_refusals import check_fits as check_fits
