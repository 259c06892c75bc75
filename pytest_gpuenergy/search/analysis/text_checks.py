"""Checks of a text: whether a baseline is understood, and what a variant adds to it."""

from __future__ import annotations

from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.triton_function import TritonFunction
from pytest_gpuenergy.search.source import cuda_checks, triton_checks
from pytest_gpuenergy.search.source.cuda_text import CudaText, Variable
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, State
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
"""The kind and the bytes of each plain type. Other types may be views of anything."""


def additions(state: State, before: State) -> frozenset[str]:
    """Return what the text of a state contains and that of another does not, in a few words each.

    These are ways to deceive that a comparison of results cannot see: what outlives a launch or
    tells the time in CUDA text, and in a Triton module everything but functions that Triton
    compiles.

    Raises:
        ModuleError: the text is not a Python module; the message is a clause without a period.
    """
    findings = cuda_checks.findings if state.language == "cuda" else triton_checks.findings
    return findings(state.source) - findings(before.source)


def assembler_statements(state: State) -> int:
    """Return the number of inline assembler statements in the text of a state."""
    if state.language == "cuda":
        return cuda_checks.assembler_statements(state.source)
    return triton_checks.assembler_statements(state.source)


def not_understood(spec: KernelSpec) -> str:
    """Return a sentence if the moves that parse a text leave the baseline alone; else "".

    Raises:
        UnavailableError: tree-sitter is needed and not installed.
    """
    kind = CudaKernel if spec.language == "cuda" else TritonFunction
    if kind.of(spec.baseline, spec) is not None:
        return ""
    hint = ""
    if spec.language == "cuda":
        why = CudaText.obstacle(spec.source, spec.entry) or "parameters other than the spec's"
        if not spec.extract and ("macro" in why or "condition" in why):
            hint = ' "extract": true in the spec, with a file, replaces macros.'
    else:
        why = "parameters, decorators or statements other than a plain function's"
    return (
        f"The rules do not understand the text, because of {why}, and change the launch at most."
        f"{hint}"
    )


def other_types(spec: KernelSpec) -> str:
    """Return a sentence if a parameter is of another type than its argument; else ""."""
    if spec.language != "cuda":
        return ""
    try:
        text = CudaText.of(spec.source, spec.entry)
    except UnavailableError:
        return ""
    tensors = {tensor.name: tensor.dtype for tensor in spec.tensors}
    scalars = {scalar.name: scalar.dtype for scalar in spec.scalars}
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
