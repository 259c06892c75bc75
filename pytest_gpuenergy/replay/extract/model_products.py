"""The matrix products of a model: which products its recorded calls compute, and how often.

A call of an operator such as ``aten::linear`` becomes a `Gemm` with the sizes, type, layout and
leading dimensions of its tensors. The rules are those of PyTorch's own calls of cuBLAS
(``prepare_matrix_for_cublas`` in ``aten/src/ATen/native/cuda/Blas.cpp``; ``should_fold`` in
``aten/src/ATen/native/LinearAlgebra.cpp``).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pytest_gpuenergy.replay.extract.calls import CALLS_JSONL, UniqueCall, read_calls
from pytest_gpuenergy.replay.extract.trace import (
    CalledOperator,
    TraceLaunch,
    host_operators,
    launches,
    read_trace,
)
from pytest_gpuenergy.replay.extract.unique_kernels import digest
from pytest_gpuenergy.replay.profile_folder import (
    PROFILE_JSON,
    TRACES,
    ProfileRecord,
    rank_folders,
    read_profile,
)
from pytest_gpuenergy.support import InputError, is_file, is_folder
from pytest_gpuenergy.workloads import Gemm, Layout, Mode, product_name

WHOLE_TRACE = "trace"
"""The name of the only step of a trace without phases."""

COLD_BYTES = 32 << 10
"""The least size of all matrices of a product that is measured with a cold L2 cache.

The `MAX_SETS` copies of smaller ones would not fill the caches of today's GPUs twice.
"""

_TOO_SMALL = "its matrices are too small to be kept out of the L2 cache, which takes --cache hot"

_OPERANDS: Mapping[str, tuple[str, str]] = {
    "linear": ("input", "weight"),
    "mm": ("self", "mat2"),
    "matmul": ("self", "other"),
    "addmm": ("mat1", "mat2"),
    "_addmm_activation": ("mat1", "mat2"),
    "mv": ("self", "vec"),
    "addmv": ("mat", "vec"),
    "bmm": ("self", "mat2"),
    "baddbmm": ("batch1", "batch2"),
    "addbmm": ("batch1", "batch2"),
    "dot": ("self", "tensor"),
    "_scaled_mm": ("self", "mat2"),
    "_int_mm": ("self", "mat2"),
}
"""The names of A and B among the arguments of each operator that computes a matrix product."""

_ADDS = frozenset({"addmm", "_addmm_activation", "addmv", "baddbmm", "addbmm"})
"""Operators whose first argument is what they add to the product, before A and B."""

_OTHERS: Mapping[str, str] = {
    **dict.fromkeys(
        ("_grouped_mm", "_scaled_grouped_mm"),
        "the rows of its groups, which are values on the GPU, are not recorded",
    ),
    **dict.fromkeys(("einsum", "tensordot"), "the products that it consists of are not recorded"),
}
"""The reason, by operator, why no product is known although the operator computes one."""

_ATTENTION = "scaled_dot_product"
_MODES: Mapping[str, Mode] = {
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float32": "float32",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "float": "float32",
}
"""The modes of types, by PyTorch's names and by those in its traces."""

_TF32 = ("tf32", "s1688")
"""Parts of the names of cuBLAS's kernels that compute with TF32 instructions."""


class Storage(NamedTuple):
    """The storage of a matrix.

    Attributes:
        transposed: Whether the rows of its transpose are stored, rather than its own.
        leading: The distance in elements from one stored row to the next.
        copied: Whether PyTorch copies it to consecutive rows before the product.
    """

    transposed: bool
    leading: int
    copied: bool = False


def matrix_storage(rows: int, columns: int, row_stride: int, column_stride: int) -> Storage:
    """Return how a product reads a matrix with these strides in elements.

    If neither the rows nor the columns are consecutive in memory, or if they overlap, the product
    first copies the matrix to consecutive rows.
    """
    own_rows = (column_stride == 1 or columns == 1) and (rows == 1 or row_stride >= columns)
    transposed = (row_stride == 1 or rows == 1) and (columns == 1 or column_stride >= rows)
    if own_rows and transposed:  # a vector or one element: both describe the same addresses
        transposed = column_stride != 1 and row_stride == 1
    elif not own_rows and not transposed:
        return Storage(False, columns, copied=True)
    if transposed:
        return Storage(True, rows if columns == 1 else column_stride)
    return Storage(False, columns if rows == 1 else row_stride)


