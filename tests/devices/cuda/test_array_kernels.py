"""Our kernels for whole arrays compute what NumPy computes; the emulated GPU runs their text."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from python_kernels import KERNEL, PythonDevice

from pytest_gpuenergy.devices import Arena, Binary, DeviceArrays, KernelMath, array_kernels
from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import (
    ArenaCheck,
    Reference,
    cached_reference,
    references,
    seeded_arenas,
    verify_on_device,
)
from pytest_gpuenergy.kernels import Job, Kernel, Launch
from pytest_gpuenergy.workloads import (
    NUMPY,
    Allowance,
    Gemm,
    IoContract,
    Scalar,
    Tensor,
    rounded_to,
    stored_as,
)

pytestmark = pytest.mark.slow

RANDOM = np.random.default_rng(5)
SPECIAL = np.array([0.0, -0.0, 1e-7, -3.0, 65504.0, 2.5, np.inf, -np.inf, np.nan])
TYPES = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


class There(np.ndarray):
    """An array as CuPy's, whose functions this test does not use."""

    def get(self) -> Any:
        return np.array(self.view(np.ndarray))

    def copy(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a kernel of CuPy's would be compiled")

    @property
    def data(self) -> Any:
        return SimpleNamespace(memset=lambda value, _: self.view(np.ndarray).fill(value))

    def __array_ufunc__(self, ufunc: Any, _: str, *inputs: Any, **named: Any) -> Any:
        assert ufunc is np.matmul, "a kernel of CuPy's would be compiled"
        assert not named
        return there(np.matmul(*(each.view(np.ndarray) for each in inputs)))

    def __setitem__(self, key: Any, value: Any) -> None:
        part = self.view(np.ndarray)[key]
        assert part.flags.c_contiguous, "CuPy copies contiguous memory without a kernel"
        assert part.dtype == value.dtype
        self.view(np.ndarray)[key] = value.view(np.ndarray)


def there(values: Any) -> Any:
    return np.array(values, order="C").view(There)


class HostModule:
    """Runs functions of the text on the emulated GPU, in place of CuPy's module."""

    def __init__(self, device: EmulatedDevice, folder: Path) -> None:
        self._device, self._folder = device, folder
        self._lock = threading.Lock()

    def load_file(self, path: str) -> None:
        del path

    def get_function(self, name: str) -> Any:
        def run(grid: tuple[int, ...], block: tuple[int, ...], given: tuple[Any, ...]) -> None:
            arrays = {f"a{k}": each for k, each in enumerate(given) if isinstance(each, There)}
            scalars = tuple(
                Scalar(f"a{k}", each.dtype.name, each.item())
                for k, each in enumerate(given)
                if not isinstance(each, There)
            )
            tensors = {
                key: Tensor(key, each.shape, each.dtype.name, "inout")
                for key, each in arrays.items()
            }
            sizes = [(*dims, 1, 1)[:3] for dims in (grid, block)]
            names = tuple(f"a{k}" for k in range(len(given)))
            kernel = Kernel(array_kernels().source, (Launch(name, *sizes, names),))
            job = Job(kernel, IoContract(name, tuple(tensors.values()), scalars))
            arenas = {
                key: Arena.create(self._folder / key, tensors[key], each.view(np.ndarray))
                for key, each in arrays.items()
            }
            with self._device.load(job, arenas) as loaded:
                loaded.run()
            for key, arena in arenas.items():
                np.copyto(arrays[key].view(np.ndarray), arena.value())

        def call(*launch: Any) -> None:
            with self._lock:  # references are computed in threads
                run(*launch)

        return call


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as opened:
        yield opened


@pytest.fixture(scope="module")
def math(device, tmp_path_factory) -> Iterator[KernelMath]:
    folder = tmp_path_factory.mktemp("arrays")
    fake = SimpleNamespace(
        ndarray=There,
        asarray=there,
        empty=lambda shape, dtype: there(np.full(shape, 7, dtype)),
        empty_like=lambda values: there(np.full(values.shape, 7, values.dtype)),
        zeros=lambda shape, dtype: there(np.zeros(shape, dtype)),
        cuda=SimpleNamespace(
            function=SimpleNamespace(Module=lambda: HostModule(device, folder)),
            driver=SimpleNamespace(CUDADriverError=ValueError),
        ),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", fake)
        yield KernelMath(lambda: Binary(folder, {}))


class Arrays(KernelMath, DeviceArrays):
    """A device's arrays."""

    def used(self) -> Any:
        return contextlib.nullcontext()

    def put(self, array: Any) -> Any:
        return array if isinstance(array, There) else there(array)

    def get(self, array: Any) -> Any:
        return array.get()

    def memory(self, nbytes: int) -> Any:
        image = there(np.zeros(nbytes, np.uint8))
        return SimpleNamespace(arrays=self, in_place=True, image=lambda **_: image)


@pytest.mark.thorough  # 126 launches, each of which another test compares alone
@pytest.mark.usefixtures("math")
def test_no_kernel_of_cupys_is_needed_to_verify_a_product(tmp_path, monkeypatch):
    monkeypatch.setattr(references, "_LARGE_ELEMENTS", 1)

    def multiply(**tensors: Any) -> None:
        a, b = (NUMPY.widened(tensors[name], gemm.dtype) for name in "AB")
        tensors["C"][...] = rounded_to(a @ b, gemm.output_type)

    gemm = Gemm("product", 24, 20, 9, mode="bfloat16")
    device = PythonDevice(multiply, arrays=Arrays(lambda: Binary(tmp_path, {})))
    found = verify_on_device(device, KERNEL, gemm, near_literals=False)
    assert 0 < found.max_relative_error < found.max_relative_bound


@pytest.mark.usefixtures("math")
def test_an_output_is_compared_before_anything_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(references, "_LARGE_ELEMENTS", 1)
    product = Gemm("product", 20, 16, 8, mode="bfloat16")
    arrays = Arrays(lambda: Binary(tmp_path, {}))
    assert arrays.is_loaded
    values = there(cached_reference(product, 0)["C"])
    right = Reference({"C": values}, arrays=arrays)
    with seeded_arenas(product, 0, arrays) as arenas:
        check = ArenaCheck(arenas, lambda: right, product.io.bounds, 0)
        arenas["C"].fill(rounded_to(values.get(), product.output_type))
        done: list[str] = []
        launch, get = KernelMath._launch, There.get
        monkeypatch.setattr(
            KernelMath, "_launch", lambda *some: [done.append(some[1]), launch(*some)]
        )
        monkeypatch.setattr(There, "get", lambda there: (done.append("wait"), get(there))[1])
        check()
    assert sorted(done[: done.index("wait")]) == [*["differ"] * 8, "distance", "to_single"]


def of_type(values: Any, dtype: str) -> Any:
    return np.asarray(rounded_to(np.asarray(values, np.float64), dtype), stored_as(dtype))


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_and_their_extremes(math, dtype):
    with np.errstate(over="ignore"):
        for values in (SPECIAL, RANDOM.normal(size=(9, 41)), np.array([np.nan])):
            stored = of_type(values, dtype)
            np.testing.assert_array_equal(
                math.widened(there(stored), dtype).get(), NUMPY.widened(stored, dtype)
            )
            found, right = (
                each.extremes(one, dtype) for each, one in ((math, there(stored)), (NUMPY, stored))
            )
            np.testing.assert_array_equal(found, right)
            single = math.numbers(there(stored), dtype)
            np.testing.assert_array_equal(single.view(np.ndarray), NUMPY.numbers(stored, dtype))


@pytest.mark.parametrize("dtype", TYPES[:4])
def test_how_far_an_output_is_off(math, dtype):
    expected = RANDOM.normal(size=(37, 29))
    stored = of_type(expected + 1e-3, dtype)
    output = NUMPY.numbers(stored, dtype)
    own, terms = np.abs(expected) / 2, np.full(expected.shape, 0.3)
    for steps in (0, 1):
        found = math.distance(there(output), there(expected), steps)
        np.testing.assert_allclose(found, NUMPY.distance(output, expected, steps), rtol=1e-12)
    for some in ((None, None), (own, None), (None, terms), (own, terms)):
        right = NUMPY.count_within(output, expected, Allowance(1e-3, 1e-4, 2e-4, 2.0, *some))
        some_there = (None if one is None else there(one) for one in some)
        allowance = Allowance(1e-3, 1e-4, 2e-4, 2.0, *some_there)
        assert math.count_within(there(output), there(expected), allowance) == right
    assert 0 < right < expected.size or dtype == "bfloat16"


def test_errors_that_are_no_numbers_and_outputs_that_are_all_zero(math):
    unset = np.array([1.0, np.nan], np.float32)
    assert np.isnan(math.distance(there(unset), there(np.ones(2))).largest)
    assert math.distance(there(np.zeros(3)), there(np.zeros(3)))[2:] == (1.0, 1.0)
    assert np.isnan(math.distance(there(np.ones(2)), there(np.array([1.0, np.nan]))).scale)


@pytest.mark.parametrize("shape", [(40, 300), (17, 3), (3, 17)])
@pytest.mark.parametrize("limit", [1e-3, 0.5, np.nan, np.inf])
def test_slices_that_are_small(math, shape, limit):
    for row, value in ((0, 1e-4), (1, 0.0), (2, 1.0)):
        values = 1 + np.abs(RANDOM.normal(size=shape))
        values[row] *= value
        assert math.has_small_slice(there(values), limit) == NUMPY.has_small_slice(values, limit)


def test_changes_and_reactions(math):
    values = RANDOM.normal(size=(7, 33))
    values[0, :3] = 0.0, -0.0, 1e-9
    bits = np.frombuffer(RANDOM.bytes(-(-values.size // 8)), np.uint8)
    for floor in (0.0, NUMPY.root_mean_square(values)):
        right = NUMPY.changed(values, floor, 2.0**-20, bits)
        changed = math.changed(there(values), floor, 2.0**-20, bits).get()
        np.testing.assert_array_equal(changed, right)
        np.testing.assert_array_equal(np.signbit(changed), np.signbit(right))
    np.testing.assert_array_equal(math.added(there(values), there(right)).get(), values + right)
    assert math.root_mean_square(there(values)) == pytest.approx(NUMPY.root_mean_square(values))
    bad = right.copy()
    bad[3, 3] = np.nan
    first = NUMPY.larger_reaction(right, values, 0.5, None)[0]
    with np.errstate(invalid="ignore"):
        for result, before in ((right, None), (right, first), (bad, first), (1.5 * right, first)):
            now, is_same = NUMPY.larger_reaction(result, values, 0.5, before)
            found, is_so = math.larger_reaction(
                there(result), there(values), 0.5, None if before is None else there(before)
            )
            np.testing.assert_array_equal(found.get(), now)
            assert is_so == is_same == (result is right and before is first)


@pytest.mark.parametrize("dtype", ["float64", "uint16", "int8"])
def test_elements_at_places(math, dtype):
    values = RANDOM.integers(0, 100, (11, 13)).astype(dtype)
    places = np.array([0, 142, 7, 7])
    copy = there(values)
    np.testing.assert_array_equal(math.take(copy, places), values.reshape(-1)[places])
    np.testing.assert_array_equal(math.sample(copy, 10), values.reshape(-1)[::10])
    math.put_at(copy, places, np.array([1, 2, 3, 3], dtype))
    NUMPY.put_at(values, places, np.array([1, 2, 3, 3], dtype))
    np.testing.assert_array_equal(copy.get(), values)


def test_one_byte_that_differs(math):
    image = RANDOM.integers(0, 256, 4096).astype(np.uint8)
    other = image.copy()
    other[4090] ^= 1
    pairs = [(image, image), (image, other), (image[3:], image[3:]), (image[3:], other[3:])]
    pairs_there = [(there(one), there(two)) for one, two in pairs]
    assert math.differing(pairs_there) == NUMPY.differing(pairs) == [1, 3]
    assert math.differing([]) == NUMPY.differing([]) == []


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_an_element_that_a_launch_skips(math, size):
    before, first = (RANDOM.integers(0, 256, 64 * size).astype(np.uint8) for _ in range(2))
    first[:size] = before[:size]  # what the first launch left does not count
    now = first.copy()
    assert not math.is_skipped(there(before), there(now), there(first), size)
    now[-size:] = before[-size:]
    assert math.is_skipped(there(before), there(now), there(first), size)
    assert KernelMath(None).is_skipped(there(before), there(now), there(first), size)


def test_without_a_compiler_numpys_functions_are_used():
    values = RANDOM.normal(size=5)
    assert KernelMath(None).extremes(values) == NUMPY.extremes(values)


def test_kernels_that_disagree_with_numpy_are_not_used(math, tmp_path, monkeypatch):
    assert math.is_loaded
    monkeypatch.setattr(HostModule, "get_function", lambda *_: lambda *_: None)
    assert not KernelMath(lambda: Binary(tmp_path, {})).is_loaded
