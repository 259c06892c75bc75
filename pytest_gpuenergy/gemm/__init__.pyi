from .cutlass_configurations import (
    Alignments as Alignments,
    Cutlass3 as Cutlass3,
    configuration_named as configuration_named,
)
from .cutlass_kernels import (
    configurations as configurations,
    cutlass_candidates as cutlass_candidates,
    cutlass_program as cutlass_program,
    find_headers as find_headers,
    has_builders as has_builders,
)
from .cutlass_profiler import (
    fastest_verified as fastest_verified,
    profiled_kernel as profiled_kernel,
    profiler_options as profiler_options,
)
from .gemm_space import (
    GEMM_FORM as GEMM_FORM,
    GEMM_TEMPLATES as GEMM_TEMPLATES,
    GemmParameters as GemmParameters,
    GemmSpace as GemmSpace,
    able_templates as able_templates,
    fits_card as fits_card,
    rank_gemm_kernels as rank_gemm_kernels,
)
from .heuristics import Advice as Advice, advice as advice
from .library_kernels import (
    TRITON_CONFIGURATIONS as TRITON_CONFIGURATIONS,
    cublas_call as cublas_call,
    triton_candidates as triton_candidates,
)
from .mma import MmaParameters as MmaParameters
from .simt import SimtParameters as SimtParameters
from .wgmma import WgmmaParameters as WgmmaParameters
from .wgmma_tf32 import WgmmaTf32Parameters as WgmmaTf32Parameters