@dataclass(frozen=True)
class RecordedProduct:
    """The computation of an operator's call.

    Attributes:
        product: The product, named after its sizes; None if there is none that can be measured.
        reason: Why there is none, as a clause; empty if there is one.
        omitted: What the call does beside the product.
    """

    product: Gemm | None = None
    reason: str = ""
    omitted: tuple[str, ...] = ()


class _UnsupportedError(Exception):
    """A call computes no product that can be measured; the message is a clause that says why."""


def recorded_product(
    operator: str, arguments: Any, float32_mode: Mode = "float32"
) -> RecordedProduct | None:
    """Return the product of a recorded call; None if the operator multiplies no matrices.

    Args:
        operator: The operator, such as ``aten.linear.default`` or ``aten::mm``.
        arguments: The arguments, see `CallForm`.
        float32_mode: The mode of products of float32 matrices.
    """
    name = operator.removeprefix("aten::").removeprefix("aten.").partition(".")[0]
    if _ATTENTION in name:
        return RecordedProduct(reason="attention multiplies within its own kernel")
    if name in _OTHERS:
        return RecordedProduct(reason=_OTHERS[name])
    if name not in _OPERANDS:
        return None
    values = arguments if isinstance(arguments, list) else []
    named = values[-1] if values and _is_named(values[-1]) else {}
    first = 1 if name in _ADDS else 0
    try:
        a, b = (
            _Tensor.of(named.get(word) if len(values) <= place else values[place], word, named)
            for place, word in enumerate(_OPERANDS[name], first)
        )
        product, copied = _product(name, a, b, float32_mode, named.get("out"))
    except _UnsupportedError as error:
        return RecordedProduct(reason=str(error))
    except InputError as error:
        return RecordedProduct(reason=str(error).rstrip("."))
    omitted = []
    if name in _ADDS or (name == "linear" and _bias(values, named) is not None):
        omitted.append("bias or other addend")
    if name == "_addmm_activation":
        omitted.append("activation")
    if copied:
        omitted.append("copy to consecutive rows")
    return RecordedProduct(product, omitted=tuple(omitted))


def _bias(values: Sequence[Any], named: Mapping[str, Any]) -> Any:
    positional = values[2] if len(values) > 2 and not _is_named(values[2]) else None
    return positional if positional is not None else named.get("bias")


def _is_named(value: Any) -> bool:
    """Return whether a value is the dictionary of keyword arguments, not a tensor."""
    return isinstance(value, dict) and "shape" not in value


@dataclass(frozen=True)
class _Tensor:
    shape: list[int]
    strides: list[int]
    dtype: str

    @classmethod
    def of(cls, value: Any, name: str, named: Mapping[str, Any]) -> _Tensor:
        if _is_named(value):
            value = named.get(name)
        if not isinstance(value, dict) or not _whole(value.get("shape")):
            raise _UnsupportedError("the shapes of its arguments were not recorded")
        if not _whole(value.get("strides")) or len(value["strides"]) != len(value["shape"]):
            raise _UnsupportedError("the strides of its arguments were not recorded")
        return cls(value["shape"], value["strides"], str(value.get("dtype")))

    def batch(self) -> tuple[_Tensor, list[int], int | None]:
        """Return the matrix of a batch, the batch's sizes, and the distance of its matrices.

        The distance is 0 in a batch of one, and None if there is no such distance.
        """
        matrix = _Tensor(self.shape[-2:], self.strides[-2:], self.dtype)
        outer, strides = self.shape[:-2], self.strides[:-2]
        return matrix, outer, _distance(outer, strides)

    def rows_of_vectors(self) -> _Tensor | None:
        """Return all vectors of the last dimension as the rows of one matrix.

        None if their distances differ, so that no leading dimension describes them.
        """
        *outer, length = self.shape
        distance = _distance(outer, self.strides[:-1])
        if distance is None:
            return None
        if math.prod(outer) == 1:
            distance = length
        return _Tensor([math.prod(outer), length], [distance, self.strides[-1]], self.dtype)


