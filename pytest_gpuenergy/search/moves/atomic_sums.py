"""`avoid_atomics_reduce`: a block adds up by itself, then once to the tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.analysis.accesses import SHARED_BYTES, Access, Accesses, shared_bytes
from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.moves.element_kernel import without_early_return
from pytest_gpuenergy.search.moves.move import SourceMove, TextChange
from pytest_gpuenergy.search.moves.vector_parts import outside_of
from pytest_gpuenergy.search.source.edits import Edit, block_of, indented
from pytest_gpuenergy.search.source.polynomials import Polynomial
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    arguments_of,
    field,
    indentation,
    nodes,
    operator_of,
    statements,
    text_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_WARP = 32
_SIZES = {"float": 4, "int": 4, "unsigned": 4, "unsigned int": 4, "double": 8}
_LINEAR = "threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)"
_MOST_WARPS = 32
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
        if any(nodes(kernel.text.body, "return_statement")) or kernel.threads % _WARP:
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
            if place is not None and _is_of_block(kernel, place):
                if not any(_is_by_one_thread(kernel, access) for access in own):
                    yield from _reduced(kernel, own, place)
            else:
                yield from _private(kernel, own)


def _adds(access: Access) -> bool:
    """Return whether an access is a statement ``atomicAdd(place, value);``."""
    outer = access.node.parent
    return (
        access.function == "atomicAdd"
        and len(arguments_of(access.node)) == 2
        and not access.address.width
        and outer is not None
        and outer.type == "expression_statement"
    )


def _is_of_block(kernel: CudaKernel, place: Polynomial) -> bool:
    """Return whether all threads of a block compute the same place."""
    return all(
        kernel.values(atom) is not None or atom.text.startswith("blockIdx.") for atom in place.atoms
    )


def _is_by_one_thread(kernel: CudaKernel, access: Access) -> bool:
    """Return whether only threads of certain numbers in their block make an access."""
    for node in ancestors(access.node):
        condition = field(node, "condition") if node.type == "if_statement" else None
        compared = nodes(condition, "binary_expression", "unary_expression") if condition else ()
        for part in compared:
            sides = [field(part, name) for name in ("left", "right", "argument")]
            known = [kernel.polynomial(side) for side in sides if side is not None]
            if operator_of(part) in ("==", "!", "<", "<=") and any(
                number is not None
                and number.depends_on("threadIdx")
                and not number.depends_on("blockIdx")
                for number in known
            ):
                return True
    return False


def _reduced(
    kernel: CudaKernel, own: tuple[Access, ...], place: Polynomial
) -> Iterator[TextChange]:
    root = own[0].root
    partial = kernel.fresh(f"{root.name}_partial")
    edits = [
        Edit.of(node, f"{partial} += {text_of(arguments_of(node)[1])}")
        for node in (access.node for access in own)
    ]
    first = _first_of(kernel)
    by = indentation(first, kernel.text.source)
    declared = f"{root.type} {partial} = 0;\n{by}"
    edits.append(Edit.before(first, declared))
    target = _target(kernel, own[0], place)
    by_lane = f"if ({_thread(kernel)} % {_WARP} == 0) atomicAdd({target}, {partial});"
    for what, lines in (
        ("block", _block_sum(kernel, root.type, partial, target)),
        ("warp", [*_warp_sum(kernel, partial), by_lane]),
    ):
        end = _end_of(kernel, lines, by)
        yield TextChange.of(kernel, f"{what} reduction for {root.name}", [*edits, end])


def _target(kernel: CudaKernel, access: Access, place: Polynomial) -> str:
    """Return the place at the end of the kernel; it names sizes of the block, which may change."""
    text = outside_of(kernel, kernel.text.body, access.place, {})
    if text is not None and "blockDim" in text:
        return text
    return f"&{access.root.name}[{place.text()}]"


def _first_of(kernel: CudaKernel) -> Node:
    return statements(kernel.text.body)[0]


def _end_of(kernel: CudaKernel, lines: list[str], by: str) -> Edit:
    """Return the edit that adds statements at the end of the kernel."""
    end = kernel.text.body.end_byte - 1
    before = kernel.text.source[:end].rstrip()
    return Edit(len(before), end, f"\n{by}{indented(lines, by)}\n")


def _warp_sum(kernel: CudaKernel, partial: str) -> list[str]:
    offset = kernel.fresh("offset")
    return [
        "#pragma unroll",
        *block_of(
            f"for (int {offset} = 16; {offset} > 0; {offset} /= 2)",
            [f"{partial} += __shfl_down_sync(0xffffffffu, {partial}, {offset});"],
        ),
    ]


def _thread(kernel: CudaKernel) -> str:
    _, y, z = kernel.block
    return "threadIdx.x" if y * z == 1 else f"({_LINEAR})"


def _threads(kernel: CudaKernel) -> str:
    _, y, z = kernel.block
    return "blockDim.x" if y * z == 1 else "blockDim.x * blockDim.y * blockDim.z"


def _block_sum(kernel: CudaKernel, kind: str, partial: str, target: str) -> list[str]:
    thread, warps = _thread(kernel), f"{_threads(kernel)} / {_WARP}"
    sums, warp = kernel.fresh(f"{partial}s"), kernel.fresh("warp")
    added = [f"{partial} = {sums}[0];"]
    loop = f"for (int {warp} = 1; {warp} < {warps}; ++{warp})"
    added += [f"{loop} {partial} += {sums}[{warp}];", f"atomicAdd({target}, {partial});"]
    return [
        f"__shared__ {kind} {sums}[{_MOST_WARPS}];",
        *_warp_sum(kernel, partial),
        f"if ({thread} % {_WARP} == 0) {sums}[{thread} / {_WARP}] = {partial};",
        "__syncthreads();",
        *block_of(f"if ({thread} == 0)", added),
    ]


def _private(kernel: CudaKernel, own: tuple[Access, ...]) -> Iterator[TextChange]:
    """Yield the kernel with a copy of a small tensor of one size in shared memory."""
    root = own[0].root
    if kernel.tensors[root.key].strides is not None:
        return
    shapes = set(kernel.facts.shapes[kernel.tensors[root.key].name])
    count = 1
    for size in next(iter(shapes)):
        count *= size
    used = shared_bytes(kernel)
    if len(shapes) != 1 or used is None or used + count * _SIZES[root.type] > SHARED_BYTES:
        return
    if any(_is_spread(kernel, access) for access in own):
        return
    copy, bin_ = kernel.fresh(f"{root.name}_of_block"), kernel.fresh("bin")
    first = _first_of(kernel)
    by = indentation(first, kernel.text.source)
    loop = f"for (int {bin_} = {_thread(kernel)}; {bin_} < {count}; {bin_} += {_threads(kernel)})"
    before = [
        f"__shared__ {root.type} {copy}[{count}];",
        f"{loop} {copy}[{bin_}] = 0;",
        "__syncthreads();",
    ]
    after = [
        "__syncthreads();",
        *block_of(
            loop,
            [f"if ({copy}[{bin_}] != 0) atomicAdd(&{root.name}[{bin_}], {copy}[{bin_}]);"],
        ),
    ]
    edits = [Edit.before(first, f"{indented(before, by)}\n{by}")]
    for access in own:
        edits += [
            Edit.of(node, copy) for node in access.address.identifiers if text_of(node) == root.name
        ]
    if len(edits) != len(own) + 1:
        return
    edits.append(_end_of(kernel, after, by))
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
