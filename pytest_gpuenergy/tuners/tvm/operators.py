"""Operators: what TVM needs for each kind of workload.

An operator has the computation, our forms of it, and the workload's names in logs. TVM is imported
inside the functions.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from pytest_gpuenergy.support import InputError, UnavailableError
from pytest_gpuenergy.tuners.tvm.product_forms import (
    GemmForm,
    ProductSizes,
    apply_form,
    as_gemm,
    gemm_forms,
    index_map,
    useful_forms,
)
from pytest_gpuenergy.tuners.tvm.tvm_requirements import import_tvm
from pytest_gpuenergy.workloads import (
    CONV_LAYOUTS,
    CONV_MODES,
    LAYOUTS,
    MODES,
    Conv2d,
    Gemm,
    Workload,
)

Rewrite = Callable[[Any], None]
"""Rewrites a schedule of the computation into one of its forms, in place."""


class TvmOperator(ABC):
    """TVM's view of one kind of workload.

    Attributes:
        formless: why a workload of this kind may have no forms.
    """

    formless: ClassVar[str]

    @abstractmethod
    def module(self, workload: Workload) -> Any:
        """Return the computation: an IRModule whose ``main`` takes the workload's tensors.

        Raises:
            UnavailableError: TVM has no schedules of it.
        """

    @abstractmethod
    def forms(self, workload: Workload) -> Sequence[Rewrite]:
        """Return other ways to compute it, which respect the limits of a GPU.

        Raises:
            UnavailableError: TVM has no schedules of it.
        """

    @abstractmethod
    def from_log_name(self, name: str) -> Workload | None:
        """Return the workload whose sizes are in a log's file name; None if there are none."""

    @abstractmethod
    def from_log_key(self, key: Sequence[Any]) -> Workload | None:
        """Return the workload in a workload key, a function's name and its arguments, if any."""

    @abstractmethod
    def flops_for_shapes(self, shapes: Sequence[Sequence[int]]) -> int | None:
        """Return the FLOPs for tensors of these shapes; None for shapes of another kind."""


LARGEST_SIZE = 10**9
"""The largest size of a convolution that is read; the FLOPs of such sizes fit into a float."""

_CONV2D_SIZE = r"[0-9]{1,9}"
_STRIDE = rf"({_CONV2D_SIZE}|\({_CONV2D_SIZE}, ?{_CONV2D_SIZE}\))"
# File names have N_1_H_272_..._strides_1_padding_1, or ..._strides_(1, 1)_padding_(1, 1).
_CONV2D_LABEL = re.compile(
    "_".join(f"{name}_({_CONV2D_SIZE})" for name in ("N", "H", "W", "CO", "CI", "KH", "KW"))
    + f"_strides_{_STRIDE}_padding_{_STRIDE}"
    + f"(?:_dilation_({_CONV2D_SIZE}))?(?:_groups_({_CONV2D_SIZE}))?"
    # Other options as in `Conv2d.signature`.
    + rf"(?:_mode_({'|'.join(CONV_MODES[1:])}))?(?:_layout_({'|'.join(CONV_LAYOUTS[1:])}))?"
    + "(?:_bias_(1))?(?:_relu_(1))?(?![0-9])"
)
# Functions whose nine arguments are in the order of Conv2d's sizes.
_CONV2D_FUNCTIONS = ("conv2d", "conv2d_layer")