def _distance(extents: Sequence[int], strides: Sequence[int]) -> int | None:
    """Return the distance that all neighbours in these dimensions have; None if it differs."""
    found = [pair for pair in zip(extents, strides, strict=True) if pair[0] != 1]
    if any(stride != extent * inner for (_, stride), (extent, inner) in pairwise(found)):
        return None
    return found[-1][1] if found else 0


def _whole(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)


class _Matrices(NamedTuple):
    """A of M x K and B of K x N, or batches of them.

    Attributes:
        a: A, or the first of a batch.
        b: B, or the first of a batch.
        batch: The number of products.
        a_distance: The distance in elements from one A to the next, in a batch.
        b_distance: The same of B.
    """

    a: _Tensor
    b: _Tensor
    batch: int = 1
    a_distance: int = 0
    b_distance: int = 0


_SPREAD = "the matrices of its batch are not stored one after another"


def _matrices(name: str, a: _Tensor, b: _Tensor) -> _Matrices:
    """Return the matrices that a call multiplies.

    Raises:
        _UnsupportedError: They are not those of a product or of a batch.
    """
    if name == "linear":
        if len(b.shape) == 1:
            b = _Tensor([1, *b.shape], [b.shape[0], *b.strides], b.dtype)
        b = _Tensor(b.shape[::-1], b.strides[::-1], b.dtype)
    elif len(b.shape) == 1:
        b = _Tensor([*b.shape, 1], [*b.strides, 1], b.dtype)
    if len(a.shape) == 1:
        a = _Tensor([1, *a.shape], [a.shape[0], *a.strides], a.dtype)
    right, sizes, b_distance = b.batch()
    if len(b.shape) == 2:
        rows = a.rows_of_vectors()
        if rows is None:
            raise _UnsupportedError("its vectors have different distances")
        found = _Matrices(rows, right)
    else:
        left, own_sizes, a_distance = a.batch()
        count = math.prod(sizes)
        if math.prod(own_sizes) != count or (count > 1 and own_sizes != sizes):
            raise _UnsupportedError("products in its batch share a matrix")
        if a_distance is None or b_distance is None:
            raise _UnsupportedError(_SPREAD)
        found = _Matrices(left, right, count, a_distance, b_distance)
    if any(len(one.shape) != 2 for one in found[:2]) or found.a.shape[1] != found.b.shape[0]:
        raise _UnsupportedError("the shapes of its arguments are those of no product")
    if found.batch > 1 and name == "addbmm":
        raise _UnsupportedError("it adds the products of its batch")
    return found


def _in_batch(storage: Storage, rows: int, columns: int, distance: int) -> Storage:
    """Return how the matrices of a batch are stored, if they follow one another.

    Raises:
        _UnsupportedError: They do not.
    """
    if storage.copied:
        return storage
    stored_rows, row = (columns, rows) if storage.transposed else (rows, columns)
    leading = distance if stored_rows == 1 else storage.leading
    if distance != stored_rows * leading or leading < row:
        raise _UnsupportedError(_SPREAD)
    return storage._replace(leading=leading)


def _product(name: str, a: _Tensor, b: _Tensor, float32_mode: Mode, out: Any) -> tuple[Gemm, bool]:
    """Return the product, and whether PyTorch copies one of its operands first."""
    for tensor in (a, b):
        if not tensor.shape:
            raise _UnsupportedError("one of its arguments is no matrix")
        if 0 in tensor.shape:
            raise _UnsupportedError("it has no elements")
        if tensor.dtype not in _MODES:
            raise _UnsupportedError(f"no mode has matrices of {tensor.dtype.removeprefix('c10::')}")
    mode = _MODES[a.dtype]
    if mode != _MODES[b.dtype]:
        raise _UnsupportedError("its matrices differ in type")
    found = _matrices(name, a, b)
    (m, k), n = found.a.shape, found.b.shape[1]
    of_a = matrix_storage(m, k, *found.a.strides)
    of_b = matrix_storage(k, n, *found.b.strides)
    if found.batch > 1:
        of_a = _in_batch(of_a, m, k, found.a_distance)
        of_b = _in_batch(of_b, k, n, found.b_distance)
    ldc = n
    if out is not None:
        result = _Tensor.of(out, "out", {})
        whole = result.rows_of_vectors()
        of_c = Storage(True, m) if whole is None else matrix_storage(m, n, *whole.strides)
        if of_c.transposed or of_c.copied:
            raise _UnsupportedError("its result is not stored by rows")
        ldc = of_c.leading
    layouts: Mapping[tuple[bool, bool], Layout] = {
        (False, False): "nn",
        (False, True): "nt",
        (True, False): "tn",
        (True, True): "tt",
    }
    product = Gemm(
        "",
        m,
        n,
        k,
        layouts[of_b.transposed, of_a.transposed],
        float32_mode if mode == "float32" else mode,
        of_a.leading,
        of_b.leading,
        ldc=ldc,
        B=found.batch,
    )
    return product.called(product_name(product)), of_a.copied or of_b.copied


