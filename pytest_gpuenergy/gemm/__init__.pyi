from .cublas import cublas_call as cublas_call
from .cutlass.candidates import (
    configurations as configurations,
    cutlass_candidates as cutlass_candidates,
    cutlass_program as cutlass_program,
)
from .cutlass.configurations import Alignments as Alignments, Cutlass3 as Cutlass3
from .cutlass.headers import find_headers as find_headers, has_builders as has_builders
from .cutlass.names import configuration_named as configuration_named
from .cutlass.profiler import (
    fastest_verified as fastest_verified,
    profiled_kernel as profiled_kernel,
    profiler_options as profiler_options,
)
from .heuristics import Advice as Advice, advice as advice
from .mma import MmaParameters as MmaParameters
from .recipe import TEMPLATE_FORM as TEMPLATE_FORM
from .simt import SimtParameters as SimtParameters
from .space import TemplateSpace as TemplateSpace, fits as fits
from .templates import (
    TEMPLATES as TEMPLATES,
    Parameters as Parameters,
    able_templates as able_templates,
    ranked as ranked,
)
from .triton import CONFIGURATIONS as CONFIGURATIONS, triton_candidates as triton_candidates
from .wgmma import WgmmaParameters as WgmmaParameters
from .wgmma_tf32 import WgmmaTf32Parameters as WgmmaTf32Parameters
