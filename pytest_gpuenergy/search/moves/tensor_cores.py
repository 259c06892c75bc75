"""`switch_to_mma_or_wgmma`: products of tiles by tensor cores."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpuenergy.search.analysis.accesses import (
    SHARED_BYTES,
    Access,
    Accesses,
    array_dims,
    shared_bytes,
)
from pytest_gpuenergy.search.analysis.cuda_kernel import WARP, CudaKernel
from pytest_gpuenergy.search.analysis.triton_function import TritonFunction
from pytest_gpuenergy.search.moves.move import SourceMove, TextChange
from pytest_gpuenergy.search.source.cuda_text import CountedLoop, Variable
from pytest_gpuenergy.search.source.edits import Edit, braced_lines, inclusion, indented_text
from pytest_gpuenergy.search.source.polynomials import Atom, Polynomial
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    bare,
    call_arguments,
    called,
    indentation,
    inside,
    is_call,
    is_zero,
    loop_start,
    node_text,
    nodes,
    only,
    sides,
    statement_expression,
    statements,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_NARROW = ("float16", "bfloat16")
_MIN_LENGTH = 16
"""The fewest elements that ``tl.dot`` takes along each dimension."""
_HEADER = "<mma.h>"
_WIDENED = {
    "half": "__half2float",
    "__half": "__half2float",
    "__nv_bfloat16": "__bfloat162float",
    "nv_bfloat16": "__bfloat162float",
}
_SIDE = 16
_ROW_MULTIPLE = 8
"""``wmma`` takes rows of a multiple of this many elements (CUDA C++ Programming Guide)."""


class SwitchToMmaOrWgmma(SourceMove):
    """Use tensor cores for float16 and bfloat16, and for float32 where the spec allows it.

    CUDA: a product of two tiles in shared memory, an element for each thread, by ``wmma``.
    Triton: a sum of products of broadcast blocks, by ``tl.dot``.
    """

    name = "switch_to_mma_or_wgmma"
    languages = frozenset({"cuda", "triton"})
    relieves = frozenset({"compute", "smem"})

    def on_cuda(self, kernel: CudaKernel) -> Iterator[TextChange]:
        accesses = Accesses(kernel)
        found = [p for loop in kernel.text.loops if (p := _product(kernel, accesses, loop))]
        product, used = only(found), shared_bytes(kernel)
        if product is None or used is None or any(nodes(kernel.text.body, "return_statement")):
            return
        if used + 4 * product.rows * product.width <= SHARED_BYTES:
            yield TextChange.of(kernel, f"wmma for {product.total.name}", _edits(kernel, product))

    def on_triton(self, kernel: TritonFunction) -> Iterator[TextChange]:
        ends = [call.args[-1:] for call in kernel.text.calls("arange")]
        lengths = [kernel.polynomial(end[0]) if end else None for end in ends]
        if any(length is None or (length.value or 0) < _MIN_LENGTH for length in lengths):
            return
        for number, call in enumerate(kernel.text.calls("sum"), start=1):
            edit = _dot(kernel, call)
            if edit is not None:
                yield TextChange.of(kernel, f"dot for sum {number}", [edit])


def _dot(kernel: TritonFunction, call: ast.Call) -> Edit | None:
    """Return the edit of ``sum(a[:, :, None] * b[None, :, :], 1)`` to a matrix product."""
    axis = [*call.args[1:], *(k.value for k in call.keywords if k.arg == "axis")]
    match call.args[:1], axis:
        case [ast.BinOp(left=left, op=ast.Mult(), right=right)], [ast.Constant(value=1)]:
            names = [_expanded_block(left, 2), _expanded_block(right, 0)]
            if None in names:
                names = [_expanded_block(right, 2), _expanded_block(left, 0)]
        case _:
            return None
    known = [name for name in names if name is not None]
    dtypes = {_dtype(kernel, name) for name in known}
    if len(known) != 2 or len(dtypes) != 1:
        return None
    dtype = dtypes.pop()
    if dtype not in _NARROW and not (dtype == "float32" and kernel.spec.tensor_cores):
        return None
    tl = kernel.text.language
    operands = [
        name
        if kernel.text.definition(name) is _load_call(kernel, name)
        else f"{name}.to({tl}.{dtype})"
        for name in known
    ]
    return kernel.text.replaced(call, f"{tl}.dot({', '.join(operands)})")


def _expanded_block(node: ast.expr, place: int) -> str | None:
    """Return the name of a block of two dimensions that gets a third one at ``place``."""
    match node:
        case ast.Subscript(
            value=ast.Call(func=ast.Attribute(value=ast.Name() as inner, attr="to")), slice=places
        ):
            return _expanded_block(ast.Subscript(inner, places, ast.Load()), place)
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=elements)):
            new = [isinstance(e, ast.Constant) and e.value is None for e in elements]
            return name if new == [position == place for position in range(3)] else None
    return None


def _load_call(kernel: TritonFunction, name: str) -> ast.Call | None:
    """Return the load that a block comes from, with or without a conversion."""
    value = kernel.text.definition(name)
    match value:
        case ast.Call(func=ast.Attribute(value=inner, attr="to")):
            value = inner
    return value if isinstance(value, ast.Call) and kernel.text.called(value) == "load" else None


def _dtype(kernel: TritonFunction, name: str) -> str | None:
    """Return the type of the tensor that a block is loaded from."""
    load = _load_call(kernel, name)
    if load is None or not load.args:
        return None
    pointer = only(list(_pointers(kernel, load.args[0], 10)))
    return None if pointer is None else kernel.tensors[pointer].dtype


def _pointers(kernel: TritonFunction, node: ast.expr, depth: int) -> set[str]:
    """Return the tensors that an expression depends on."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in kernel.tensors:
            found.add(part.id)
        elif isinstance(part, ast.Name) and depth:
            for statement in kernel.text.assignments.get(part.id, []):
                if isinstance(statement, ast.Assign | ast.AugAssign):
                    found |= _pointers(kernel, statement.value, depth - 1)
    return found