@dataclass(frozen=True)
class ProductCalls:
    """Calls of a model that compute the same product, or that are left out for the same reason.

    Attributes:
        product: The product; None if the calls are left out.
        reason: Why they are left out, as a clause.
        operators: The names of the operators.
        calls: The number of calls in each step, by its name.
        recorded_us: The time of these calls in the profile, by the name of the step.
        omitted: What the calls do beside the product.
    """

    product: Gemm | None
    reason: str
    operators: tuple[str, ...]
    calls: Mapping[str, int]
    recorded_us: Mapping[str, float]
    omitted: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelProducts:
    """The matrix products of a profile or trace.

    Attributes:
        source: The name of the model or trace.
        device: The name of the device that was profiled; empty for a trace.
        steps: The names of the steps, in order.
        products: The products, the most recorded time first.
        left_out: The calls of matrix products that are left out, by reason.
    """

    source: str
    device: str
    steps: tuple[str, ...]
    products: tuple[ProductCalls, ...]
    left_out: tuple[ProductCalls, ...]


@dataclass(frozen=True)
class _Calls:
    """Calls of one form in one step."""

    operator: str
    arguments: Any
    step: str
    count: int
    recorded_us: float
    tf32: bool


def model_products(source: Path, step: int = 1, *, cold: bool = False) -> ModelProducts:
    """Return the matrix products of a model.

    Args:
        source: The folder of ``gpuenergy profile`` on one GPU, a folder with a trace, or a trace.
        step: The number of the decode step.
        cold: Whether to leave out products that cannot be measured with a cold L2 cache.

    Raises:
        InputError: The source is none of these, or is damaged; it has no such step, or no matrix
            product that can be measured.
    """
    device = ""
    if is_folder(source) and is_file(source / PROFILE_JSON):
        if ranks := rank_folders(source):
            raise InputError(
                f"{source} is the profile of a model on {len(ranks)} GPUs: name the folder of one "
                f"of them, such as {ranks[0]}."
            )
        record = read_profile(source)
        name, device = record.model, record.device
        calls = list(_profiled(record, read_calls(source), step))
    else:
        path = _trace_in(source) if is_folder(source) else source
        name, calls = source.name or str(source), _traced(path, step)
    return _grouped(name, device, calls, source, COLD_BYTES if cold else 0)


def _trace_in(folder: Path) -> Path:
    for name in TRACES:
        if is_file(folder / name):
            return folder / name
    raise InputError(
        f"The folder {folder} has neither {PROFILE_JSON} with {CALLS_JSONL} nor {TRACES[0]}: name "
        "a folder of gpuenergy profile, or a trace."
    )


def _profiled(record: ProfileRecord, calls: Sequence[UniqueCall], step: int) -> Iterator[_Calls]:
    for number in record.steps(step):
        for call in calls:
            if count := call.steps.get(number, 0):
                yield _Calls(
                    call.operator,
                    call.arguments,
                    record.step_name(number),
                    count,
                    count * call.call_us,
                    record.tf32 or _uses_tf32(launch.name for launch in call.launches),
                )


def _uses_tf32(names: Iterable[str]) -> bool:
    return any(word in name.lower() for name in names for word in _TF32)


