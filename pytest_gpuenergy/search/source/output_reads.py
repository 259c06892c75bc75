"""Outputs whose contents before a launch a text may read.

A kernel has no reason to look at what its outputs hold, except to add to it. One that does can
recognize that they are right already, and do less. Each use of an output must be known to be a
store; whatever else is done with it counts as reading. So this is no proof that a text reads what
is found, but that it does not read the rest, through the pointers that it is given.
"""

from __future__ import annotations

from pytest_gpuenergy.search.cuda_uses import is_read as is_read_by_cuda
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, State
from pytest_gpuenergy.search.triton_uses import is_read as is_read_by_triton


def outputs_read(state: State, spec: KernelSpec) -> frozenset[str]:
    """The names of the output tensors that a state may read, or of which nothing can be said.

    Raises:
        UnavailableError: tree-sitter is needed and not installed.
    """
    is_read = is_read_by_cuda if state.language == "cuda" else is_read_by_triton
    outputs = {one.name for one in spec.tensors if one.role == "output"}
    return frozenset(
        name
        for place, name in enumerate(spec.arguments)
        if name in outputs and is_read(state.source, spec.entry, place)
    )
