from .ahead import foreseen as foreseen
from .checks import check_spec as check_spec
from .claim import (
    CONFIRMED as CONFIRMED,
    LASTING_SD as LASTING_SD,
    claimed_change as claimed_change,
    is_out_of_reach as is_out_of_reach,
    may_be_claimed as may_be_claimed,
)
from .comparison import ROUNDS as ROUNDS, compare as compare, gain_of as gain_of
from .confirmation import Confirmation as Confirmation
from .control import read_control as read_control
from .data import fixed_input as fixed_input
from .evaluation import Bench as Bench
from .evaluator import Evaluator as Evaluator, OwnProcess as OwnProcess
from .experience import Experience as Experience
from .explorer import GraphExplorer as GraphExplorer
from .folder import (
    BASELINE as BASELINE,
    SPEC_JSON as SPEC_JSON,
    STATE_JSON as STATE_JSON,
    VARIANTS as VARIANTS,
    KernelFolder as KernelFolder,
)
from .gpu_process import GpuProcess as GpuProcess, Task as Task
from .graph_record import Edge as Edge, GraphNode as GraphNode
from .kernel import kernel_of as kernel_of, refusal_of as refusal_of
from .layout import Layout as Layout, layout_of as layout_of
from .limit import Limit as Limit, limit_of as limit_of
from .llm.answer_log import FILE_NAME as FILE_NAME, AnswerLog as AnswerLog
from .llm.consultant import Consultant as Consultant
from .llm.endpoint import Endpoint as Endpoint
from .llm.patch import PatchError as PatchError, apply_patch as apply_patch
from .llm.proposals import LlmMoves as LlmMoves, Refusal as Refusal
from .llm.protocol import Protocol as Protocol, Reply as Reply, read_reply as read_reply
from .llm.request import VOCABULARY as VOCABULARY, Context as Context
from .llm.settings import (
    KEY_VARIABLE as KEY_VARIABLE,
    MODEL as MODEL,
    PRIOR as PRIOR,
    TIMEOUT_S as TIMEOUT_S,
    URL_VARIABLE as URL_VARIABLE,
    LlmSettings as LlmSettings,
    Prices as Prices,
    url_in_environment as url_in_environment,
)
from .memory import check_fits as check_fits
from .move import REGIONS as REGIONS, Application as Application, Move as Move, Region as Region
from .moves import MOVES as MOVES
from .moves.atomics import AvoidAtomicsReduce as AvoidAtomicsReduce
from .moves.base import SourceMove as SourceMove
from .moves.block_sizes import ChangeBlockSizes as ChangeBlockSizes
from .moves.cache_policy import CachePolicyCg as CachePolicyCg
from .moves.element_kernel import without_early_return as without_early_return
from .moves.guards import PadTailAndMask as PadTailAndMask
from .moves.softmax_math import SoftmaxMathFusion as SoftmaxMathFusion
from .moves.vectorize import VectorizeGlobalLoads as VectorizeGlobalLoads
from .other_sizes import between as between, has_others as has_others, other_sizes as other_sizes
from .page import (
    SearchRecord as SearchRecord,
    files_of as files_of,
    listed as listed,
    read_searches as read_searches,
    search_folders as search_folders,
    search_values as search_values,
)
from .parameters import SearchParameters as SearchParameters
from .policy import GraphStrategy as GraphStrategy, StoredSearch as StoredSearch
from .priors.bottlenecks import (
    Costs as Costs,
    costs_of as costs_of,
    dominant as dominant,
    power_w as power_w,
    shares_of_energy as shares_of_energy,
    shares_of_time as shares_of_time,
)
from .priors.card import Card as Card
from .priors.counters import metrics as metrics, read_counters as read_counters
from .priors.estimate import (
    Situation as Situation,
    changed as changed,
    involvement as involvement,
    saved as saved,
    situation_of as situation_of,
)
from .priors.guide import Guide as Guide
from .priors.prior import BottleneckPrior as BottleneckPrior, improvement as improvement
from .priors.profiler import Profiler as Profiler
from .priors.tactics import (
    GLOBAL_TACTICS as GLOBAL_TACTICS,
    Part as Part,
    Tactic as Tactic,
    learn as learn,
    pooled as pooled,
    summary as summary,
    tactics_at_start as tactics_at_start,
)
from .priors.work import Work as Work, work_of as work_of
from .result import Result as Result
from .roofline import floor_ms as floor_ms
from .schema import schema_document as schema_document, spec_schema as spec_schema
from .search import Options as Options, Search as Search, identity_of as identity_of
from .search_state import (
    Gain as Gain,
    Identity as Identity,
    Node as Node,
    SearchState as SearchState,
    read_state as read_state,
)
from .sizes import evaluate as evaluate, names_in as names_in
from .source.counted_loops import with_counted_loops as with_counted_loops
from .source.cuda_kernel import CudaKernel as CudaKernel
from .source.cuda_text import CudaText as CudaText
from .source.edits import Edit as Edit, edited as edited
from .source.extraction import ExtractedKernel as ExtractedKernel, extract as extract
from .source.macros import joined as joined, tokens_of as tokens_of
from .source.output_reads import outputs_read as outputs_read
from .source.polynomials import Atom as Atom, Polynomial as Polynomial
from .source.preprocessor import (
    Preprocessor as Preprocessor,
    UndecidedError as UndecidedError,
    holds as holds,
)
from .source.text_checks import additions as additions, not_understood as not_understood
from .space import (
    Action as Action,
    Incumbent as Incumbent,
    Proposal as Proposal,
    Strategy as Strategy,
)
from .spec import KernelSpec as KernelSpec, ScalarSpec as ScalarSpec, TensorSpec as TensorSpec
from .spec_file import (
    raw_spec as raw_spec,
    read_spec as read_spec,
    spec_paths as spec_paths,
    write_spec as write_spec,
)
from .state import Constant as Constant, LaunchPlan as LaunchPlan, State as State
from .strategies import (
    Exhaustive as Exhaustive,
    HillClimbing as HillClimbing,
    RandomExpansion as RandomExpansion,
    RandomSearch as RandomSearch,
)
from .summary import (
    Summary as Summary,
    summary_of as summary_of,
    table_of as table_of,
    totals_of as totals_of,
)
from .t4 import RecordedSpace as RecordedSpace, read_t4 as read_t4, state_id as state_id
from .team import TeamEvaluator as TeamEvaluator
from .workload import SpecWorkload as SpecWorkload, workload_of as workload_of