def _traced(path: Path, step: int) -> list[_Calls]:
    """Return the calls in a trace that launched something, those of its first run."""
    if ".jsonl" in path.suffixes:
        raise InputError(
            f"{path} lists unique kernels, which do not say how often each operator was called: "
            "name a trace, or a folder of gpuenergy profile."
        )
    events = read_trace(path)
    launched: dict[tuple[str, str], list[TraceLaunch]] = {}
    for launch in launches(events):
        if launch.operator is not None and not launch.run:
            launched.setdefault(_form(launch), []).append(launch)
    called: dict[tuple[str, str], list[TraceLaunch]] = {}
    ends: dict[Hashable, float] = {}
    operators = [event for event in events if event.category == "operator"]
    for event, one in zip(operators, host_operators(events), strict=True):
        if one.run or (key := _form(one)) not in launched:
            continue
        if event.ts < ends.get((event.thread, key), -math.inf):
            continue  # a dispatch mode has made the same call again, within the first
        ends[event.thread, key] = event.end
        called.setdefault(key, []).append(one)
    numbers = {one.step for group in called.values() for one in group if one.step}
    if numbers and step not in numbers:
        raise InputError(
            f"The trace {path} has no decode step {step}: give {min(numbers)} to {max(numbers)}."
        )
    found = []
    for key, group in called.items():
        (name, _), kernels = key, launched[key]
        operator = group[0].operator
        assert operator is not None  # operators of the host have one
        if name in (WHOLE_TRACE, "prefill", "decode", f"decode step {step}"):
            found.append(
                _Calls(
                    operator.name,
                    _arguments(operator),
                    name,
                    len(group),
                    sum(kernel.duration_us for kernel in kernels),
                    _uses_tf32(kernel.name for kernel in kernels),
                )
            )
    return found


def _form(launch: TraceLaunch) -> tuple[str, str]:
    """Return the name of the step of a launch, and a hash of its operator and arguments."""
    step = f"decode step {launch.step}" if launch.step else launch.phase or WHOLE_TRACE
    return step, digest(launch.operator)


def _arguments(operator: CalledOperator) -> list[Any]:
    """Return the arguments of an operator in a trace as `CallForm` has them."""
    shapes = operator.shapes if isinstance(operator.shapes, list) else []
    strides = operator.strides if isinstance(operator.strides, list) else []
    dtypes = operator.dtypes if isinstance(operator.dtypes, list) else []
    found: list[Any] = []
    for place, shape in enumerate(shapes):
        dtype = dtypes[place] if place < len(dtypes) else None
        if isinstance(dtype, str) and dtype and dtype not in ("Scalar", "ScalarList"):
            stride = strides[place] if place < len(strides) else None
            found.append({"shape": shape, "strides": stride, "dtype": dtype})
        else:
            found.append(None)
    return found


def _grouped(
    name: str, device: str, calls: Sequence[_Calls], source: Path, least_bytes: int
) -> ModelProducts:
    groups: dict[tuple[str, str], list[tuple[_Calls, RecordedProduct]]] = {}
    for call in calls:
        found = recorded_product(call.operator, call.arguments, "tf32" if call.tf32 else "float32")
        if found is None:
            continue
        if found.product is not None and found.product.bytes_moved < least_bytes:
            found = RecordedProduct(reason=_TOO_SMALL)
        key = ("" if found.product is None else found.product.name, found.reason)
        groups.setdefault(key, []).append((call, found))
    steps = tuple(dict.fromkeys(call.step for group in groups.values() for call, _ in group))
    merged = [_merged(group) for group in groups.values()]
    merged.sort(key=lambda one: -sum(one.recorded_us.values()))
    products = tuple(one for one in merged if one.product is not None)
    left_out = tuple(one for one in merged if one.product is None)
    if not products:
        why = "; ".join(f"{' and '.join(one.operators)}: {one.reason}" for one in left_out)
        raise InputError(
            f"{source} has no matrix product that can be measured ({why or 'no operator is one'}): "
            "name a profile or trace of a model on a GPU, with the shapes of its operators."
        )
    order = ("prefill", "call", WHOLE_TRACE)
    ordered = sorted(steps, key=lambda step: (step not in order, step))
    return ModelProducts(name, device, tuple(ordered), products, left_out)


def _merged(group: Sequence[tuple[_Calls, RecordedProduct]]) -> ProductCalls:
    counts: dict[str, int] = {}
    times: dict[str, float] = {}
    for call, _ in group:
        counts[call.step] = counts.get(call.step, 0) + call.count
        times[call.step] = times.get(call.step, 0.0) + call.recorded_us
    first = group[0][1]
    return ProductCalls(
        first.product,
        first.reason,
        tuple(dict.fromkeys(call.operator for call, _ in group)),
        counts,
        times,
        tuple(dict.fromkeys(word for _, found in group for word in found.omitted)),
    )
