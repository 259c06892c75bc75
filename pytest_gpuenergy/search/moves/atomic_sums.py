"""`avoid_atomics_reduce`: a block adds up by itself, then once to the tensor."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from pytest_gpuenergy.search.analysis.accesses import SHARED_BYTES, Access, Accesses, shared_bytes
from pytest_gpuenergy.search.analysis.cuda_kernel import WARP, CudaKernel
from pytest_gpuenergy.search.moves.element_kernel import without_early_return
from pytest_gpuenergy.search.moves.move import SourceMove, TextChange
from pytest_gpuenergy.search.moves.vector_parts import hoisted_text
from pytest_gpuenergy.search.source.edits import Edit, braced_lines, indented_text
from pytest_gpuenergy.search.source.polynomials import Polynomial
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    call_arguments,
    expression_operator,
    field,
    indentation,
    node_text,
    nodes,
    only,
    statements,
)

_SIZES = {"float": 4, "int": 4, "unsigned": 4, "unsigned int": 4, "double": 8}
_LINEAR = "threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)"
_MAX_WARPS = 32
"""The most warps of a block; the text has room for them, so that other moves can add some."""


class AvoidAtomicsReduce(SourceMove):
    """Form sums that all threads add atomically in registers or shared memory first.

    A sum at one place for the whole block: each thread keeps its part, and warps exchange theirs.
    Sums at places that depend on data, in a small tensor: a copy of it in shared memory.
    """

    name = "avoid_atomics_reduce"
    languages = frozenset({"cuda"})
    relieves = frozenset({"atomics", "gmem"})

    def on_cuda(self, kernel: CudaKernel) -> Iterator[TextChange]:
        kernel = without_early_return(kernel)
        if any(nodes(kernel.text.body, "return_statement")) or kernel.threads % WARP:
            return
        accesses = Accesses(kernel)
        for parameter in kernel.text.parameters:
            own = accesses.of(parameter)
            if parameter.key in accesses.unclear or parameter.key not in kernel.tensors:
                continue
            if parameter.type not in _SIZES or not all(_adds(access) for access in own) or not own:
                continue
            places = {access.address.offset for access in own}
            place = places.pop() if len(places) == 1 else None
            if place is not None and all(  # the same one for all threads of a block
                kernel.values(atom) is not None or atom.text.startswith("blockIdx.")
                for atom in place.atoms
            ):
                if not any(_is_by_one_thread(kernel, access) for access in own):
                    yield from _register_sums(kernel, own, place)
            else:
                yield from _private(kernel, own)


def _adds(access: Access) -> bool:
    """Return whether an access is a statement ``atomicAdd(place, value);``."""
    outer = access.node.parent
    return (
        access.function == "atomicAdd"
        and len(call_arguments(access.node)) == 2
        and not access.address.width
        and outer is not None
        and outer.type == "expression_statement"
    )


def _is_by_one_thread(kernel: CudaKernel, access: Access) -> bool:
    """Return whether only threads of certain numbers in their block make an access."""
    for node in ancestors(access.node):
        condition = field(node, "condition") if node.type == "if_statement" else None
        compared = nodes(condition, "binary_expression", "unary_expression") if condition else ()
        for part in compared:
            if expression_operator(part) not in ("==", "!", "<", "<="):
                continue
            parts = [field(part, name) for name in ("left", "right", "argument")]
            for number in [kernel.polynomial(side) for side in parts if side is not None]:
                by_thread = number is not None and number.depends_on("threadIdx")
                if by_thread and number is not None and not number.depends_on("blockIdx"):
                    return True
    return False


def _register_sums(
    kernel: CudaKernel, own: tuple[Access, ...], place: Polynomial
) -> Iterator[TextChange]:
    """Yield the kernel with a sum in registers, which warps put together at the end."""
    root = own[0].root
    partial, offset = kernel.fresh(f"{root.name}_partial"), kernel.fresh("offset")
    sums, warp = kernel.fresh(f"{partial}s"), kernel.fresh("warp")
    thread = _thread(kernel)
    edits = [
        Edit.of(access.node, f"{partial} += {node_text(call_arguments(access.node)[1])}")
        for access in own
    ]
    # The place names sizes of the block, which may change.
    target = hoisted_text(kernel, kernel.text.body, own[0].place, {})
    if target is None or "blockDim" not in target:
        target = f"&{root.name}[{place.text()}]"
    added = f"{partial} += __shfl_down_sync(0xffffffffu, {partial}, {offset});"
    head = f"for (int {offset} = 16; {offset} > 0; {offset} /= 2)"
    warp_sum = ["#pragma unroll", *braced_lines(head, [added])]
    loop = f"for (int {warp} = 1; {warp} < {_threads(kernel)} / {WARP}; ++{warp})"
    by_first = [
        f"{partial} = {sums}[0];",
        f"{loop} {partial} += {sums}[{warp}];",
        f"atomicAdd({target}, {partial});",
    ]
    ends = {
        "block": [
            f"__shared__ {root.type} {sums}[{_MAX_WARPS}];",
            *warp_sum,
            f"if ({thread} % {WARP} == 0) {sums}[{thread} / {WARP}] = {partial};",
            "__syncthreads();",
            *braced_lines(f"if ({thread} == 0)", by_first),
        ],
        "warp": [*warp_sum, f"if ({thread} % {WARP} == 0) atomicAdd({target}, {partial});"],
    }
    for what, lines in ends.items():
        around = _around_body(kernel, [f"{root.type} {partial} = 0;"], lines)
        yield TextChange.of(kernel, f"{what} reduction for {root.name}", [*edits, *around])


def _around_body(kernel: CudaKernel, before: list[str], after: list[str]) -> list[Edit]:
    """Return the edits that add statements at the beginning and the end of the kernel."""
    source, first = kernel.text.source, statements(kernel.text.body)[0]
    by, end = indentation(first, source), kernel.text.body.end_byte - 1
    return [
        Edit.before(first, f"{indented_text(before, by)}\n{by}"),
        Edit(len(source[:end].rstrip()), end, f"\n{by}{indented_text(after, by)}\n"),
    ]


def _thread(kernel: CudaKernel) -> str:
    _, y, z = kernel.block
    return "threadIdx.x" if y * z == 1 else f"({_LINEAR})"


def _threads(kernel: CudaKernel) -> str:
    _, y, z = kernel.block
    return "blockDim.x" if y * z == 1 else "blockDim.x * blockDim.y * blockDim.z"


def _private(kernel: CudaKernel, own: tuple[Access, ...]) -> Iterator[TextChange]:
    """Yield the kernel with a copy of a small tensor of one size in shared memory."""
    root = own[0].root
    tensor, used = kernel.tensors[root.key], shared_bytes(kernel)
    shape = only(list(set(kernel.facts.shapes[tensor.name])))
    if tensor.strides is not None or shape is None or used is None:
        return
    count = prod(shape)
    if used + count * _SIZES[root.type] > SHARED_BYTES:
        return
    names = [n for access in own for n in access.address.identifiers if node_text(n) == root.name]
    if len(names) != len(own) or any(_is_spread(kernel, access) for access in own):
        return
    copy, bin_ = kernel.fresh(f"{root.name}_of_block"), kernel.fresh("bin")
    loop = f"for (int {bin_} = {_thread(kernel)}; {bin_} < {count}; {bin_} += {_threads(kernel)})"
    add = f"if ({copy}[{bin_}] != 0) atomicAdd(&{root.name}[{bin_}], {copy}[{bin_}]);"
    before = [
        f"__shared__ {root.type} {copy}[{count}];",
        f"{loop} {copy}[{bin_}] = 0;",
        "__syncthreads();",
    ]
    around = _around_body(kernel, before, ["__syncthreads();", *braced_lines(loop, [add])])
    edits = [*(Edit.of(name, copy) for name in names), *around]
    yield TextChange.of(kernel, f"copy of {root.name} for each block", edits)


def _is_spread(kernel: CudaKernel, access: Access) -> bool:
    """Return whether neighbouring threads add to neighbouring places, without conflicts."""
    offset = access.address.offset
    if offset is None:
        return False
    starts = [
        start
        for loop in kernel.text.loops
        if loop.variable.key in offset.variables
        and (start := kernel.polynomial(loop.start)) is not None
    ]
    return any(
        atom.text.startswith("threadIdx.") for part in (offset, *starts) for atom in part.atoms
    )
