"""The headers that CUDA text may include on the emulated GPU."""

from __future__ import annotations

import re

_SUPPORTED_NAMES = """
    cuda.h cudaTypedefs.h cuda_runtime.h cuda_runtime_api.h device_launch_parameters.h
    vector_types.h vector_functions.h math_constants.h device_functions.h
    cassert cfloat climits cmath cstddef cstdint cstdio cstdlib cstring limits type_traits utility
    assert.h float.h limits.h math.h stddef.h stdint.h stdio.h stdlib.h string.h
    cuda/std/cstdint cuda/std/type_traits cuda/std/limits cuda/std/cstddef cuda/std/cmath
    cuda/std/utility cuda/std/chrono
"""
SUPPORTED = frozenset(_SUPPORTED_NAMES.split())
"""Those of which the host's own, or `kernel.h`, provide what there is."""
_STANDARD = "algorithm array functional initializer_list numeric optional ratio tuple variant"
EMULATED = {
    **{f"cuda/std/{name}": name for name in _STANDARD.split()},
    "cuda_fp16.h": "half.h",
    "cuda_bf16.h": "bfloat16.h",
    "cooperative_groups.h": "groups.h",
    "cooperative_groups/memcpy_async.h": "group_copies.h",
    "cooperative_groups/reduce.h": "groups.h",
    "cooperative_groups/scan.h": "group_scans.h",
    "cuda/atomic": "atomic.h",
    "cuda/barrier": "barrier.h",
    "cuda/pipeline": "pipelines.h",
    "cuda_pipeline.h": "pipeline.h",
    "cuda_pipeline_primitives.h": "pipeline.h",
    "mma.h": "fragments.h",
}
"""CUDA's headers, and those of ``cuda/host`` or of C++ that stand for them."""

# Headers of cuda/host for what a text may name without a header of CUDA's own. They cost compile
# time, so only texts that need them have them.
_NAMED = {
    "simd.h": re.compile(r"\b__v(?:[a-z]+[24]|i[a-z]+\d?_[su]\w+)\b"),
    "special_functions.h": re.compile(
        r"\b(?:(?:sin|cos|sincos)pi|erfc?inv|erfcx|normcdf(?:inv)?|cyl_bessel_i[01]|rcbrt|rhypot"
        r"|r?norm[34]d)f?\s*\("
    ),
    "algorithm": re.compile(r"\bstd\s*::\s*(?:min|max|clamp|minmax)\s*[(<]"),
    "times.h": re.compile(r"\bchrono::"),
}


def is_offered(header: str) -> bool:
    """Whether CUDA text may include a header."""
    return header in SUPPORTED or header in EMULATED


def headers_named_in(source: str) -> set[str]:
    """Headers of ``cuda/host`` that a text needs although it includes none of CUDA's for it."""
    return {header for header, named in _NAMED.items() if named.search(source)}
