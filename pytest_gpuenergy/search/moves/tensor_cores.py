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
    dims_of,
    shared_bytes,
)
from pytest_gpuenergy.search.analysis.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.analysis.triton_function import TritonFunction
from pytest_gpuenergy.search.moves.move import SourceMove, TextChange
from pytest_gpuenergy.search.source.cuda_text import CountedLoop, Variable
from pytest_gpuenergy.search.source.edits import Edit, block_of, inclusion, indented
from pytest_gpuenergy.search.source.polynomials import Atom, Polynomial
from pytest_gpuenergy.search.source.tree import (
    ancestors,
    arguments_of,
    bare,
    called,
    field,
    indentation,
    inside,
    is_call,
    nodes,
    operator_of,
    start_of,
    statements,
    text_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

_NARROW = ("float16", "bfloat16")
_SMALLEST = 16
"""The fewest elements that ``tl.dot`` takes along each dimension."""
_HEADER = "<mma.h>"
_WIDENED = {
    "half": "__half2float",
    "__half": "__half2float",
    "__nv_bfloat16": "__bfloat162float",
    "nv_bfloat16": "__bfloat162float",
}
_SIDE = 16
_WARP = 32
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
        yield from tensor_core_products(kernel)

    def on_triton(self, kernel: TritonFunction) -> Iterator[TextChange]:
        ends = [call.args[-1:] for call in kernel.text.calls("arange")]
        lengths = [kernel.polynomial(end[0]) if end else None for end in ends]
        if any(length is None or (length.value or 0) < _SMALLEST for length in lengths):
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
            names = [_expanded(left, 2), _expanded(right, 0)]
            if None in names:
                names = [_expanded(right, 2), _expanded(left, 0)]
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
    operands = [f"{name}.to({tl}.{dtype})" if _is_cast(kernel, name) else name for name in known]
    return kernel.text.replaced(call, f"{tl}.dot({', '.join(operands)})")


def _expanded(node: ast.expr, place: int) -> str | None:
    """Return the name of a block of two dimensions that gets a third one at ``place``."""
    match node:
        case ast.Subscript(
            value=ast.Call(func=ast.Attribute(value=ast.Name() as inner, attr="to")), slice=places
        ):
            return _expanded(ast.Subscript(inner, places, ast.Load()), place)
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=elements)):
            new = [isinstance(e, ast.Constant) and e.value is None for e in elements]
            return name if new == [position == place for position in range(3)] else None
    return None


def _loaded(kernel: TritonFunction, name: str) -> ast.Call | None:
    value = kernel.text.definition(name)
    match value:
        case ast.Call(func=ast.Attribute(value=inner, attr="to")):
            value = inner
    return value if isinstance(value, ast.Call) and kernel.text.called(value) == "load" else None


def _is_cast(kernel: TritonFunction, name: str) -> bool:
    return kernel.text.definition(name) is not _loaded(kernel, name)


def _dtype(kernel: TritonFunction, name: str) -> str | None:
    """Return the type of the tensor that a block is loaded from."""
    load = _loaded(kernel, name)
    if load is None or not load.args:
        return None
    pointers = _pointers(kernel, load.args[0], 10)
    found = {kernel.tensors[pointer].dtype for pointer in pointers}
    return found.pop() if len(pointers) == 1 else None


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


def tensor_core_products(kernel: CudaKernel) -> Iterator[TextChange]:
    """Yield a kernel whose only product of tiles is made by tensor cores."""
    accesses = Accesses(kernel)
    found = [p for loop in kernel.text.loops if (p := _product(kernel, accesses, loop))]
    if len(found) != 1 or any(nodes(kernel.text.body, "return_statement")):
        return
    product, used = found[0], shared_bytes(kernel)
    if used is None or used + 4 * product.rows * product.width > SHARED_BYTES:
        return
    yield TextChange.of(kernel, f"wmma for {product.total.name}", _edits(kernel, product))


def _product(kernel: CudaKernel, accesses: Accesses, loop: CountedLoop) -> _Product | None:
    inner = statements(loop.body)
    node = inner[0].named_children[0] if len(inner) == 1 and inner[0].named_children else None
    left, right = field(node, "left"), field(node, "right")
    depth, start = kernel.polynomial(loop.bound), kernel.polynomial(loop.start)
    if node is None or operator_of(node) != "+=" or left is None or right is None:
        return None
    total, pair = kernel.text.variable(left), _factors(accesses, bare(right))
    if total is None or pair is None or loop.step is not None or depth is None or start is None:
        return None
    x, y, z = kernel.block
    a, b = (access.root for access in pair)
    if z != 1 or start.value != 0 or not _is_by_thread(kernel, pair, loop):
        return None
    depths = depth.value or 0
    if any(size % _SIDE or not size for size in (x, y, depths)):
        return None
    if not (_has_shape(kernel, a, y, depths) and _has_shape(kernel, b, depths, x)):
        return None
    outer = _outermost_loop(kernel, loop)
    if outer is None or not _is_sum(kernel, total, outer) or not _is_between_barriers(loop):
        return None
    width = (dims_of(kernel, b) or (0, 0))[1]
    return _Product(loop, outer, total, a, b, y, width)


def _factors(accesses: Accesses, product: Node) -> tuple[Access, Access] | None:
    left, right = field(product, "left"), field(product, "right")
    if operator_of(product) != "*" or left is None or right is None:
        return None
    found = [_widened(accesses, bare(side)) for side in (left, right)]
    left_factor, right_factor = found
    if left_factor is None or right_factor is None:
        return None
    same = left_factor.root.type == right_factor.root.type
    return (left_factor, right_factor) if same else None