@dataclass(frozen=True)
class _Product:
    """``for (int i = 0; i < depth; ++i) total += a[threadIdx.y][i] * b[i][threadIdx.x];``.

    Attributes:
        loop: the whole loop.
        outer: the outermost loop around it.
        total: the variable that is added to.
        a, b: the shared arrays.
        rows: the rows of the product.
        width: the length of a row of ``b``, with padding.
    """

    loop: CountedLoop
    outer: Node
    total: Variable
    a: Variable
    b: Variable
    rows: int
    width: int


def _product(kernel: CudaKernel, accesses: Accesses, loop: CountedLoop) -> _Product | None:
    """Return the product that a loop adds up, an element for each thread."""
    statement = only(statements(loop.body))
    parts = None if statement is None else sides(statement_expression(statement), "+=")
    factors = None if parts is None else sides(bare(parts[1]), "*")
    if parts is None or factors is None or loop.step is not None:
        return None
    total = kernel.text.variable(parts[0])
    left, right = (_widened_element(accesses, bare(factor)) for factor in factors)
    depth, start = kernel.polynomial(loop.bound), kernel.polynomial(loop.start)
    if total is None or left is None or right is None or left.root.type != right.root.type:
        return None
    rows, columns = (Polynomial.atom(Atom(f"threadIdx.{axis}")) for axis in "yx")
    turn = loop.variable.number
    places = [list(map(kernel.polynomial, access.address.subscripts)) for access in (left, right)]
    x, y, z = kernel.block
    if z != 1 or places != [[rows, turn], [turn, columns]]:
        return None
    if depth is None or depth.value is None or start is None or start.value != 0:
        return None
    a, b, outer = left.root, right.root, _outermost_loop(kernel, loop)
    if any(size % _SIDE or not size for size in (x, y, depth.value)):
        return None
    if not (_has_shape(kernel, a, y, depth.value) and _has_shape(kernel, b, depth.value, x)):
        return None
    if outer is None or not _is_sum(kernel, total, outer) or not _is_between_barriers(loop):
        return None
    width = (array_dims(kernel, b) or (0, 0))[1]
    return _Product(loop, outer, total, a, b, y, width)


def _widened_element(accesses: Accesses, node: Node) -> Access | None:
    """Return the element that is converted to single precision."""
    argument = only(call_arguments(node))
    if argument is None:
        return None
    own = only([access for access in accesses.within(node) if access.node == bare(argument)])
    if own is None or not own.root.shared or own.root.key in accesses.unclear:
        return None
    return own if called(node) == _WIDENED.get(own.root.type) else None


def _has_shape(kernel: CudaKernel, array: Variable, rows: int, columns: int) -> bool:
    """Return whether an array has that many elements, and perhaps more in a row."""
    dims = array_dims(kernel, array)
    if dims is None or len(dims) != 2 or array.declaration is None:
        return False
    return dims[0] == rows and dims[1] >= columns and dims[1] % _ROW_MULTIPLE == 0


