from .ansor import refuse_ansor as refuse_ansor
from .build import parameters_of as parameters_of, to_kernel as to_kernel
from .conv2d import Conv2dOperator as Conv2dOperator
from .conv2d_forms import as_gemm as as_gemm, gemm_forms as gemm_forms
from .database import (
    RECORD_FILE as RECORD_FILE,
    WORKLOAD_FILE as WORKLOAD_FILE,
    Database as Database,
    DatabaseRecord as DatabaseRecord,
    load_database as load_database,
)
from .emitted import check_emitted as check_emitted
from .filtered import (
    is_database as is_database,
    logs_in as logs_in,
    plain_name as plain_name,
    write_filtered as write_filtered,
)
from .gemm import (
    GemmOperator as GemmOperator,
    apply_gemm_form as apply_gemm_form,
    sizes_of as sizes_of,
)
from .gemm_forms import GemmForm as GemmForm, forms_of as forms_of
from .generators import require_space as require_space, space_generator as space_generator
from .kernel_cache import KernelCache as KernelCache
from .lower import Lowerer as Lowerer, apply_trace as apply_trace, cuda_target as cuda_target
from .operators import operator_of as operator_of
from .proposer import TvmProposer as TvmProposer
from .recipe import METASCHEDULE as METASCHEDULE
from .record_form import check_record as check_record
from .requirements import (
    check_tvm as check_tvm,
    import_tvm as import_tvm,
    installed_tvm as installed_tvm,
    without_tensor_intrinsics as without_tensor_intrinsics,
)
from .sampling import (
    Sampled as Sampled,
    Search as Search,
    load_search as load_search,
    sample as sample,
)
from .settings import (
    SPACES as SPACES,
    STRATEGIES as STRATEGIES,
    SearchSettings as SearchSettings,
    Space as Space,
)
from .space import TvmSpace as TvmSpace
from .store import KernelStore as KernelStore
from .tvm_graph import check_stored_workload as check_stored_workload
