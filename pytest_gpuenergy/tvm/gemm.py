"""Matrix products for TVM; see `operators.Operator`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pytest_gpuenergy.support import InputError, UnavailableError
from pytest_gpuenergy.tvm.gemm_forms import (
    GemmForm,
    ProductSizes,
    apply_form,
    forms_of,
    index_map,
)
from pytest_gpuenergy.tvm.requirements import import_tvm
from pytest_gpuenergy.workloads import LAYOUTS, MODES, Gemm, Workload

_A, _B = range(2)
"""The positions of the operands among what the product reads."""

_MODES = ("float32", "float16", "bfloat16")
"""Those that CUDA cores compute in."""

_LONGEST_WHOLE = 64  # of sums that need no padding: their operands fit into shared memory
_STEP = 8

_SIZE = r"[1-9][0-9]{0,8}"
# In file names: gemm_M_512_N_256_K_640_layout_nn_mode_float32, as in `Gemm.signature`.
_LABEL = re.compile(
    rf"gemm_M_({_SIZE})_N_({_SIZE})_K_({_SIZE})_layout_({'|'.join(LAYOUTS)})"
    rf"_mode_({'|'.join(MODES)})(?:_lda_({_SIZE}))?(?:_ldb_({_SIZE}))?(?![0-9a-z])"
)
# Functions of TVM's auto-scheduler whose arguments are sizes, with the positions of M, N and K:
# of its tests, and of its tutorial, where a type may follow.
_FUNCTIONS = {"matmul_auto_scheduler_test": (0, 1, 2), "matmul": (0, 2, 1)}


class GemmOperator:
    """The kind ``gemm``."""

    formless = "TVM has none"

    def module(self, workload: Workload) -> Any:
        """The product in float32 or, of half-precision matrices, accumulated in float32.

        Its function is ``main(A, B, C)``.

        Raises:
            UnavailableError: the mode takes tensor cores.
        """
        gemm = _checked(workload)
        tvm = import_tvm()
        te = tvm.te
        a, b = (te.placeholder(t.shape, t.dtype, t.name) for t in gemm.inputs)
        k = te.reduce_axis((0, gemm.K), "k")

        def product(i: Any, j: Any) -> Any:
            factors = a[i, k] if gemm.layout == "nn" else a[k, i], b[k, j]
            left, right = (factor.astype("float32") for factor in factors)
            return te.sum(left * right, axis=k)

        c = te.compute((gemm.M, gemm.N), product, name=_main(gemm))
        if gemm.dtype != "float32":
            sums = c
            c = te.compute((gemm.M, gemm.N), lambda i, j: sums[i, j].astype(gemm.dtype), name="C")
        return tvm.IRModule({"main": te.create_prim_func([a, b, c])})

    def forms(self, workload: Workload) -> Sequence[Callable[[Any], None]]:
        """The product in padded tiles; see `gemm_forms`."""
        gemm = _checked(workload)
        sizes = sizes_of(gemm)
        return [partial(apply_gemm_form, gemm=gemm, form=form) for form in forms_of(sizes)]

    def from_log_name(self, name: str) -> Gemm | None:
        """From the signature of a product in a file's name; None if it contains none."""
        match = _LABEL.search(name)
        if match is None:
            return None
        m, n, k, layout, mode, lda, ldb = match.groups()
        sizes = [int(size or 0) for size in (m, n, k, lda, ldb)]
        return _gemm(sizes[:3], layout=layout, mode=mode, lda=sizes[3], ldb=sizes[4])

    def from_log_key(self, key: Sequence[Any]) -> Gemm | None:
        """From a function's name and its arguments; None for another function."""
        function, *arguments = key
        if arguments[3:] == ["float32"]:
            arguments = arguments[:3]
        if not isinstance(function, str) or function not in _FUNCTIONS or len(arguments) != 3:
            return None
        return _gemm([arguments[position] for position in _FUNCTIONS[function]])

    def flops_of(self, shapes: Sequence[Sequence[int]]) -> int | None:
        """From the shapes of A, B and C; rows of A and B may be longer than needed."""
        if [len(shape) for shape in shapes] != [2, 2, 2]:
            return None
        (rows_of_a, lda), (k, ldb), (m, n) = shapes
        fits = (rows_of_a == m and lda >= k) or (rows_of_a == k and lda >= m)
        if min(m, n, k) < 1 or ldb < n or not fits:
            return None
        return 2 * m * n * k


def sizes_of(gemm: Gemm) -> ProductSizes:
    """The sizes of a product; long sums without a useful divisor are padded."""
    divisors = [d for d in range(1, _LONGEST_WHOLE + 1) if gemm.K % d == 0]
    step = 1 if gemm.K <= _LONGEST_WHOLE or divisors[-1] >= _STEP else _STEP
    return ProductSizes(gemm.M, gemm.N, gemm.K, step)


def apply_gemm_form(schedule: Any, gemm: Gemm, form: GemmForm) -> None:
    """Compute the product of ``schedule`` as ``form`` says.

    In tiles of an operand that dimension is the fastest which is so in memory.
    """
    block = schedule.get_sblock(_main(gemm))
    for kind, number, turned in (
        ("read", _A, gemm.layout == "nt"),
        ("read", _B, True),
        ("write", 0, False),
    ):
        copy = schedule.reindex(block, (kind, number))  # its indices in the order of the loops
        if turned:
            turn = index_map(2, lambda *axes: axes[::-1])
            schedule.transform_layout(block, (kind, number), turn)
            schedule.transform_block_layout(copy, turn)
    apply_form(schedule, block, sizes_of(gemm), form, deep=[_A] if gemm.layout == "nn" else [])


def _main(gemm: Gemm) -> str:
    """The name of the block that adds up; in half precision another one rounds its sums."""
    return "C" if gemm.dtype == "float32" else "sums"


def _checked(workload: Workload) -> Gemm:
    assert isinstance(workload, Gemm)
    if workload.mode not in _MODES:
        raise UnavailableError(
            f"{workload.name} cannot be tuned with TVM, which has no schedules in mode "
            f"{workload.mode}: choose mode {', '.join(_MODES[:-1])} or {_MODES[-1]}."
        )
    return workload


def _gemm(sizes: Sequence[object], **rest: Any) -> Gemm | None:
    try:
        return Gemm("gemm", *sizes, **rest)  # type: ignore[arg-type]  # it checks them all
    except InputError:
        return None