class Conv2dOperator(TvmOperator):
    """The operator of the kind ``conv2d``."""

    formless = "it is grouped or has one output position"

    def module(self, workload: Workload) -> Any:
        """Return TOPI's ``main(data, weight, output)``, to which records of others apply too."""
        shape = _plain(workload).shape
        tvm = import_tvm()
        te, topi = tvm.te, tvm.topi
        data, weight = (te.placeholder(t.shape, t.dtype, t.name) for t in workload.inputs)
        # With one group this equals `topi.nn.conv2d_nchw`, including the name of its block.
        output = topi.nn.group_conv2d_nchw(
            data, weight, shape.strides, shape.padding, shape.dilation, shape.groups, "float32"
        )
        return tvm.IRModule({"main": te.create_prim_func([data, weight, output])})

    def forms(self, workload: Workload) -> Sequence[Callable[[Any], None]]:
        """Return the forms of the convolution as a matrix product; see `product_forms`."""
        shape = _plain(workload).shape
        return [partial(as_gemm, shape=shape, form=form) for form in gemm_forms(shape)]

    def from_log_name(self, name: str) -> Conv2d | None:
        match = _CONV2D_LABEL.search(name)
        if match is None:
            return None
        *sizes, dilation, groups, mode, layout, bias, relu = match.groups()
        if dilation or groups:  # written only if they are not 1
            sizes += [dilation or "1", groups or "1"]
        found = _conv2d([[int(n) for n in size.strip("()").split(",")] for size in sizes])
        if found is None:
            return None
        options = {"mode": mode, "layout": layout, "bias": bias and True, "relu": relu and True}
        return found.varied(**{name: value for name, value in options.items() if value})

    def from_log_key(self, key: Sequence[Any]) -> Conv2d | None:
        function, *arguments = key
        if function not in _CONV2D_FUNCTIONS or len(arguments) != 9:
            return None
        return _conv2d([part if type(part) is list else [part] for part in arguments])

    def flops_for_shapes(self, shapes: Sequence[Sequence[int]]) -> int | None:
        if [len(shape) for shape in shapes] != [4, 4, 4]:
            return None
        (n, ci, _, _), (co, group_ci, kh, kw), (out_n, out_co, oh, ow) = shapes
        sizes = (n, co, oh, ow, group_ci, kh, kw)
        if min(sizes) < 1 or (n, co) != (out_n, out_co) or ci % group_ci:
            return None
        return 2 * math.prod(sizes)


def _plain(workload: Workload) -> Conv2d:
    assert isinstance(workload, Conv2d)
    if not workload.is_plain:
        other = " in mode 3xtf32, which is as exact" if workload.mode == "float32" else ""
        raise UnavailableError(
            f"{workload.name} cannot be tuned with TVM, which has schedules of convolutions in "
            "mode float32 and layout nchw alone, without bias or ReLU: search the templates with "
            f"--tuner template{other}."
        )
    return workload


def _conv2d(arguments: Sequence[Sequence[object]]) -> Conv2d | None:
    """Make a convolution from numbers, each possibly given as a pair of equal numbers."""
    numbers = []
    for values in arguments:
        if len(values) not in (1, 2) or values[0] != values[-1]:
            return None
        number = values[0]
        if type(number) is not int or number > LARGEST_SIZE:
            return None
        numbers.append(number)
    try:
        return Conv2d.of("conv2d", *numbers)
    except InputError:
        return None


_A, _B = range(2)
"""The positions of the operands among what the product reads."""

_MODES = ("float32", "float16", "bfloat16")
"""The modes in which CUDA cores compute."""

_LONGEST_WHOLE = 64  # of sums that need no padding: their operands fit into shared memory
_STEP = 8

_GEMM_SIZE = r"[1-9][0-9]{0,8}"
# In file names: gemm_M_512_N_256_K_640_layout_nn_mode_float32, as in `Gemm.signature`.
_GEMM_LABEL = re.compile(
    rf"gemm_M_({_GEMM_SIZE})_N_({_GEMM_SIZE})_K_({_GEMM_SIZE})_layout_({'|'.join(LAYOUTS)})"
    rf"_mode_({'|'.join(MODES)})(?:_lda_({_GEMM_SIZE}))?(?:_ldb_({_GEMM_SIZE}))?"
    rf"(?:_ldc_({_GEMM_SIZE}))?(?![0-9a-z])"
    r"(?!_(?:B|groups|ld[abc]|bias|activation|residual|scaling|accumulation)_)"
)
# Functions of TVM's auto-scheduler whose arguments are sizes, with the positions of M, N and K. One
# is in its tests, the other, after whose sizes a type may follow, in its tutorial.
_GEMM_FUNCTIONS = {"matmul_auto_scheduler_test": (0, 1, 2), "matmul": (0, 2, 1)}


