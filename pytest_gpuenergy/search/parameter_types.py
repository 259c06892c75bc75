"""Whether a CUDA kernel takes what its spec gives it: a reason why a baseline may be wrong."""

from __future__ import annotations

from pytest_gpuenergy.search.source.cuda_text import CudaText
from pytest_gpuenergy.search.source.cuda_variables import Variable
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec
from pytest_gpuenergy.support import UnavailableError

_KINDS = {
    "float": ("float", 4),
    "double": ("float", 8),
    "half": ("float", 2),
    "__half": ("float", 2),
    "nv_bfloat16": ("float", 2),
    "__nv_bfloat16": ("float", 2),
    "signed char": ("int", 1),
    "unsigned char": ("int", 1),
    "short": ("int", 2),
    "unsigned short": ("int", 2),
    "int": ("int", 4),
    "unsigned": ("int", 4),
    "unsigned int": ("int", 4),
    "long long": ("int", 8),
    "unsigned long long": ("int", 8),
    "size_t": ("int", 8),
}
"""Of plain types: what they are, and their bytes. Others may be views of anything."""


def other_types(spec: KernelSpec) -> str:
    """A sentence about the first parameter that is of another type than its argument, or empty."""
    if spec.language != "cuda":
        return ""
    try:
        text = CudaText.of(spec.source, spec.entry)
    except UnavailableError:
        return ""
    tensors = {one.name: one.dtype for one in spec.tensors}
    scalars = {one.name: one.dtype for one in spec.scalars}
    parameters = text.parameters if text is not None else ()
    for parameter, name in zip(parameters, spec.arguments, strict=False):
        is_tensor = name in tensors
        dtype = tensors[name] if is_tensor else scalars[name]
        if parameter.pointer == is_tensor and not _differs(parameter, dtype):
            continue
        what = f"{'tensor' if is_tensor else 'scalar'} {name}, which is {dtype}"
        pointer = "a pointer to " if parameter.pointer else ""
        return f"Its parameter {parameter.name} is {pointer}{parameter.type}, but it gets {what}."
    return ""


def _differs(parameter: Variable, dtype: str) -> bool:
    known = _KINDS.get(parameter.type)
    kind = "float" if "float" in dtype else "int"
    digits = "".join(c for c in dtype if c.isdigit())
    return known is not None and bool(digits) and known != (kind, int(digits) // 8)