def _widened(accesses: Accesses, node: Node) -> Access | None:
    """Return the element that is converted to single precision."""
    arguments = arguments_of(node)
    if len(arguments) != 1:
        return None
    own = [access for access in accesses.within(node) if access.node == bare(arguments[0])]
    if len(own) != 1 or not own[0].root.shared or own[0].root.key in accesses.unclear:
        return None
    return own[0] if called(node) == _WIDENED.get(own[0].root.type) else None


def _is_by_thread(kernel: CudaKernel, pair: tuple[Access, Access], loop: CountedLoop) -> bool:
    if any(len(access.address.subscripts) != 2 for access in pair):
        return False
    atom = Atom(loop.variable.name, frozenset([loop.variable.key]))
    by = [Polynomial.atom(Atom(f"threadIdx.{axis}")) for axis in "yx"]
    places = [
        kernel.polynomial(subscript) for access in pair for subscript in access.address.subscripts
    ]
    return places == [by[0], Polynomial.atom(atom), Polynomial.atom(atom), by[1]]


def _has_shape(kernel: CudaKernel, array: Variable, rows: int, columns: int) -> bool:
    """Return whether an array has that many elements, and perhaps more in a row."""
    dims = dims_of(kernel, array)
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
    zero = text_of(total.value).rstrip("fF") in ("0", "0.", "0.0")
    if total.type != "float" or not zero or total.scope != kernel.text.body:
        return False
    inner = [use for use in kernel.text.uses[total.key] if inside(use, outer)]
    others = [use for use in kernel.text.uses[total.key] if not inside(use, outer)]
    return len(inner) == 1 and all(use.start_byte > outer.end_byte for use in others)


def _is_between_barriers(loop: CountedLoop) -> bool:
    parent = loop.node.parent
    around = [n for n in statements(parent) if n.type != "preproc_call"] if parent else []
    if loop.node not in around:
        return False
    at = around.index(loop.node)
    neighbours = around[at - 1 : at] + around[at + 1 : at + 2]
    return len(neighbours) == 2 and all(
        is_call(neighbour, "__syncthreads") for neighbour in neighbours
    )


def _edits(kernel: CudaKernel, product: _Product) -> list[Edit]:
    source, total = kernel.text.source, product.total
    tile, block = kernel.fresh(f"{total.name}_tile"), kernel.fresh(f"{total.name}_block")
    warp, step = kernel.fresh("warp"), kernel.fresh("step")
    row = f"{warp} / (blockDim.x / {_SIDE}) * {_SIDE}"
    column = f"{warp} % (blockDim.x / {_SIDE}) * {_SIDE}"
    works = f"if ({warp} < blockDim.x * blockDim.y / {_SIDE**2})"
    rows, width = text_of(product.a.dims[0]), text_of(product.b.dims[1])
    first = statements(kernel.text.body)[0]
    start = [
        f"const unsigned {warp} = (threadIdx.x + threadIdx.y * blockDim.x) / {_WARP};",
        f"{_fragment('accumulator', 'float')} {tile};",
        f"nvcuda::wmma::fill_fragment({tile}, 0.0f);",
    ]
    end = [
        f"__shared__ alignas(32) float {block}[{rows}][{width}];",
        f"{works} nvcuda::wmma::store_matrix_sync(&{block}[{row}][{column}], {tile}, "
        f"{width}, nvcuda::wmma::mem_row_major);",
        "__syncthreads();",
        f"{total.name} = {block}[threadIdx.y][threadIdx.x];",
    ]
    by = indentation(first, source)
    product_text = block_of(works, _steps(kernel, product, (tile, row, column, step)))
    loop = product.loop.node
    after = indentation(product.outer, source)
    return [
        *inclusion(kernel.text.root, _HEADER),
        Edit.before(first, f"{indented(start, by)}\n{by}"),
        Edit(start_of(loop), loop.end_byte, indented(product_text, indentation(loop, source))),
        Edit.after(product.outer, f"\n{after}{indented(end, after)}"),
        *(_aligned(array) for array in (product.a, product.b)),
    ]


def _steps(kernel: CudaKernel, product: _Product, names: tuple[str, str, str, str]) -> list[str]:
    tile, row, column, step = names
    a, b = (kernel.fresh(f"{array.name}_tile") for array in (product.a, product.b))
    kind = product.a.type
    widths = [text_of(array.dims[1]) for array in (product.a, product.b)]
    load = "nvcuda::wmma::load_matrix_sync"
    return block_of(
        f"for (int {step} = 0; {step} < {text_of(product.loop.bound)}; {step} += {_SIDE})",
        [
            f"{_fragment('matrix_a', kind, rows=True)} {a};",
            f"{_fragment('matrix_b', kind, rows=True)} {b};",
            f"{load}({a}, &{product.a.name}[{row}][{step}], {widths[0]});",
            f"{load}({b}, &{product.b.name}[{step}][{column}], {widths[1]});",
            f"nvcuda::wmma::mma_sync({tile}, {a}, {b}, {tile});",
        ],
    )


def _fragment(use: str, kind: str, *, rows: bool = False) -> str:
    sides = f"{_SIDE}, {_SIDE}, {_SIDE}"
    layout = ", nvcuda::wmma::row_major" if rows else ""
    return f"nvcuda::wmma::fragment<nvcuda::wmma::{use}, {sides}, {kind}{layout}>"


def _aligned(array: Variable) -> Edit:
    """Return the edit that aligns an array's tiles to 32 bytes."""
    declaration = array.declaration or array.node
    qualifier = next(n for n in declaration.children if text_of(n) == "__shared__")
    return Edit.after(qualifier, " alignas(32)")
