from .contenders import (
    CONTENDER_MODULES as CONTENDER_MODULES,
    CONTENDERS as CONTENDERS,
    CONTENDERS_IN as CONTENDERS_IN,
    CUTLASS_PROFILER as CUTLASS_PROFILER,
    TUNED_BY as TUNED_BY,
    ContenderSetup as ContenderSetup,
    best_record as best_record,
    check_contenders as check_contenders,
    check_cutlass as check_cutlass,
    check_text_contender as check_text_contender,
    contender_kernels as contender_kernels,
    cudnn_call as cudnn_call,
    takes_part as takes_part,
)
from .conv.conv_templates import (
    DepthwiseParameters as DepthwiseParameters,
    GroupedParameters as GroupedParameters,
    NarrowParameters as NarrowParameters,
)
from .conv.implicit import ImplicitParameters as ImplicitParameters
from .conv.implicit_mma import ImplicitMmaParameters as ImplicitMmaParameters
from .conv.input_blocks import Blocks as Blocks, input_blocks as input_blocks
from .conv.packing import read_axis as read_axis
from .conv.shallow import ShallowParameters as ShallowParameters
from .gemm.costs import Costs as Costs, FittedCosts as FittedCosts, Trees as Trees, fitted as fitted
from .gemm.cutlass_configurations import (
    Alignments as Alignments,
    Cutlass3 as Cutlass3,
    configuration_named as configuration_named,
)
from .gemm.cutlass_kernels import (
    configurations as configurations,
    cutlass_candidates as cutlass_candidates,
    cutlass_program as cutlass_program,
    find_headers as find_headers,
    has_builders as has_builders,
)
from .gemm.cutlass_profiler import (
    fastest_verified as fastest_verified,
    profiled_kernel as profiled_kernel,
    profiler_options as profiler_options,
)
from .gemm.estimate import estimated_cycles as estimated_cycles
from .gemm.heuristics import advise_tiles as advise_tiles
from .gemm.library_kernels import (
    cublas_call as cublas_call,
    deepgemm_call as deepgemm_call,
    grouped_call as grouped_call,
    triton_candidates as triton_candidates,
)
from .gemm.mma import MmaParameters as MmaParameters
from .gemm.simt import TRAITS as TRAITS, SimtParameters as SimtParameters
from .gemm.skinny import SkinnyParameters as SkinnyParameters
from .gemm.tiling import TENSOR_TRAITS as TENSOR_TRAITS
from .gemm.wgmma import WgmmaParameters as WgmmaParameters
from .gemm.wgmma_float8 import WgmmaFloat8Parameters as WgmmaFloat8Parameters
from .gemm.wgmma_tf32 import WgmmaTf32Parameters as WgmmaTf32Parameters
from .registry import (
    FORMS as FORMS,
    Spaces as Spaces,
    check_architecture as check_architecture,
    kernels_of as kernels_of,
    load_records as load_records,
    records_of as records_of,
    search_ms as search_ms,
    tuner_files as tuner_files,
)
from .template_spaces import (
    TEMPLATE_FORM as TEMPLATE_FORM,
    TEMPLATES as TEMPLATES,
    best_parameters as best_parameters,
    rank_kernels as rank_kernels,
    template_space as template_space,
)
from .tvm.database import (
    RECORD_FILE as RECORD_FILE,
    WORKLOAD_FILE as WORKLOAD_FILE,
    Database as Database,
    DatabaseRecord as DatabaseRecord,
    load_database as load_database,
)
from .tvm.emitted import check_emitted as check_emitted
from .tvm.kernel_store import KernelCache as KernelCache, KernelStore as KernelStore
from .tvm.lower import (
    Lowerer as Lowerer,
    apply_trace as apply_trace,
    cuda_target as cuda_target,
    function_buffers as function_buffers,
    to_kernel as to_kernel,
)
from .tvm.operators import (
    apply_gemm_form as apply_gemm_form,
    product_sizes as product_sizes,
    tvm_operator as tvm_operator,
)
from .tvm.product_forms import (
    GemmForm as GemmForm,
    as_gemm as as_gemm,
    gemm_forms as gemm_forms,
    useful_forms as useful_forms,
)
from .tvm.record_form import check_record as check_record
from .tvm.search_logs import (
    LoggedSearch as LoggedSearch,
    Sampled as Sampled,
    is_database as is_database,
    load_search as load_search,
    logs_in as logs_in,
    plain_name as plain_name,
    sample as sample,
    write_filtered as write_filtered,
)
from .tvm.search_process import space_generator as space_generator
from .tvm.search_settings import (
    SPACES as SPACES,
    STRATEGIES as STRATEGIES,
    SearchSettings as SearchSettings,
    Space as Space,
)
from .tvm.tvm_graph import check_stored_workload as check_stored_workload
from .tvm.tvm_requirements import (
    check_tvm as check_tvm,
    import_tvm as import_tvm,
    installed_tvm as installed_tvm,
    without_tensor_intrinsics as without_tensor_intrinsics,
)
from .tvm.tvm_space import (
    TvmProposer as TvmProposer,
    TvmSpace as TvmSpace,
    require_space as require_space,
)
