from .analysis.output_reads import outputs_read as outputs_read
from .analysis.text_checks import (
    additions as additions,
    assembler_statements as assembler_statements,
    not_understood as not_understood,
)
from .llm.consultant import Consultant as Consultant
from .llm.endpoint import (
    KEY_VARIABLE as KEY_VARIABLE,
    URL_VARIABLE as URL_VARIABLE,
    Endpoint as Endpoint,
    LlmSettings as LlmSettings,
    Prices as Prices,
    Protocol as Protocol,
    Reply as Reply,
    connect as connect,
    read_reply as read_reply,
)
from .llm.proposals import (
    LlmMoves as LlmMoves,
    PatchError as PatchError,
    apply_patch as apply_patch,
)
from .llm.request import VOCABULARY as VOCABULARY
from .moves import MOVES as MOVES
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
    LaunchCosts as LaunchCosts,
    Situation as Situation,
    count_work as count_work,
)
from .priors.prior import BottleneckPrior as BottleneckPrior, improvement as improvement
from .priors.tactics import (
    GLOBAL_TACTICS as GLOBAL_TACTICS,
    SearchTactics as SearchTactics,
    Tactic as Tactic,
    initial_tactics as initial_tactics,
    pool_tactics as pool_tactics,
    summarize_observations as summarize_observations,
    write_tactics as write_tactics,
)
from .priors.work import KernelWork as KernelWork
from .running.confirmation import Confirmation as Confirmation, compare as compare
from .running.evaluators import (
    EvaluationTask as EvaluationTask,
    Evaluator as Evaluator,
    OwnProcess as OwnProcess,
)
from .running.explorer import GraphExplorer as GraphExplorer
from .running.gains_summary import (
    Summary as Summary,
    summarize as summarize,
    summary_lines as summary_lines,
    write_summary as write_summary,
)
from .running.kernel_folder import (
    BASELINE as BASELINE,
    SPEC_JSON as SPEC_JSON,
    STATE_JSON as STATE_JSON,
    VARIANTS as VARIANTS,
    SearchIdentity as SearchIdentity,
    SearchState as SearchState,
    read_control as read_control,
    read_state as read_state,
)
from .running.kernel_search import KernelSearchSettings as KernelSearchSettings
from .running.ncu_profiler import (
    Profiler as Profiler,
    metrics as metrics,
    read_counters as read_counters,
)
from .running.optimization import (
    create_evaluator as create_evaluator,
    optimize_kernels as optimize_kernels,
)
from .running.search_record import (
    SearchRecord as SearchRecord,
    in_tree_order as in_tree_order,
    read_searches as read_searches,
    search_files as search_files,
    search_folders as search_folders,
    search_values as search_values,
)
from .running.state_evaluation import SearchBench as SearchBench
from .source.edits import Edit as Edit
from .source.entry_extraction import ExtractedKernel as ExtractedKernel, extract as extract
from .source.tree import loop_start as loop_start
from .source.triton_checks import ModuleError as ModuleError
from .spec.kernel_spec import (
    Constant as Constant,
    KernelSpec as KernelSpec,
    LaunchPlan as LaunchPlan,
    ScalarSpec as ScalarSpec,
    State as State,
    TensorSpec as TensorSpec,
)
from .spec.sizes import evaluate as evaluate, used_names as used_names
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
from .spec.state_kernel import device_refusal as device_refusal, kernel_of as kernel_of
from .spec.tensors import (
    Layout as Layout,
    fixed_input as fixed_input,
    tensor_layout as tensor_layout,
)
from .strategy.action_space import (
    Action as Action,
    Incumbent as Incumbent,
    Proposal as Proposal,
    SearchStrategy as SearchStrategy,
)
from .strategy.graph import GraphEdge as GraphEdge, GraphNode as GraphNode
from .strategy.policy import (
    Experience as Experience,
    GraphStrategy as GraphStrategy,
)
from .strategy.search_parameters import SearchParameters as SearchParameters
from .strategy.strategies import (
    Exhaustive as Exhaustive,
    HillClimbing as HillClimbing,
    RandomExpansion as RandomExpansion,
    RandomSearch as RandomSearch,
)
from .strategy.t4 import (
    RecordedSpace as RecordedSpace,
    configuration_id as configuration_id,
    read_t4 as read_t4,
)
from .validation.gain import (
    CONFIRMED as CONFIRMED,
    LASTING_SD as LASTING_SD,
    ROUNDS as ROUNDS,
    is_out_of_reach as is_out_of_reach,
    is_proven as is_proven,
    is_worth_comparing as is_worth_comparing,
    judge_rounds as judge_rounds,
    proven_change as proven_change,
)
from .validation.hidden_inputs import (
    allows_other_sizes as allows_other_sizes,
    draw_between as draw_between,
    draw_other_sizes as draw_other_sizes,
)
from .validation.result import (
    PowerCutoff as PowerCutoff,
    Result as Result,
    SearchNode as SearchNode,
    VariantGain as VariantGain,
    power_cutoff as power_cutoff,
)
from .validation.variant_refusals import check_fits as check_fits
