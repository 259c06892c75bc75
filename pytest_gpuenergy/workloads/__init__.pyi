from .activations import (
    ACTIVATIONS as ACTIVATIONS,
    Activation as Activation,
    activated as activated,
)
from .array_math import (
    NUMPY as NUMPY,
    Allowance as Allowance,
    ArrayMath as ArrayMath,
    BytePair as BytePair,
    Distance as Distance,
    Extremes as Extremes,
    Values as Values,
    sliced_axes as sliced_axes,
)
from .bounds import (
    FLOAT8_PRODUCTS as FLOAT8_PRODUCTS,
    ErrorBound as ErrorBound,
)
from .contract import (
    Contract as Contract,
    check_tensor as check_tensor,
    reference_values as reference_values,
)
from .convolutions import (
    CONV_LAYOUTS as CONV_LAYOUTS,
    OCCURRENCES as OCCURRENCES,
    Conv2d as Conv2d,
    Conv2dShape as Conv2dShape,
    ConvLayout as ConvLayout,
)
from .edges import (
    REACHES as REACHES,
    UNIFORM as UNIFORM,
    UNIFORM_FLOATS as UNIFORM_FLOATS,
    Edges as Edges,
    fits as fits,
)
from .inputs import (
    NORMAL as NORMAL,
    beginning as beginning,
    repeated as repeated,
    write_repeated as write_repeated,
)
from .matrix_products import (
    FUSED_INPUTS as FUSED_INPUTS,
    LAYOUTS as LAYOUTS,
    SCALE_BLOCK as SCALE_BLOCK,
    USUAL_LAYOUTS as USUAL_LAYOUTS,
    Gemm as Gemm,
    Layout as Layout,
    Scaling as Scaling,
    product_name as product_name,
)
from .modes import (
    CONV_MODES as CONV_MODES,
    FLOAT8_MODES as FLOAT8_MODES,
    MODES as MODES,
    Mode as Mode,
    SumsOfProducts as SumsOfProducts,
)
from .number_types import (
    BFLOAT16 as BFLOAT16,
    FLOAT8 as FLOAT8,
    FLOATS as FLOATS,
    UNTOUCHED as UNTOUCHED,
    Array as Array,
    is_floating as is_floating,
    is_known as is_known,
    is_untouched as is_untouched,
    largest as largest,
    least as least,
    numbers as numbers,
    rounded_to as rounded_to,
    stored as stored,
    stored_as as stored_as,
    unit_roundoff as unit_roundoff,
    whole as whole,
    whole_sizes as whole_sizes,
)
from .product_requests import (
    GemmRequest as GemmRequest,
    measured_products as measured_products,
    parse_requests as parse_requests,
    products_in as products_in,
    search_options_notice as search_options_notice,
    sizes_text as sizes_text,
)
from .sensitivity import (
    Condition as Condition,
    estimate_conditions as estimate_conditions,
    estimate_scales as estimate_scales,
    estimate_terms as estimate_terms,
    likely_conditions as likely_conditions,
)
from .variants import (
    Variants as Variants,
    in_variants as in_variants,
    is_in_variants as is_in_variants,
    parse_variants as parse_variants,
    variants_named as variants_named,
)
from .workload import (
    IoContract as IoContract,
    Role as Role,
    Scalar as Scalar,
    Tensor as Tensor,
    Workload as Workload,
    is_plain_name as is_plain_name,
    whole_flops as whole_flops,
)
from .workload_registry import (
    ALL as ALL,
    CASES as CASES,
    KINDS as KINDS,
    all_networks as all_networks,
    check_named as check_named,
    choose_workloads as choose_workloads,
    distinct_shapes as distinct_shapes,
    find_workload as find_workload,
    from_parameters as from_parameters,
    known_workload as known_workload,
    network as network,
    networks_named as networks_named,
    numbered_case as numbered_case,
    parse_shape as parse_shape,
    split_words as split_words,
    to_parameters as to_parameters,
)
