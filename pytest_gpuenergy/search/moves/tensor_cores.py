"""`switch_to_mma_or_wgmma`: products of tiles by tensor cores."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pytest_gpuenergy.search.moves.base import Change, SourceMove
from pytest_gpuenergy.search.moves.wmma import tensor_core_products
from pytest_gpuenergy.search.source.cuda_kernel import CudaKernel
from pytest_gpuenergy.search.source.edits import Edit, edited
from pytest_gpuenergy.search.source.triton_kernel import TritonKernel

_NARROW = ("float16", "bfloat16")
_SMALLEST = 16
"""Elements that ``tl.dot`` needs along each dimension."""


class SwitchToMmaOrWgmma(SourceMove):
    """For float16 and bfloat16, and for float32 where the spec allows tensor cores.

    CUDA: a product of two tiles in shared memory, an element for each thread, by ``wmma``.
    Triton: a sum of products of broadcast blocks, by ``tl.dot``.
    """

    name = "switch_to_mma_or_wgmma"
    languages = frozenset({"cuda", "triton"})
    relieves = frozenset({"compute", "smem"})

    def on_cuda(self, kernel: CudaKernel) -> Iterator[Change]:
        yield from tensor_core_products(kernel)

    def on_triton(self, kernel: TritonKernel) -> Iterator[Change]:
        ends = [call.args[-1:] for call in kernel.text.calls("arange")]
        lengths = [kernel.polynomial(end[0]) if end else None for end in ends]
        if any(one is None or (one.value or 0) < _SMALLEST for one in lengths):
            return
        for number, call in enumerate(kernel.text.calls("sum"), start=1):
            edit = _dot(kernel, call)
            if edit is not None:
                source = edited(kernel.text.source, [edit])
                yield Change(f"dot for sum {number}", source, kernel.launch)


def _dot(kernel: TritonKernel, call: ast.Call) -> Edit | None:
    """``sum(a[:, :, None] * b[None, :, :], 1)`` as a product of matrices."""
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
    """The name of a block of two dimensions that gets a third one at ``place``."""
    match node:
        case ast.Subscript(
            value=ast.Call(func=ast.Attribute(value=ast.Name() as inner, attr="to")), slice=places
        ):
            return _expanded(ast.Subscript(inner, places, ast.Load()), place)
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=elements)):
            new = [isinstance(e, ast.Constant) and e.value is None for e in elements]
            return name if new == [position == place for position in range(3)] else None
    return None


def _loaded(kernel: TritonKernel, name: str) -> ast.Call | None:
    value = kernel.text.definition(name)
    match value:
        case ast.Call(func=ast.Attribute(value=inner, attr="to")):
            value = inner
    return value if isinstance(value, ast.Call) and kernel.text.called(value) == "load" else None


def _is_cast(kernel: TritonKernel, name: str) -> bool:
    return kernel.text.definition(name) is not _loaded(kernel, name)


def _dtype(kernel: TritonKernel, name: str) -> str | None:
    """The type of the tensor that a block is loaded from."""
    load = _loaded(kernel, name)
    if load is None or not load.args:
        return None
    pointers = _pointers(kernel, load.args[0], 10)
    found = {kernel.tensors[pointer].dtype for pointer in pointers}
    return found.pop() if len(pointers) == 1 else None


def _pointers(kernel: TritonKernel, node: ast.expr, depth: int) -> set[str]:
    """The tensors among what an expression is made of."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in kernel.tensors:
            found.add(part.id)
        elif isinstance(part, ast.Name) and depth:
            for statement in kernel.text.assignments.get(part.id, []):
                if isinstance(statement, ast.Assign | ast.AugAssign):
                    found |= _pointers(kernel, statement.value, depth - 1)
    return found
