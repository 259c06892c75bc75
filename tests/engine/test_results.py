"""A callable's result is compared with its reference, whichever devices they are on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_arrays import CudaInterface, Cupy, CupyArray, DlpackArray, Tensor
from hypothesis import given, strategies as st

from pytest_gpuenergy.engine import Expected, expect, overlap, overwrite
from pytest_gpuenergy.support import KernelFault, ResultError
from pytest_gpuenergy.workloads import ErrorBound

BOUND = ErrorBound(1e-5, 1e-5)
ONES = np.ones((2, 3), np.float32)


def expected(reference: object, *args: object) -> Expected:
    return expect(reference, args, BOUND)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", Cupy())


KINDS: dict[str, Callable[[Any], object]] = {
    "NumPy": lambda data: data,
    "lists": lambda data: data.tolist(),
    "PyTorch, CUDA": Tensor,
    "PyTorch, host": lambda data: Tensor(data, on_gpu=False),
    "PyTorch, bfloat16": lambda data: Tensor(data, bfloat16=True),
    "CuPy": CupyArray,
    "CUDA array interface": CudaInterface,
    "DLPack, host": DlpackArray,
    "DLPack, CUDA": lambda data: DlpackArray(data, (2, 0)),
}


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("theirs", KINDS)
@pytest.mark.parametrize("ours", KINDS)
def test_arrays_of_all_kinds_are_compared(ours, theirs):
    found = expected(KINDS[theirs](ONES)).check(KINDS[ours](ONES * np.float32(1 + 5e-6)))
    assert 0 < found.max_relative_error < 1e-5
    assert (found.max_relative_bound, found.seeds) == (1e-5, ())
    with pytest.raises(KernelFault, match=r"6 of 6 elements of result .* are wrong"):
        expected(KINDS[theirs](ONES)).check(KINDS[ours](2 * ONES))


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("kind", KINDS)
def test_a_function_gives_the_reference_too(kind):
    def reference(x: Any, factor: float) -> object:
        return KINDS[kind](factor * x)

    expected(reference, ONES, 3.0).check(3 * ONES)
    with pytest.raises(KernelFault):
        expected(reference, ONES, 2.0).check(3 * ONES)


TREES = st.recursive(
    st.integers(1, 4).map(np.ones),
    lambda parts: (
        st.lists(parts, min_size=1, max_size=3)
        | st.lists(parts, min_size=1, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("abc"), parts, min_size=1)
    ),
    max_leaves=6,
)


def spoiled(tree: Any, which: int) -> Any:
    """Return ``tree`` with the array number ``which`` doubled."""
    count = 0

    def copied(part: Any) -> Any:
        nonlocal count
        if isinstance(part, dict):
            return {key: copied(value) for key, value in part.items()}
        if isinstance(part, list | tuple):
            return type(part)(map(copied, part))
        count += 1
        return 2 * part if count - 1 == which else part

    return copied(tree)


@given(TREES, st.data())
def test_each_array_of_a_tuple_list_or_dictionary_is_compared(tree, data):
    judge = expected(tree)
    assert judge.check(tree).max_relative_error == 0
    names = list(judge.arrays)
    wrong = data.draw(st.integers(0, len(names) - 1))
    with pytest.raises(KernelFault) as fault:
        judge.check(spoiled(tree, wrong))
    assert f"elements of {names[wrong]} (first {names[wrong]}[0])" in str(fault.value)


def test_parts_are_named_by_their_places():
    found = expected({"y": (ONES, [CupyArray(ONES)]), 3: ONES}).arrays
    assert list(found) == ["result['y'][0]", "result['y'][1][0]", "result[3]"]


@pytest.mark.parametrize(
    ("reference", "returned"),
    [
        ((ONES, ONES), ONES),
        (ONES, (ONES,)),
        ((ONES,), (ONES, ONES)),
        ({"x": ONES}, {"y": ONES}),
        (ONES, (ONES, None)),
        (ONES, {}),
    ],
)
def test_other_parts_than_the_references_are_refused(reference, returned):
    with pytest.raises(ResultError, match=r"^The callable returned .*, but reference= has result"):
        expected(reference).check(returned)


@pytest.mark.parametrize("shape", [(6,), (3, 2), (2, 3, 1), (2, 2), ()])
def test_another_shape_is_refused(shape):
    with pytest.raises(ResultError) as error:
        expected(np.ones(shape)).check(ONES)
    assert str(error.value) == (
        f"The callable's result has shape (2, 3), but its reference has shape {shape}: they must "
        "be the same."
    )


NOT_NUMBERS = [None, object(), "text", ["a", "b"], ONES + 1j, [[1.0], [1.0, 2.0]], np.array([None])]


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda value: type(value).__name__)
def test_what_is_not_numbers_is_refused(value):
    with pytest.raises(ResultError, match=r"^The reference of result has type \w+"):
        expected(lambda: value)
    with pytest.raises(ResultError, match=r"^The callable's result has type \w+"):
        expected(ONES).check(value)


def test_structured_arrays_are_refused():
    with pytest.raises(ResultError, match="only real numbers can be compared"):
        expected(np.zeros(2, [("x", "f8")]))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float64"])
def test_numbers_of_any_type_are_compared(dtype):
    assert expected(ONES.astype(dtype)).check(ONES.astype(dtype)).normwise_error == 0


def test_types_that_were_added_to_numpy_are_compared():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    assert expected(ONES.astype(bfloat16)).check(ONES.astype(bfloat16)).normwise_error == 0


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ([], "The reference of result is empty"),
        ({}, "reference= is empty"),
        ([1.0, float("nan")], r"The reference of result is NaN, first at \[1\]"),
        ((ONES, np.nan * ONES), r"The reference of result\[1\] is NaN, first at \[0,"),
        (np.ma.masked_all(3), "The reference of result is masked as a whole"),
    ],
)
def test_a_reference_that_proves_nothing_is_refused(reference, words):
    with pytest.raises(ResultError, match=f"^{words}.*: nothing can be compared with it"):
        expected(reference)


LOGITS = np.array([[1.0, -np.inf, 3.0], [np.inf, 5.0, 6.0]])


def test_infinities_of_a_reference_must_be_equal():
    for reference in (LOGITS, lambda x: np.where(np.isinf(LOGITS), LOGITS, x)):
        right = expected(reference, np.nan_to_num(LOGITS, posinf=0, neginf=0))
        assert right.check(LOGITS.astype("float32")).normwise_error == 0
        for wrong in (np.nan, np.inf, 3e38):
            with pytest.raises(KernelFault, match=r"^1 of 6 elements .*result\[0, 1\]"):
                right.check(np.where(-np.inf == LOGITS, wrong, LOGITS))
        with pytest.raises(KernelFault, match=r"result\[1, 2\]"):
            right.check(np.where(LOGITS == 6, -np.inf, LOGITS))


def test_what_a_reference_masks_is_not_compared():
    right = expected(np.ma.masked_where(LOGITS > 3, LOGITS))
    assert right.check(np.where(LOGITS > 3, np.nan, LOGITS)).normwise_error == 0
    assert right.check(np.where(LOGITS > 3, 7, LOGITS)).normwise_error == 0
    with pytest.raises(KernelFault, match=r"result\[0, 2\]"):
        right.check(np.where(LOGITS == 3, 4, LOGITS))


def test_a_reference_that_raises_is_told_with_its_place():
    def reference(x: Any) -> None:
        raise ValueError(f"shape {x.shape}\nand more")

    line = reference.__code__.co_firstlineno + 1
    with pytest.raises(ResultError) as error:
        expected(reference, ONES)
    assert str(error.value) == (
        "reference= was called with the callable's arguments and raised ValueError in "
        f"{Path(__file__).name}, line {line}: shape (2, 3)."
    )


def test_a_reference_of_other_arguments_is_told():
    with pytest.raises(ResultError, match=r"and raised TypeError: .* 1 positional argument"):
        expected(lambda x: x, ONES, ONES)


def test_what_a_reference_does_to_its_arguments_does_not_reach_the_callable():
    arrays = [np.ones(3) for _ in range(4)]
    args = (arrays[0], [CupyArray(arrays[1])], {"x": Tensor(arrays[2])}, (arrays[3], "text"))

    def reference(a: Any, b: Any, c: Any, d: Any) -> object:
        for data in (a, b[0].data, c["x"].data, d[0]):
            data[:] = 7
        assert d[1] == "text"
        return a

    expected(reference, *args).check(np.full(3, 7.0))
    assert all((array == 1).all() for array in arrays)


def test_a_reference_is_copied_before_the_callable_can_write_into_it():
    shared = np.ones(3)
    judge = expected(shared)
    shared[:] = 2
    with pytest.raises(KernelFault):
        judge.check(shared)


ARRAYS: dict[str, Callable[[Any], Any]] = {
    "NumPy": lambda data: data,
    "PyTorch": Tensor,
    "PyTorch, bfloat16": lambda data: Tensor(data, bfloat16=True),
    "CuPy": CupyArray,
    "CUDA array interface": CudaInterface,
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_array_is_overwritten_where_it_is(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    whole = np.zeros((4, 6), np.float32)
    overwrite(ARRAYS[kind](whole[::2, 1:4]), np.ones((2, 3), np.float32))
    assert whole[::2, 1:4].all()
    assert whole.sum() == 6


SLICES = st.builds(slice, st.integers(0, 9), st.integers(10, 20), st.integers(1, 3))


@given(SLICES, SLICES, st.booleans(), st.booleans())
def test_slices_overlap_where_their_bounds_do(rows, others, back, apart):
    whole = np.zeros((20, 4), np.float32)
    one = whole[rows][:: -1 if back else 1, 1:]
    other = (whole.copy() if apart else whole)[others, :2]
    assert overlap(CupyArray(one), CupyArray(other)) == np.may_share_memory(one, other)
    assert overlap(one, other) == np.may_share_memory(one, other)


def test_nothing_overlaps_an_empty_array():
    whole = np.zeros(5)
    assert not overlap(whole[2:2], whole)


def test_views_of_a_tensor_share_its_storage():
    whole = np.zeros((2, 3))
    assert overlap(Tensor(whole), Tensor(whole))
    assert not overlap(Tensor(whole), Tensor(whole.copy()))
