"""`cache_policy_cg`: loads of a tensor get a cache hint."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pytest_gpuenergy.search.analysis.accesses import Access, Accesses
from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.triton_function import TritonFunction
from pytest_gpuenergy.search.moves.move import SourceMove, TextChange
from pytest_gpuenergy.search.source.cuda_text import BYTES, VECTOR_BYTES
from pytest_gpuenergy.search.source.edits import Edit
from pytest_gpuenergy.search.source.tree import ancestors, field, node_text

_FUNCTIONS = ("__ldcg", "__ldg", "__ldca")
_MODIFIERS = (".cg", ".ca")


class CachePolicyCg(SourceMove):
    """Have all loads of a tensor that is only read bypass the L1 cache, or go through it.

    Tensors are buffers of their own, so ``__restrict__`` can say so, too: loads may then be made
    before stores to others, and through the cache for what is only read.
    """

    name = "cache_policy_cg"
    languages = frozenset({"cuda", "triton"})
    relieves = frozenset({"gmem"})

    def on_cuda(self, kernel: CudaKernel) -> Iterator[TextChange]:
        if edits := _restrict_edits(kernel):
            yield TextChange.of(kernel, "__restrict__ for all tensors", edits)
        accesses = Accesses(kernel, moved=True)
        for parameter in accesses.read_only():
            own = accesses.of(parameter)
            for function in _FUNCTIONS if all(map(_can_be_hinted, own)) else ():
                edits = [edit for access in own for edit in _hint_edits(access, function)]
                yield TextChange.of(kernel, f"{function} for {parameter.name}", edits)

    def on_triton(self, kernel: TritonFunction) -> Iterator[TextChange]:
        loads = list(kernel.text.calls("load"))
        for modifier in _MODIFIERS:
            for number, load in enumerate(loads, start=1):
                edit = _modifier_edit(kernel, load, modifier)
                if edit is not None:
                    what = f"{modifier} for load {number} of {kernel.text.text(load.args[0])}"
                    yield TextChange.of(kernel, what, [edit])


def _restrict_edits(kernel: CudaKernel) -> list[Edit]:
    """Return the edits which state that no tensor overlaps another one."""
    pointers = [parameter for parameter in kernel.text.parameters if parameter.pointer]
    if len(pointers) < 2 or any(parameter.key not in kernel.tensors for parameter in pointers):
        return []
    return [
        Edit.before(parameter.node, "__restrict__ ")
        for parameter in pointers
        for around in ancestors(parameter.node)
        if around.type == "parameter_declaration" and "restrict" not in node_text(around)
    ]


def _can_be_hinted(access: Access) -> bool:
    if access.function and not access.function.startswith("__ld"):
        return False
    kind = access.address.width or access.root.type
    return kind in BYTES or kind in VECTOR_BYTES


def _hint_edits(access: Access, function: str) -> list[Edit]:
    """Return the edits by which a load is a call of a function."""
    node = access.node
    if access.function:
        return [Edit.of(field(node, "function") or node, function)]
    end = Edit.after(node, ")")
    if node.type == "pointer_expression":
        return [Edit(node.start_byte, node.start_byte + 1, f"{function}("), end]
    return [Edit.before(node, f"{function}(&"), end]


def _modifier_edit(kernel: TritonFunction, load: ast.Call, modifier: str) -> Edit | None:
    for keyword in load.keywords:
        if keyword.arg is None:
            return None
        if keyword.arg == "cache_modifier":
            return kernel.text.replaced(keyword.value, f'"{modifier}"')
    if not load.args or len(load.args) > 3 or any(isinstance(a, ast.Starred) for a in load.args):
        return None
    return kernel.text.with_keyword(load, f'cache_modifier="{modifier}"')