def _outermost_loop(kernel: CudaKernel, loop: CountedLoop) -> Node | None:
    """Return the outermost loop, if all threads of a block reach the inner one equally often."""
    known = {other_loop.node.id: other_loop for other_loop in kernel.text.loops}
    outer = None
    for node in ancestors(loop.node):
        if node == kernel.text.body:
            return outer
        if node.type == "for_statement":
            around = known.get(node.id)
            ends = (around.start, around.bound, around.step) if around is not None else ()
            limits = [kernel.polynomial(end) for end in ends if end is not None]
            if not limits or any(
                limit is None or limit.depends_on("threadIdx") for limit in limits
            ):
                return None
            outer = node
        elif node.type != "compound_statement":
            return None
    return None


def _is_sum(kernel: CudaKernel, total: Variable, outer: Node) -> bool:
    """Return whether a variable starts at zero, is only added to in a loop, and read after it."""
    if total.type != "float" or not is_zero(total.value) or total.scope != kernel.text.body:
        return False
    uses = kernel.text.uses[total.key]
    others = [use for use in uses if not inside(use, outer)]
    return len(others) == len(uses) - 1 and all(u.start_byte > outer.end_byte for u in others)


def _is_between_barriers(loop: CountedLoop) -> bool:
    parent = loop.node.parent
    around = [n for n in statements(parent) if n.type != "preproc_call"] if parent else []
    if loop.node not in around:
        return False
    at = around.index(loop.node)
    neighbours = around[at - 1 : at] + around[at + 1 : at + 2]
    return len(neighbours) == 2 and all(is_call(n, "__syncthreads") for n in neighbours)


def _edits(kernel: CudaKernel, product: _Product) -> list[Edit]:
    source, total, loop = kernel.text.source, product.total, product.loop
    tile, block = kernel.fresh(f"{total.name}_tile"), kernel.fresh(f"{total.name}_block")
    a, b = (kernel.fresh(f"{array.name}_tile") for array in (product.a, product.b))
    warp, step = kernel.fresh("warp"), kernel.fresh("step")
    row = f"{warp} / (blockDim.x / {_SIDE}) * {_SIDE}"
    column = f"{warp} % (blockDim.x / {_SIDE}) * {_SIDE}"
    works = f"if ({warp} < blockDim.x * blockDim.y / {_SIDE**2})"
    rows, width = node_text(product.a.dims[0]), node_text(product.b.dims[1])
    first = statements(kernel.text.body)[0]
    kind, load = product.a.type, "nvcuda::wmma::load_matrix_sync"
    start = [
        f"const unsigned {warp} = (threadIdx.x + threadIdx.y * blockDim.x) / {WARP};",
        f"{_fragment('accumulator', 'float')} {tile};",
        f"nvcuda::wmma::fill_fragment({tile}, 0.0f);",
    ]
    steps = braced_lines(
        f"for (int {step} = 0; {step} < {node_text(loop.bound)}; {step} += {_SIDE})",
        [
            f"{_fragment('matrix_a', kind, rows=True)} {a};",
            f"{_fragment('matrix_b', kind, rows=True)} {b};",
            f"{load}({a}, &{product.a.name}[{row}][{step}], {node_text(product.a.dims[1])});",
            f"{load}({b}, &{product.b.name}[{step}][{column}], {width});",
            f"nvcuda::wmma::mma_sync({tile}, {a}, {b}, {tile});",
        ],
    )
    end = [
        f"__shared__ alignas(32) float {block}[{rows}][{width}];",
        f"{works} nvcuda::wmma::store_matrix_sync(&{block}[{row}][{column}], {tile}, "
        f"{width}, nvcuda::wmma::mem_row_major);",
        "__syncthreads();",
        f"{total.name} = {block}[threadIdx.y][threadIdx.x];",
    ]
    by, after = indentation(first, source), indentation(product.outer, source)
    lines = indented_text(braced_lines(works, steps), indentation(loop.node, source))
    qualifiers = [
        next(n for n in (array.declaration or array.node).children if node_text(n) == "__shared__")
        for array in (product.a, product.b)
    ]
    return [
        *inclusion(kernel.text.root, _HEADER),
        Edit.before(first, f"{indented_text(start, by)}\n{by}"),
        Edit(loop_start(loop.node), loop.node.end_byte, lines),
        Edit.after(product.outer, f"\n{after}{indented_text(end, after)}"),
        *(Edit.after(qualifier, " alignas(32)") for qualifier in qualifiers),
    ]


def _fragment(use: str, kind: str, *, rows: bool = False) -> str:
    sizes = f"{_SIDE}, {_SIDE}, {_SIDE}"
    layout = ", nvcuda::wmma::row_major" if rows else ""
    return f"nvcuda::wmma::fragment<nvcuda::wmma::{use}, {sizes}, {kind}{layout}>"
