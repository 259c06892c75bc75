from .database import (
    METASCHEDULE as METASCHEDULE,
    RECORD_FILE as RECORD_FILE,
    WORKLOAD_FILE as WORKLOAD_FILE,
    Database as Database,
    DatabaseRecord as DatabaseRecord,
    load_database as load_database,
)
from .emitted import check_emitted as check_emitted
from .kernel_store import KernelCache as KernelCache, KernelStore as KernelStore
from .lower import (
    Lowerer as Lowerer,
    apply_trace as apply_trace,
    cuda_target as cuda_target,
    parameters_of as parameters_of,
    to_kernel as to_kernel,
)
from .operators import (
    Conv2dOperator as Conv2dOperator,
    GemmOperator as GemmOperator,
    apply_gemm_form as apply_gemm_form,
    operator_of as operator_of,
    sizes_of as sizes_of,
)
from .product_forms import (
    GemmForm as GemmForm,
    as_gemm as as_gemm,
    forms_of as forms_of,
    gemm_forms as gemm_forms,
)
from .record_form import check_record as check_record
from .requirements import (
    check_tvm as check_tvm,
    import_tvm as import_tvm,
    installed_tvm as installed_tvm,
    without_tensor_intrinsics as without_tensor_intrinsics,
)
from .search_logs import (
    Sampled as Sampled,
    Search as Search,
    is_database as is_database,
    load_search as load_search,
    logs_in as logs_in,
    plain_name as plain_name,
    refuse_ansor as refuse_ansor,
    sample as sample,
    write_filtered as write_filtered,
)
from .search_process import require_space as require_space, space_generator as space_generator
from .search_settings import (
    SPACES as SPACES,
    STRATEGIES as STRATEGIES,
    SearchSettings as SearchSettings,
    Space as Space,
)
from .tvm_graph import check_stored_workload as check_stored_workload
from .tvm_space import TvmProposer as TvmProposer, TvmSpace as TvmSpace