class GemmOperator(TvmOperator):
    """The operator of the kind ``gemm``."""

    formless = "TVM has none"

    def module(self, workload: Workload) -> Any:
        """Return the product ``main(A, B, C)``, which is accumulated in float32."""
        gemm = _checked(workload)
        tvm = import_tvm()
        te = tvm.te
        a, b = (te.placeholder(t.shape, t.dtype, t.name) for t in gemm.inputs)
        k = te.reduce_axis((0, gemm.K), "k")

        def product(i: Any, j: Any) -> Any:
            factors = (
                a[k, i] if gemm.a_transposed else a[i, k],
                b[j, k] if gemm.b_transposed else b[k, j],
            )
            left, right = (factor.astype("float32") for factor in factors)
            return te.sum(left * right, axis=k)

        c = te.compute((gemm.M, gemm.N), product, name=_main(gemm))
        if gemm.dtype != "float32":
            sums = c
            c = te.compute((gemm.M, gemm.N), lambda i, j: sums[i, j].astype(gemm.dtype), name="C")
        return tvm.IRModule({"main": te.create_prim_func([a, b, c])})

    def forms(self, workload: Workload) -> Sequence[Callable[[Any], None]]:
        """Return the forms of the product in padded tiles; see `product_forms`."""
        gemm = _checked(workload)
        sizes = product_sizes(gemm)
        return [partial(apply_gemm_form, gemm=gemm, form=form) for form in useful_forms(sizes)]

    def from_log_name(self, name: str) -> Gemm | None:
        match = _GEMM_LABEL.search(name)
        if match is None:
            return None
        m, n, k, layout, mode, *leading = match.groups()
        lda, ldb, ldc = (int(size or 0) for size in leading)
        sizes = [int(m), int(n), int(k)]
        return _gemm(sizes, layout=layout, mode=mode, lda=lda, ldb=ldb, ldc=ldc)

    def from_log_key(self, key: Sequence[Any]) -> Gemm | None:
        function, *arguments = key
        if arguments[3:] == ["float32"]:
            arguments = arguments[:3]
        if not isinstance(function, str) or function not in _GEMM_FUNCTIONS or len(arguments) != 3:
            return None
        return _gemm([arguments[position] for position in _GEMM_FUNCTIONS[function]])

    def flops_for_shapes(self, shapes: Sequence[Sequence[int]]) -> int | None:
        """Return the FLOPs for the shapes of A, B and C; rows of A and B may have padding.

        Rows of a transposed B may not: then only those of A, if it is transposed, too.
        """
        if [len(shape) for shape in shapes] != [2, 2, 2]:
            return None
        (rows_of_a, lda), (rows_of_b, ldb), (m, n) = shapes
        if min(m, n, lda, ldb, rows_of_a, rows_of_b) < 1:
            return None
        if rows_of_b == n and (rows_of_a, lda) in ((m, ldb), (ldb, m)):
            return 2 * m * n * ldb
        k = rows_of_b
        fits = (rows_of_a == m and lda >= k) or (rows_of_a == k and lda >= m)
        return 2 * m * n * k if fits and ldb >= n else None


def product_sizes(gemm: Gemm) -> ProductSizes:
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
        ("read", _A, gemm.a_transposed),
        ("read", _B, not gemm.b_transposed),
        ("write", 0, False),
    ):
        copy = schedule.reindex(block, (kind, number))  # its indices in the order of the loops
        if turned:
            turn = index_map(2, lambda *axes: axes[::-1])
            schedule.transform_layout(block, (kind, number), turn)
            schedule.transform_block_layout(copy, turn)
    deep = [*([] if gemm.a_transposed else [_A]), *([_B] if gemm.b_transposed else [])]
    apply_form(schedule, block, product_sizes(gemm), form, deep=deep)


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
    if workload.is_batch or workload.groups:
        raise UnavailableError(
            f"{workload.name} cannot be tuned with TVM, which has no schedules of products in "
            "batches or groups: search the templates with --tuner template."
        )
    if workload.has_end:
        raise UnavailableError(
            f"{workload.name} cannot be tuned with TVM, which has no schedules of products with a "
            "bias, an activation or a residual: search the templates with --tuner template."
        )
    if workload.ldc != workload.N:
        raise UnavailableError(
            f"{workload.name} cannot be tuned with TVM, which has no schedules of products whose "
            "rows of C are followed by other elements: leave ldc out."
        )
    return workload


def _gemm(sizes: Sequence[object], **rest: Any) -> Gemm | None:
    try:
        return Gemm("gemm", *sizes, **rest)  # type: ignore[arg-type]  # it checks them all
    except InputError:
        return None


OPERATORS: Mapping[str, TvmOperator] = {"conv2d": Conv2dOperator(), "gemm": GemmOperator()}
"""The operators by `Workload.kind`."""


def tvm_operator(workload: Workload) -> TvmOperator:
    """Return the operator of a workload.

    Raises:
        InputError: TVM does not know its kind.
    """
    if workload.kind not in OPERATORS:
        raise InputError(
            f"{workload.name} is of the kind {workload.kind}, which cannot be tuned with TVM: "
            f"choose a workload of the kind {' or '.join(OPERATORS)}."
        )
    return OPERATORS[workload.kind]
