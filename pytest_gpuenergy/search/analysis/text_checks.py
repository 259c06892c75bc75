"""Checks of a text: whether a baseline is understood, and what a variant adds to it."""

from __future__ import annotations

from pytest_gpuenergy.kernels import argument_text
from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.triton_function import TritonFunction
from pytest_gpuenergy.search.source import cuda_checks, triton_checks
from pytest_gpuenergy.search.source.cuda_text import BYTES, FLOATS, CudaText, Variable
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, State
from pytest_gpuenergy.support import UnavailableError

_WIDE = {"long long": 8, "unsigned long long": 8, "size_t": 8}


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


def understood(state: State, spec: KernelSpec) -> CudaKernel | TritonFunction | None:
    """Return the kernel of a state; None if moves that parse its text leave it alone.

    Raises:
        UnavailableError: tree-sitter is needed and not installed.
    """
    return (CudaKernel if state.language == "cuda" else TritonFunction).of(state, spec)


def not_understood(spec: KernelSpec) -> str:
    """Return a sentence if the moves that parse a text leave the baseline alone; else "".

    Raises:
        UnavailableError: tree-sitter is needed and not installed.
    """
    if understood(spec.baseline, spec) is not None:
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
        if not isinstance(name, str):
            if not parameter.pointer and parameter.type not in {**BYTES, **_WIDE}:
                continue
            return (
                f"Its parameter {parameter.name} is {'a pointer to ' * parameter.pointer}"
                f"{parameter.type}, but it gets the struct {argument_text(name)}."
            )
        is_tensor = name in tensors
        dtype = tensors[name] if is_tensor else scalars[name]
        if parameter.pointer == is_tensor and not _differs(parameter, dtype):
            continue
        what = f"{'tensor' if is_tensor else 'scalar'} {name}, which is {dtype}"
        pointer = "a pointer to " if parameter.pointer else ""
        return f"Its parameter {parameter.name} is {pointer}{parameter.type}, but it gets {what}."
    return ""


def _differs(parameter: Variable, dtype: str) -> bool:
    """Return whether a parameter's type is surely not that of a tensor or scalar.

    A ``char`` may be a view of anything, and so may types that are not known.
    """
    size = {**BYTES, **_WIDE}.get(parameter.type)
    digits = "".join(c for c in dtype if c.isdigit())
    if size is None or not digits or parameter.type == "char":
        return False
    return size * 8 != int(digits) or ("float" in dtype) != (parameter.type in FLOATS)
