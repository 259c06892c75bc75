"""Kernels that are wrong only for rare magnitudes, places or kinds of rows, and correct ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from points import each_once
from python_kernels import KERNEL, PythonDevice

from pytest_gpuenergy.devices import Threshold
from pytest_gpuenergy.engine import drawings_of, verify_on_device
from pytest_gpuenergy.kernels import Kernel, TritonKernel
from pytest_gpuenergy.record import Correctness
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Contract, Scalar, Tensor

Function = Callable[..., Any]


def contract(
    function: Function,
    shape: tuple[int, ...],
    out: tuple[int, ...],
    dtype: str = "float32",
    result: str | None = None,
    **options: Any,
) -> Contract:
    """y = function(x)."""
    tensors = (Tensor("x", shape, dtype, "input"), Tensor("y", out, result or dtype, "output"))
    return Contract("rare", tensors, lambda inputs: {"y": function(inputs["x"])}, **options)


def verified(workload: Contract, function: Function, text: str = "") -> Correctness:
    def body(x: Any, y: Any) -> None:
        y[...] = function(x)

    kernel = replace(KERNEL, source=f"{KERNEL.source} {text}")
    # With a fixed seed: a random one may, rarely, leave out an eighth of a vector.
    return verify_on_device(PythonDevice(body), kernel, workload, drawn=3)


def assert_wrong(workload: Contract, function: Function, text: str = "") -> None:
    with pytest.raises(KernelFault, match=r"of y .*(wrong|NaN)|y is off by") as raised:
        verified(workload, function, text)
    assert raised.value.outcome == "correctness"


def softplus(x: Any) -> Any:
    return np.logaddexp(x, x.dtype.type(0))


def off_between(low: float, high: float) -> Function:
    return lambda x: np.where((abs(x) >= low) & (abs(x) < high), x * np.float32(1.01), x)


@pytest.mark.parametrize("exponent", range(-5, 7))
def test_an_error_in_one_octave_is_found(exponent):
    workload = contract(lambda x: 1 * x, (4096,), (4096,))
    verified(workload, lambda x: x)
    low = 2.0**exponent
    if exponent >= -2:  # below that it is hidden by the largest values
        assert_wrong(workload, off_between(low, 2 * low))


def test_a_threshold_where_ordinary_inputs_are_rare_is_found():
    workload = contract(softplus, (4096,), (4096,))
    verified(workload, lambda x: np.where(x > 20, x, np.log1p(np.exp(x))))
    assert_wrong(workload, lambda x: np.where(x > 8, x, np.log1p(np.exp(x))))


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("v == 37.25f ? 0.f : v", 37.25, 37.250001),
        ("#define EDGE 1.75e1f", 17.5, 17.500001),
        ("/* 5 */ v > -73 && v < 75", 73.9, 74.1),
        ("expf(v) > 54.598f", 3.99, 4.01),
        ("v * v < 2500.f", 49.9, 50.1),
        ("1.f / v > 8.f", 0.124, 0.126),
        ("v > 500.f", 499.9, 500.1),
        ("0x1F", 30.9, 31.1),
    ],
)
def test_values_near_a_number_in_the_text_are_tried(text, low, high):
    seen = []
    workload = contract(lambda x: x, (4096,), (4096,))
    verified(workload, lambda x: seen.append(x.copy()) or x, text)
    sizes = np.abs(np.concatenate(seen))
    if text.startswith("/*"):  # a number between two others is not near one
        assert ((sizes > 72.9) & (sizes < 73.1)).any()
        assert ((sizes > 74.9) & (sizes < 75.1)).any()
        return
    assert ((sizes >= low) & (sizes <= high)).sum() >= 3


def test_an_input_just_below_and_above_a_number_in_the_text_is_tried():
    seen = []
    workload = contract(lambda x: x, (4096,), (4096,))
    verified(workload, lambda x: seen.append(x.copy()) or x, "v >= 4.25f")
    near = {float(v) for v in np.unique(np.abs(np.concatenate(seen))) if 4.2499 < v < 4.2501}
    assert 4.25 in near
    assert min(near) < 4.25 < max(near)


@pytest.mark.parametrize(
    ("dtype", "threshold", "near"),
    [
        ("float32", Threshold(61.375, True), True),
        ("float32", Threshold(-61.375, True), True),
        ("float32", Threshold(613750.0, False), False),  # an index
        ("int32", Threshold(613750.0, False), True),
        ("int32", Threshold(0.3, True), False),
    ],
)
def test_values_near_what_a_kernel_compares_with_are_tried(dtype, threshold, near):
    seen = []

    def body(x, y):
        seen.append(x.copy())
        y[...] = x

    workload = contract(lambda x: 1 * x, (4096,), (4096,), dtype)
    device = PythonDevice(body, thresholds=[threshold])
    verify_on_device(device, KERNEL, workload, drawn=3)
    sizes = np.abs(np.concatenate(seen).astype(float))
    found = sizes[np.isclose(sizes, abs(threshold.value), rtol=1e-5)]
    assert (len(set(found)) >= 3) == near
    without = PythonDevice(body)
    verify_on_device(without, KERNEL, workload, drawn=3)
    assert device.runs == without.runs + 2 * near


def test_a_threshold_that_is_in_the_text_takes_no_further_run():
    workload = contract(lambda x: x, (4096,), (4096,))
    runs = []
    for thresholds in ((), [Threshold(0.1 + 1e-9, True), Threshold(1.0, True)]):
        device = PythonDevice(lambda x, y: y.__setitem__(..., x), thresholds=thresholds)
        verify_on_device(device, replace(KERNEL, source="v > 0.1f"), workload, drawn=3)
        runs.append(device.runs)
    assert runs[0] == runs[1]


def test_integers_of_every_length_are_tried():
    """No uniform drawing has a high half of zero, or low bits that are a tie of a rounding."""
    seen = []
    workload = contract(lambda x: 1 * x, (2000,), (2000,), "uint64")
    verified(workload, lambda x: seen.append(x.copy()) or x)
    values = np.concatenate(seen)
    lengths = {int(value).bit_length() for value in np.unique(values)}
    assert len(lengths) > 50
    ends = {(int(value) & -int(value)).bit_length() for value in np.unique(values)}
    assert len(ends) > 40


@pytest.mark.parametrize("sign", [-1, 1])
def test_two_tensors_are_all_close_to_the_ends_of_their_ranges(sign):
    """So that scores are all far below 0, where a maximum that starts at 0 makes weights vanish."""
    tensors = [Tensor(name, (8, 32), "float32", "input") for name in ("q", "k")]
    tensors.append(Tensor("y", (8,), "float32", "output"))
    ranges = {"q": (-6.0, 6.0), "k": (-6.0, 6.0)}
    seen = []

    def body(q, k, y):
        y[...] = (q * k).sum(axis=1)
        seen.append(y.copy())

    workload = Contract(
        "scores",
        tuple(tensors),
        lambda inputs: {"y": (inputs["q"] * inputs["k"]).sum(axis=1)},
        init=ranges,
        reduction_length=32,
    )
    verify_on_device(PythonDevice(body), KERNEL, workload, drawn=3)
    assert any((sign * scores > 600).all() for scores in seen)


def group_gradient(x: Any, dy: Any, gain: Any, *, of_squares: bool = False) -> Any:
    """Return the gradient of normalizing groups of four channels of x."""
    groups, g = (one.reshape(4, 3, 140) for one in (x, dy * gain[:, None]))
    mean = groups.mean(axis=2, keepdims=True)
    apart = groups - mean
    variance = (apart**2).mean(axis=2, keepdims=True)
    if of_squares:
        variance = (groups**2).mean(axis=2, keepdims=True) - mean**2
    scale = 1 / np.sqrt(variance + x.dtype.type(1e-3))
    along = (g * apart * scale).mean(axis=2, keepdims=True)
    return (scale * (g - g.mean(axis=2, keepdims=True) - apart * scale * along)).reshape(x.shape)


@pytest.mark.parametrize("of_squares", [False, True])
def test_the_first_tensor_alone_is_close_together_and_far_from_zero(of_squares):
    """Where others are large as well, what cancels in it is small beside them."""

    def body(x: Any, dy: Any, gain: Any, y: Any) -> None:
        y[...] = group_gradient(x, dy, gain, of_squares=of_squares)

    shapes = {"x": (4, 12, 35), "dy": (4, 12, 35), "gain": (12,)}
    tensors = [Tensor(name, shape, "float32", "input") for name, shape in shapes.items()]
    workload = Contract(
        "gradient",
        (*tensors, Tensor("y", shapes["x"], "float32", "output")),
        lambda inputs: {"y": group_gradient(*inputs.values())},
        reduction_length=140,
    )
    wrong = pytest.raises(KernelFault, match=r"of y .* wrong")
    with wrong if of_squares else contextlib.nullcontext():
        verify_on_device(PythonDevice(body), KERNEL, workload, drawn=3)


def test_numbers_in_the_text_of_a_triton_function_count():
    workload = contract(lambda x: x, (4096,), (4096,))
    source = "@triton.jit\ndef f(x, y):\n    tl.store(y, tl.where(v > 6.25, 0, v))\n"
    kernel = TritonKernel(source=source, function="f", grid=(1, 1, 1), arguments=("x", "y"))
    drawings = drawings_of((0, 1, 2), workload, kernel)
    assert all(6.25 in drawing.literals for drawing in (drawings[1], drawings[-1]))


def test_scalars_count_as_numbers_in_the_text():
    workload = contract(lambda x: x, (4096,), (4096,), values=(Scalar("limit", "float32", 11.5),))
    assert 11.5 in drawings_of((0, 1, 2), workload, KERNEL)[1].literals


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("v > 3.f * limit ? 0 : v", 34.5),
        ("#define CUT (2 * 10.25f)\nv > CUT ? 0 : v", 20.5),
        ("constexpr float low = 7, high = low * 1.5f + 0.25f;\nv > high ? 0 : v", 10.5),
        ("v > 1 << 6 ? 0 : v", 64.0),
        ("v > (float)(1000 / 30) + 0.5f ? 0 : v", 33.5),
        ("v > 60.f - limit ? 0 : v", 48.5),
        ("v > 5 + 0x10 * 2.0 ? 0 : v", 37.0),
    ],
)
def test_numbers_that_a_text_computes_count(text, number):
    workload = contract(lambda x: x, (4096,), (4096,), values=(Scalar("limit", "float32", 11.5),))
    kernel = Kernel(f"__global__ void f() {{\n{text}\n}}", KERNEL.launches)
    assert number in drawings_of((0, 1, 2), workload, kernel)[1].literals


@settings(deadline=None)
@given(st.text("0123456789.efx+-*/<() #define\nAB", max_size=60).map("f{}".__add__))
def test_no_text_is_too_odd_to_look_for_numbers(text):
    workload = contract(lambda x: x, (64,), (64,))
    drawings = drawings_of((0, 1, 2), workload, Kernel(text, KERNEL.launches))
    assert all(0 <= number < 2**64 for number in drawings[1].literals)


def half_up(x: Any) -> Any:
    return np.floor(x + x.dtype.type(0.5))


def half_away(x: Any) -> Any:
    return np.copysign(np.floor(np.abs(x) + x.dtype.type(0.5)), x)


@pytest.mark.parametrize(
    ("scale", "rounded"),
    each_once([32.0, 0.125, 10.0, 12.75, 1.0], {"up": half_up, "away": half_away}),
)
def test_values_that_scaling_brings_between_integers_are_tried(rounded, scale):
    def quantized(to_integer: Any) -> Any:
        return lambda x: np.clip(to_integer(x * x.dtype.type(scale)), -128, 127)

    workload = contract(
        quantized(np.rint),
        (4096,),
        (4096,),
        result="int8",
        values=(Scalar("scale", "float32", scale),),
    )
    assert_wrong(workload, quantized(rounded), "floor(v * scale + 0.5f)")
    assert verified(workload, quantized(np.rint), "rintf(v * scale)")


def wrapped_cell(x: Any, period: float) -> Any:
    """Return the cell of half a unit of a place that is wrapped to a period first."""
    of_its_type = x.dtype.type
    return np.floor((x - of_its_type(period) * np.floor(x / of_its_type(period))) * 2)


BESIDE_BORDERS: dict[str, tuple[Function, Function]] = {
    "exponent": (lambda x: np.frexp(x)[1], lambda x: np.floor(np.log2(abs(x))) + (x != 0)),
    "cell": (lambda x: np.floor(x * 2) % 16, lambda x: np.minimum(wrapped_cell(x, 8.0), 15)),
    "border": (lambda x: np.floor(x * 2) % 16, lambda x: wrapped_cell(x, 8.0)),
    "half": (lambda x: np.floor(x + 0.5), half_up),
    "ceiling": (lambda x: np.ceil(x), lambda x: np.floor(x + x.dtype.type(1 - 2.0**-24))),
    "quarter": (lambda x: np.floor(x * 4), lambda x: np.floor(x * 4 + x.dtype.type(2.0**-20))),
}


@pytest.mark.parametrize("name", BESIDE_BORDERS)
def test_numbers_just_beside_borders_of_cells_are_tried(name):
    right, wrong = BESIDE_BORDERS[name]
    workload = contract(right, (2500,), (2500,), result="int32")
    with np.errstate(divide="ignore"):
        verified(workload, lambda x: right(x.astype(np.float64)))
        assert_wrong(workload, lambda x: np.where(x == 0, right(x), wrong(x)))


@pytest.mark.parametrize(
    ("text", "function", "rare"),
    [
        ("(day + 719468) / 146097", lambda x: (x + 719468) // 146097, (719468, 146097, -1)),
        ("(v - 5000) % 86400", lambda x: (x - 5000) % 86400, (-5000, 86400, 86399)),
        ("#define PRIME 65521\nv % PRIME", lambda x: x % 65521, (0, 65521, 0)),
        ("v % 4093 == 0", lambda x: x // 4093, (0, 4093, 0)),
        ("(v + 10080) / 40320", lambda x: (x + 10080) // 40320, (10080, 40320, 1)),
    ],
)
def test_integers_near_shifted_multiples_of_numbers_in_the_text_are_tried(text, function, rare):
    shift, divisor, rest = rare
    workload = contract(function, (2000,), (2000,), "int32", init={"x": (-2_000_000, 500_000_000)})
    assert_wrong(
        workload,
        lambda x: function(x) + ((x + shift) % divisor == rest % divisor),
        text,
    )


def test_integers_near_numbers_in_the_text_are_tried():
    workload = contract(lambda x: x, (4096,), (4096,), "int32")
    assert_wrong(workload, lambda x: np.where(x == 77777, 0, x), "v == 77777 ? 0 : v")
    assert_wrong(workload, lambda x: np.where(x == -1001, 0, x), "v < -1000")


EXTREMES: dict[str, tuple[Function, Any]] = {
    "maximum": (lambda x: x.max(keepdims=True), -np.inf),
    "minimum": (lambda x: x.min(keepdims=True), np.inf),
    "largest magnitude": (lambda x: np.abs(x).max(keepdims=True), 0),
}


MISSING = (
    slice(9984, None),
    slice(0, 1),
    slice(-1, None),
    slice(None, None, 16),
    slice(5000, 6500),
    slice(3, None, 8),
)


@pytest.mark.parametrize(
    ("missing", "name"), each_once({str(part): part for part in MISSING}, EXTREMES.keys())
)
def test_every_part_of_a_vector_decides_its_extreme(name, missing):
    function, neutral = EXTREMES[name]
    workload = contract(function, (10_007,), (1,))

    def partial(x: Any) -> Any:
        x = x.copy()
        x[missing] = neutral
        return function(x)

    assert_wrong(workload, partial)


@pytest.mark.parametrize(
    ("function", "rows"),
    each_once(
        {f.__name__: f for f in (np.any, np.all, np.bitwise_or.reduce, np.argmax, np.max)},
        [1, 5, 37],
    ),
)
def test_every_part_of_a_row_of_integers_decides(rows, function):
    dtype = "bool" if function in (np.any, np.all) else "int32"
    result = "int32" if function is np.argmax else dtype
    workload = contract(lambda x: function(x, axis=1), (rows, 333), (rows,), dtype, result)
    verified(workload, lambda x: function(x, axis=1))
    assert_wrong(workload, lambda x: function(x[:, :320], axis=1))


def highest(x: Any, count: int) -> Any:
    return -np.sort(-x, axis=1)[:, :count]


@pytest.mark.parametrize(
    ("threads", "kept", "count"), [(128, 1, 2), (64, 1, 2), (32, 2, 5), (84, 1, 2)]
)
def test_the_few_highest_values_may_all_belong_to_one_thread(threads, kept, count):
    """With 84 threads each comes by four neighbours, otherwise by every so many-th value."""
    workload = contract(lambda x: highest(x, count), (48, 336), (48, count))

    def by_thread(x: Any) -> Any:
        columns = np.arange(336)
        owner = columns // 4 if threads == 84 else columns % threads
        candidates = [highest(x[:, owner == thread], kept) for thread in range(threads)]
        return highest(np.concatenate(candidates, axis=1), count)

    assert_wrong(workload, by_thread)


def softmax(x: Any, step: int = 1, axis: int = 1) -> Any:
    part = x[:, ::step] if axis == 1 else x[::step]
    with np.errstate(all="ignore"):
        powers = np.exp(x - part.max(axis=axis, keepdims=True))
        return powers / powers.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize(
    ("step", "shape"),
    each_once(
        [2, 3, 4, 8, 16],
        {str(shape): (shape,) for shape in ((16, 64), (64, 192), (37, 333), (64, 1024))},
    ),
)
@pytest.mark.parametrize("axis", [0, 1])
def test_a_softmax_with_the_maximum_of_a_part_is_wrong(shape, step, axis):
    workload = contract(lambda x: softmax(x, axis=axis), shape, shape, reduction_length=shape[axis])
    assert_wrong(workload, lambda x: softmax(x, step, axis))


def layer_norm(x: Any, epsilon: float = 1e-5) -> Any:
    off = x - x.mean(axis=1, keepdims=True)
    return off / np.sqrt((off * off).mean(axis=1, keepdims=True) + x.dtype.type(epsilon))


ROWS = (24, 96)
RARE: dict[str, tuple[Function, Function, str | None]] = {
    "sorted without duplicates": (
        lambda x: np.sort(x, axis=1),
        lambda x: np.stack([np.resize(np.unique(row), row.size) for row in x]),
        None,
    ),
    "last of equal values": (
        lambda x: x.argmax(axis=1, keepdims=True) + 0 * x.astype(int),
        lambda x: x.shape[1] - 1 - x[:, ::-1].argmax(axis=1, keepdims=True) + 0 * x.astype(int),
        "int32",
    ),
    "other epsilon": (layer_norm, lambda x: layer_norm(x, 1e-6), None),
    "variance clipped": (
        layer_norm,
        lambda x: layer_norm(np.clip(x, -100, 100)),
        None,
    ),
    "the sign of zero": (
        lambda x: np.where(np.signbit(x), -1.0, 1.0),
        lambda x: np.where(x < 0, np.float32(-1), np.float32(1)),
        None,
    ),
    "sign copied": (
        lambda x: np.copysign(3.0, x),
        lambda x: np.where(x < 0, np.float32(-3), np.float32(3)),
        None,
    ),
    "a row of zeros": (
        lambda x: (x != 0).sum(axis=1, keepdims=True) + 0 * x.astype(int),
        lambda x: np.maximum((x != 0).sum(axis=1, keepdims=True), 1) + 0 * x.astype(int),
        "int32",
    ),
}


@pytest.mark.parametrize("name", RARE)
def test_rows_of_a_rare_kind_are_tried(name):
    right, wrong, result = RARE[name]
    workload = contract(right, ROWS, ROWS, result=result, reduction_length=96)
    verified(workload, right)
    assert_wrong(workload, wrong)


SCALES = np.where(np.arange(100) == 7, np.float32(1e-6), np.float32(1))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_slice_of_other_scale_is_judged_by_its_own_size(axis):
    scales = SCALES[:, None] if axis == 0 else SCALES
    shape = (100, 64) if axis == 0 else (64, 100)
    workload = contract(lambda x: x * scales, shape, shape)
    verified(workload, lambda x: x * scales)
    assert_wrong(workload, lambda x: x * np.where(scales < 1, np.float32(1.01e-6), np.float32(1)))


def test_a_piece_of_a_vector_of_other_scale_is_judged_by_its_own_size():
    scales = np.where(np.arange(4096) // 64 == 7, np.float32(1e-6), np.float32(1))[:4096]
    workload = contract(lambda x: x * scales, (4096,), (4096,))
    verified(workload, lambda x: x * scales)
    assert_wrong(workload, lambda x: x * np.where(scales < 1, np.float32(1.01e-6), np.float32(1)))


def test_large_workloads_of_many_outputs_have_no_sparse_drawings():
    assert len(drawings_of((0, 1, 2), contract(lambda x: x, (1 << 20,), (1 << 20,)))) == 3


@pytest.mark.slow
def test_a_period_that_the_shape_tells_is_found():
    shape = (5000, 256)
    workload = contract(lambda x: 2 * x, shape, shape)
    rows = np.arange(5000) % 4093
    assert_wrong(workload, lambda x: 2 * x[rows])


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize("lost", [1, 1 << 10, 1 << 40])
def test_each_bit_of_a_64_bit_integer_counts(dtype, lost):
    workload = contract(lambda x: x ^ x.dtype.type(3 << 20), (100,), (100,), dtype)
    verified(workload, lambda x: x ^ x.dtype.type(3 << 20))
    with pytest.raises(KernelFault, match=r"of y .* wrong .* instead of -?\d"):
        verified(workload, lambda x: (x ^ x.dtype.type(3 << 20)) & ~x.dtype.type(lost))


def test_one_wrong_bit_of_a_64_bit_integer_is_told_in_full():
    shape, high = (9,), 1 << 62
    workload = contract(lambda x: np.full(x.shape, high + 1), shape, shape, "int64")
    with pytest.raises(KernelFault, match=rf"= {high} instead of {high + 1}\.$"):
        verified(workload, lambda x: np.full(shape, high) + 0 * x)


FLAGGED: dict[str, tuple[Function, Function]] = {
    "none": (np.any, lambda x: x.size > 0),
    "all": (np.all, lambda x: 0 * x.sum()),
    "count in a byte": (np.sum, lambda x: x.sum() % 256),
    "first of none": (lambda x: x.argmax() if x.any() else -1, np.argmax),
    "list of 200": (np.sum, lambda x: min(x.sum(), 200)),
}


@pytest.mark.parametrize("name", FLAGGED)
def test_vectors_of_flags_without_any_and_with_all_are_tried(name):
    function, other = FLAGGED[name]
    workload = contract(lambda x: np.full(x.shape, function(x)), (300,), (300,), "bool", "int32")
    verified(workload, lambda x: np.full(x.shape, function(x)))
    assert_wrong(workload, lambda x: np.full(x.shape, other(x)))


def test_indices_that_are_all_the_same_do_not_make_a_right_sum_wrong():
    def added(x: Any, index: Any) -> Any:
        y = np.zeros(500, x.dtype)
        np.add.at(y, index, x)
        return y

    tensors = (
        Tensor("x", (20_000,), "float32", "input"),
        Tensor("index", (20_000,), "int32", "input"),
        Tensor("y", (500,), "float32", "output"),
    )
    workload = Contract(
        "sums",
        tensors,
        lambda inputs: {"y": added(inputs["x"], inputs["index"])},
        reduction_length=64,
        init={"index": (0, 500)},
    )

    def body(x: Any, index: Any, y: Any) -> None:
        y[...] = added(x, index)

    launch = replace(KERNEL.launches[0], arguments=("x", "index", "y"))
    kernel = replace(KERNEL, launches=(launch,))
    for drawn in range(3, 8):
        verify_on_device(PythonDevice(body), kernel, workload, drawn=drawn)


LENGTHS: dict[str, tuple[Function, Function]] = {
    "none": (lambda x: x.max(), lambda x: max(x.max(), 1)),
    "all full": (lambda x: x.sum(), lambda x: min(x.sum(), 100 * 15)),
    "one bucket": (lambda x: np.bincount(x).max(), lambda x: min(np.bincount(x).max(), 63)),
    "none is empty": (lambda x: x.min(), lambda x: min(x.min(), 15)),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_vectors_of_lengths_that_are_all_the_least_or_the_most_are_tried(name):
    function, other = LENGTHS[name]
    ranges = {"x": (0, 17)}
    workload = contract(
        lambda x: np.full(x.shape, function(x)), (100,), (100,), "int32", init=ranges
    )
    verified(workload, lambda x: np.full(x.shape, function(x)))
    assert_wrong(workload, lambda x: np.full(x.shape, other(x)))


def steps_to_first(most: int) -> Function:
    """The number of steps from each node to node 0 along one edge each, up to ``most``."""

    def function(x: Any) -> Any:
        place, steps = np.arange(len(x)), np.zeros(len(x), x.dtype)
        for _ in range(most):
            steps += place != 0
            place = np.where(place == 0, 0, x[place.astype(np.int64)].astype(np.int64))
        return np.where(place == 0, steps, -1)

    return function


def test_a_limit_of_steps_that_only_a_long_chain_exceeds_is_found():
    workload = contract(steps_to_first(300), (300,), (300,), "int32", init={"x": (0, 300)})
    verified(workload, steps_to_first(300))
    assert_wrong(workload, steps_to_first(120))


def shortest(squarings: int) -> Function:
    """Lengths of shortest paths of up to 2^``squarings`` edges, -1 where there are none."""

    def function(x: Any) -> Any:
        far = np.where(x < 700, x, 10**6).astype(np.int64)
        np.fill_diagonal(far, 0)
        for _ in range(squarings):
            far = (far[:, :, None] + far[None]).min(axis=1)
        return np.where(far < 10**6, far, -1).astype(np.int32)

    return function


def test_a_search_that_ends_before_the_longest_path_is_found():
    workload = contract(shortest(6), (40, 40), (40, 40), "int32", init={"x": (0, 1000)})
    verified(workload, shortest(6))
    assert_wrong(workload, shortest(5))


def grouped(centred: bool, epsilon: float) -> Function:
    """Groups of rows less their mean, over their deviation, in the precision of the input."""

    def function(x: Any) -> Any:
        flat = x.reshape(4, -1)
        mean = flat.mean(axis=1, keepdims=True, dtype=x.dtype)
        if centred:
            variance = ((flat - mean) ** 2).mean(axis=1, keepdims=True, dtype=x.dtype)
        else:
            variance = (flat**2).mean(axis=1, keepdims=True, dtype=x.dtype) - mean**2
        return ((flat - mean) / np.sqrt(variance + x.dtype.type(epsilon))).reshape(x.shape)

    return function


@pytest.mark.parametrize("wrong", [grouped(False, 1e-5), grouped(True, 0.0)])
def test_what_shows_only_if_all_of_a_group_is_far_off_or_tiny_is_found(wrong):
    workload = contract(grouped(True, 1e-5), (64, 32), (64, 32))
    verified(workload, grouped(True, 1e-5))
    assert_wrong(workload, wrong)


def first_of(extreme: str, by_bits: bool) -> Function:
    """The column of the largest or smallest number of each row, the first of equal ones."""

    def function(x: Any) -> Any:
        bits = x.view(np.int32)
        keys = np.where(bits < 0, -(bits & 0x7FFFFFFF) - 1, bits) if by_bits else x
        return getattr(keys, extreme)(axis=1).astype(np.int32)

    return function


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 37])
@pytest.mark.parametrize("extreme", ["argmax", "argmin"])
def test_zeros_of_both_signs_that_are_told_apart_are_found(rows, extreme):
    workload = contract(first_of(extreme, False), (rows, 1200), (rows,), result="int32")
    verified(workload, first_of(extreme, False))
    assert_wrong(workload, first_of(extreme, True))


def shares_of_groups(least: float) -> Function:
    """Softmax over the elements of 23 interleaved groups, whose maxima begin at ``least``."""

    def function(x: Any) -> Any:
        most = np.full(23, least, x.dtype)
        group = np.arange(x.size) % 23
        np.maximum.at(most, group, x)
        powers = np.exp(x - most[group])
        with np.errstate(invalid="ignore"):
            return powers / np.bincount(group, powers)[group].astype(x.dtype)

    return function


def test_a_maximum_of_scattered_elements_that_begins_at_zero_is_found():
    workload = contract(shares_of_groups(-np.inf), (600,), (600,), reduction_length=27)
    verified(workload, shares_of_groups(-np.inf))
    assert_wrong(workload, shares_of_groups(0.0))
