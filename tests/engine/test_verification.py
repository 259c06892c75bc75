"""The messages about wrong kernels, on a device whose kernels are Python functions."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from python_kernels import KERNEL, PythonDevice

from pytest_gpuenergy.devices import GUARD_BYTES, Arena, Loaded
from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.engine import (
    SEEDS,
    Case,
    Drawing,
    cached_reference,
    case_of,
    compare,
    drawings_of,
    references,
    seeded_arenas,
    verify_on_device,
)
from pytest_gpuenergy.kernels import Job, Kernel, Launch
from pytest_gpuenergy.record import Correctness
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.tuners import MmaParameters, SimtParameters
from pytest_gpuenergy.workloads import (
    Array,
    Contract,
    Conv2d,
    ErrorBound,
    Gemm,
    Scalar,
    Tensor,
    numbers,
    rounded_to,
)

SMALL = Conv2d.of("small", 1, 6, 7, 3, 4, 3, 3, 1, 1)
SHAPE = SMALL.outputs[0].shape
SIZE = SMALL.outputs[0].size
RUNS = len(drawings_of((*SEEDS, 2), SMALL))
Run = Callable[[Mapping[str, Arena]], None]


class FakeDevice(PythonDevice):
    """Calls a function with the arenas in place of a kernel; notes its calls."""

    def __init__(
        self, run: Run, *, emulated: bool = False, compiler: str = "1.0", relaunches: bool = False
    ) -> None:
        super().__init__(lambda: None, emulated=emulated)
        self.run, self.compiler = run, compiler
        self.calls: list[tuple[int, float]] = []
        self.relaunches = relaunches
        self.relaunched: list[bool] = []
        self.scalars: Mapping[str, Scalar] = {}

    @contextmanager
    def load(self, job: Job, arenas: Mapping[str, Arena]) -> Iterator[Loaded]:
        self.scalars = job.scalars
        yield FakeLoaded(self, arenas, job.timeout_s)

    def describe(self) -> dict[str, str]:
        return {"compiler": self.compiler}


@dataclass(frozen=True)
class FakeLoaded:
    device: FakeDevice
    arenas: Mapping[str, Arena]
    timeout_s: float
    thresholds = ()
    unread: ClassVar[dict[str, Any]] = {}

    def run(self, order_seed: int = 0) -> None:
        self.device.calls.append((order_seed, self.timeout_s))
        self.device.run(self.arenas)

    def relaunch(self, *, once: bool) -> Iterator[int]:
        """Launch once without changing the buffers; yield the number of runs."""
        if self.device.relaunches:
            self.device.relaunched.append(once)
            self.device.run(self.arenas)
            yield len(self.device.calls) + len(self.device.relaunched)


def kernel(source: str = "__global__ void f() {}") -> Kernel:
    return Kernel(source, (Launch("f", (1, 1, 1), (1, 1, 1), ("data", "weight", "output")),))


def write(arenas: Mapping[str, Arena], value: Array, name: str = "output") -> None:
    arena = arenas[name]
    payload = np.ascontiguousarray(value.astype(arena.tensor.dtype)).reshape(-1).view(np.uint8)
    arena.image(writable=True)[GUARD_BYTES : GUARD_BYTES + len(payload)] = payload


def right(arenas: Mapping[str, Arena]) -> None:
    """A correct kernel."""
    inputs = {name: arenas[name].value() for name in ("data", "weight")}
    write(arenas, SMALL.reference(inputs)["output"])


def then(edit: Callable[[Array], None]) -> Run:
    """A correct kernel whose output is then edited."""

    def run(arenas: Mapping[str, Arena]) -> None:
        right(arenas)
        output = arenas["output"].value()
        edit(output)
        write(arenas, output)

    return run


def fault(run: Run) -> str:
    with pytest.raises(KernelFault) as raised:
        verify_on_device(FakeDevice(run), kernel(), SMALL)
    assert raised.value.outcome == "correctness"
    return str(raised.value)


def test_a_correct_kernel_passes_with_its_errors():
    found = verify_on_device(FakeDevice(right), kernel(), SMALL)
    # The output is the reference rounded to float32.
    assert 0 < found.max_relative_error <= 2**-24
    assert 0 < found.normwise_error <= 2**-24
    assert found.max_relative_bound == SMALL.error_bound.max_relative
    assert found.normwise_bound == SMALL.error_bound.normwise
    assert found.seeds[:-1] == SEEDS


def test_each_seed_runs_in_another_order_within_the_time_given():
    device = FakeDevice(right)
    verify_on_device(device, kernel(), SMALL, seeds=(5, 6, 7), timeout_s=3.0)
    assert device.calls == [(order, 3.0) for order in range(RUNS)]


def test_scalars_reach_the_kernel_by_name():
    tensors = (Tensor("x", (4,), "float32", "input"), Tensor("y", (4,), "float32", "output"))
    alpha = Scalar("alpha", "float32", 2.0)
    workload = Contract("w", tensors, lambda given: {"y": 2 * given["x"]}, values=(alpha,))
    device = FakeDevice(lambda arenas: write(arenas, 2 * arenas["x"].value(), "y"))  # type: ignore[operator]
    verify_on_device(device, kernel(), workload)
    assert device.scalars == {"alpha": alpha}


@pytest.mark.slow
@given(place=st.tuples(*(st.integers(0, n - 1) for n in SHAPE)))
def test_one_wrong_element_is_found_wherever_it_is(place):
    def edit(output: Array) -> None:
        output[place] += 1.0

    message = fault(then(edit))
    assert (
        f"1 of {SIZE} elements of output (first output{list(place)}) is wrong (seed 0)" in message
    )
    assert f"the worst is output{list(place)} = " in message


def test_the_message_has_the_values_and_the_size_of_the_error():
    reference = cached_reference(SMALL, 0)["output"]
    scale = float(np.abs(reference).max())

    def edit(output: Array) -> None:
        output[0, 1, 2, 3] = reference[0, 1, 2, 3] + scale / 4

    message = fault(then(edit))
    wanted = float(reference[0, 1, 2, 3])
    assert f"= {wanted + scale / 4:.6g} instead of {wanted:.6g}, off by 2.50e-01 of the" in message
    assert f"(bound {SMALL.error_bound.max_relative:.1e})" in message


def test_values_that_are_close_are_told_with_all_their_digits():
    found, right = np.array([2_000_001]), np.array([2_000_000.0])
    with pytest.raises(KernelFault, match=r"n\[0\] = 2000001 instead of 2000000\.$"):
        compare({"n": found}, {"n": right}, {"n": ErrorBound(0.0, 0.0)}, 0)


def test_the_worst_of_several_is_named():
    def edit(output: Array) -> None:
        output[0, 0, 1, 1] += 1.0
        output[0, 2, 3, 3] += 50.0

    message = fault(then(edit))
    assert "2 of 126 elements of output (first output[0, 0, 1, 1]) are wrong" in message
    assert "the worst is output[0, 2, 3, 3]" in message


def test_an_error_of_the_bound_passes_and_more_does_not():
    reference = cached_reference(SMALL, 0)["output"]
    step = SMALL.error_bound.max_relative * np.abs(reference).max()
    outputs = reference.copy()
    outputs[0, 0, 0, 0] += 0.99 * step
    assert compare({"output": outputs}, {"output": reference}, {"output": SMALL.error_bound}, 0)
    outputs[0, 0, 0, 0] += 0.02 * step
    with pytest.raises(KernelFault, match="1 of 126"):
        compare({"output": outputs}, {"output": reference}, {"output": SMALL.error_bound}, 0)


def test_small_errors_everywhere_are_too_much_together():
    reference = {"y": np.array([1.0] + [0.1] * 99)}
    outputs = {"y": reference["y"] + 0.009}
    with pytest.raises(
        KernelFault, match=r"y is off by 6\.\d\de-02 of its norm \(bound 1\.0e-02, se"
    ):
        compare(outputs, reference, dict.fromkeys(reference, ErrorBound(0.01, 0.01)), 0)


@pytest.mark.parametrize("size", [1, 8191, 8192, 8193, 20_000])
def test_errors_are_those_of_the_whole_array(size):
    draw = np.random.default_rng(size).standard_normal
    reference = draw(size)
    output = (reference + 1e-3 * draw(size)).astype(np.float32)
    error = np.abs(output - reference)
    found = compare({"y": output}, {"y": reference}, {"y": ErrorBound(1.0, 1.0)}, 0)
    assert found.max_relative == error.max() / np.abs(reference).max()
    assert found.normwise == pytest.approx(np.linalg.norm(error) / np.linalg.norm(reference))


@pytest.mark.parametrize("value", [math.nan, math.inf, 9.0])
@pytest.mark.parametrize("place", [0, 8191, 8192, 19_999])
def test_one_wrong_element_of_many_is_found(value, place):
    reference = np.ones((4, 5000))
    output = reference.copy()
    output.reshape(-1)[place] = value
    with pytest.raises(KernelFault, match=rf"1 of 20000 .* y\[{place // 5000}, {place % 5000}\]"):
        compare({"y": output}, {"y": reference}, {"y": ErrorBound(0.1, 1.0)}, 0)


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_an_infinite_element_is_wrong(value):
    def edit(output: Array) -> None:
        output[0, 2, 5, 6] = value

    assert f"the worst is output[0, 2, 5, 6] = {value:g} instead of" in fault(then(edit))


def test_what_was_not_written_is_told():
    def forget_one(arenas: Mapping[str, Arena]) -> None:
        poison = arenas["output"].value()
        right(arenas)
        output = arenas["output"].value()
        output[0, 1, 0, 6] = poison[0, 1, 0, 6]
        write(arenas, output)

    first = "elements of output (first output"
    assert fault(lambda _: None) == f"126 of 126 {first}[0, 0, 0, 0]) are never written or NaN."
    assert fault(forget_one) == f"1 of 126 {first}[0, 1, 0, 6]) is never written or NaN."


@pytest.mark.parametrize(
    ("dtype", "right"),
    [("int32", -1), ("int8", -1), ("int16", 127), ("uint8", 255), ("uint32", 0), ("bool", 1)],
)
def test_an_integer_that_was_not_written_is_told(dtype, right):
    output = Tensor("y", (6,), dtype, "output")
    workload = Contract("c", (output,), lambda _: {"y": np.full(6, right)})

    def forgets_the_last(arenas: Mapping[str, Arena]) -> None:
        values = arenas["y"].value()
        values[:5] = right
        write(arenas, values, "y")

    with pytest.raises(KernelFault, match=r"elements? of y"):
        verify_on_device(FakeDevice(forgets_the_last), kernel(), workload)


@pytest.mark.parametrize("combine", [np.fmax, np.fmin, np.maximum, np.minimum])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint32", "uint8"])
def test_an_output_that_is_combined_with_what_was_there_is_wrong(dtype, combine):
    """A kernel that combines its result with an uninitialized output, as with atomicMax."""
    output = Tensor("y", (6,), dtype, "output")
    workload = Contract("c", (output,), lambda _: {"y": np.arange(1.0, 7.0)})

    def combines(arenas: Mapping[str, Arena]) -> None:
        with np.errstate(invalid="ignore"):
            values = combine(arenas["y"].value(), np.arange(1, 7).astype(dtype))
        write(arenas, values, "y")

    with pytest.raises(KernelFault, match=r"elements? of y"):
        verify_on_device(FakeDevice(combines), kernel(), workload)


@pytest.mark.parametrize(
    "reference", [[1.0, np.nan, 3.0], [1.0, np.nan, np.inf], [np.nan, np.nan], [np.nan]], ids=str
)
def test_a_reference_that_is_nan_is_refused(reference):
    right = np.array(reference)
    with pytest.raises(InputError, match=r"is NaN or infinite, first at y\[[01]\] with seed 0"):
        compare({"y": right.copy()}, {"y": right}, {"y": ErrorBound(1.0, 1.0)}, 0)


def test_a_dropped_channel_is_told():
    def run(arenas: Mapping[str, Arena]) -> None:
        inputs = {name: arenas[name].value() for name in ("data", "weight")}
        inputs["data"][:, -1] = 0
        write(arenas, SMALL.reference(inputs)["output"])

    assert f"{SIZE} of {SIZE} elements of output (first output[0, 0, 0, 0]) are wrong" in fault(run)


def test_an_error_at_one_border_is_told():
    def run(arenas: Mapping[str, Arena]) -> None:
        inputs = {name: arenas[name].value() for name in ("data", "weight")}
        whole = SMALL.reference(inputs)["output"]
        inputs["data"][:, :, :, -1] = 0  # as if the last column were padding
        broken = SMALL.reference(inputs)["output"]
        whole[..., -1] = broken[..., -1]
        write(arenas, whole)

    assert "18 of 126 elements of output (first output[0, 0, 0, 6]) are wrong" in fault(run)


def test_a_kernel_that_is_right_for_one_seed_only_is_told():
    first = SMALL.reference(SMALL.make_inputs(SEEDS[0]))["output"]
    assert "wrong (seed 1)" in fault(lambda arenas: write(arenas, first))


@given(st.sampled_from(["data", "weight", "output"]), st.integers(0, GUARD_BYTES - 1))
def test_a_byte_past_the_end_is_told(name, distance):
    tensor = next(t for t in SMALL.tensors if t.name == name)

    def run(arenas: Mapping[str, Arena]) -> None:
        right(arenas)
        arenas[name].image(writable=True)[GUARD_BYTES + tensor.nbytes + distance] = 0

    element = tensor.size + distance // 4
    assert fault(run) == (
        f"The kernel writes past the end of {name}, which has {tensor.size} elements: "
        f"between elements {element} and {element}."
    )


@pytest.mark.parametrize("value", [-1, 0, 127, -128, np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("element", [-1, SIZE])
def test_whatever_is_written_outside_is_told(value, element):
    def run(arenas: Mapping[str, Arena]) -> None:
        right(arenas)
        whole = arenas["output"].image(writable=True).view(np.float32)
        whole[GUARD_BYTES // 4 + element] = value

    assert f"between elements {element} and {element}" in fault(run)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_minus_one_is_not_what_guards_hold(dtype):
    def run(arenas: Mapping[str, Arena]) -> None:
        right(arenas)
        end = GUARD_BYTES + 4 * SIZE
        arenas["output"].image(writable=True)[end:].view(dtype)[0] = -1

    assert f"past the end of output, which has {SIZE} elements" in fault(run)


@pytest.mark.parametrize(("source", "distance"), [("data", 0), ("weight", 0), ("output", 8)])
def test_what_is_copied_from_past_another_end_is_told(source, distance):
    def run(arenas: Mapping[str, Arena]) -> None:
        right(arenas)
        at = GUARD_BYTES + arenas[source].tensor.nbytes + distance
        past = np.array(arenas[source].image()[at : at + 32])
        end = GUARD_BYTES + 4 * SIZE
        arenas["output"].image(writable=True)[end : end + 32] = past

    assert f"past the end of output, which has {SIZE} elements" in fault(run)


@given(st.integers(1, GUARD_BYTES))
def test_a_byte_before_the_start_is_told(distance):
    def run(arenas: Mapping[str, Arena]) -> None:
        right(arenas)
        arenas["output"].image(writable=True)[GUARD_BYTES - distance] = 0

    element = -distance // 4
    assert fault(run) == (
        f"The kernel writes before the start of output, which has {SIZE} elements: "
        f"between elements {element} and {element}."
    )


def test_the_first_and_the_last_write_outside_are_told():
    def run(arenas: Mapping[str, Arena]) -> None:
        right(arenas)
        past = arenas["output"].image(writable=True)[GUARD_BYTES + 4 * SIZE :]
        past[4:8] = past[40:44] = 0

    assert f"between elements {SIZE + 1} and {SIZE + 10}" in fault(run)


@pytest.mark.parametrize(("name", "place"), [("data", (0, 3, 5, 6)), ("weight", (2, 0, 1, 1))])
def test_a_changed_input_is_told(name, place):
    def run(arenas: Mapping[str, Arena]) -> None:
        right(arenas)
        value = arenas[name].value()
        value[place] += 1
        write(arenas, value, name)

    changed = f"of {name} (first {name}{list(place)}) is changed, although {name} is an input"
    assert changed in fault(run)


@pytest.mark.parametrize("measured", [True, False])
def test_a_kernel_is_launched_again_where_that_is_possible(measured):
    device = FakeDevice(right, relaunches=True)
    verify_on_device(device, kernel(), SMALL, measured=measured)
    assert device.relaunched == [not measured, True, True, True]


@pytest.mark.parametrize("phase", range(4))
@pytest.mark.parametrize("measured", [True, False])
def test_a_kernel_that_skips_launches_is_found_whichever_come_last(phase, measured):
    def run(arenas: Mapping[str, Arena]) -> None:
        again = len(device.relaunched)
        if again <= 1 or again % 4 == phase:
            right(arenas)

    device = FakeDevice(run, relaunches=True)
    with pytest.raises(KernelFault, match="Correct at first, wrong after"):
        verify_on_device(device, kernel(), SMALL, measured=measured)


@pytest.mark.parametrize("good", range(RUNS, RUNS + 2))
@pytest.mark.parametrize("measured", [True, False])
def test_a_kernel_that_is_wrong_later_is_told_with_the_number_of_launches(good, measured):
    def run(arenas: Mapping[str, Arena]) -> None:
        if len(device.calls) + len(device.relaunched) <= good:
            right(arenas)

    device = FakeDevice(run, relaunches=True)
    words = f"Correct at first, wrong after {good + 1} launches: .* elements of output"
    with pytest.raises(KernelFault, match=words) as raised:
        verify_on_device(device, kernel(), SMALL, measured=measured)
    assert raised.value.outcome == "correctness"


def test_what_the_device_finds_is_passed_on():
    def run(_: Mapping[str, Arena]) -> None:
        raise KernelFault("timeout", "It hangs.")

    with pytest.raises(KernelFault, match="It hangs") as raised:
        verify_on_device(FakeDevice(run), kernel(), SMALL)
    assert raised.value.outcome == "timeout"


def test_an_interrupt_leaves_no_thread_that_waits_for_ever(own_cache, monkeypatch):
    assert own_cache.exists()
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith("verify"):
            started.append(thread)
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        verify_on_device(FakeDevice(right, emulated=True), kernel(), SMALL)
    for thread in started:
        thread.join(60.0)
    assert [thread.is_alive() for thread in started] == [False]


@pytest.mark.parametrize("space", ["roomy", "full", "missing"])
def test_arenas_are_gone_afterwards(monkeypatch, tmp_path, space):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if space == "full":
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    if space == "missing":
        monkeypatch.setattr("os.access", lambda *_: False)
    with seeded_arenas(SMALL, seed=0) as arenas:
        memories: list[Any] = [arena.memory for arena in arenas.values()]
        paths = [memory.path for memory in memories]
        assert all(path.exists() for path in paths)
        if space != "roomy":
            assert all(path.is_relative_to(tmp_path) for path in paths)
    assert not any(path.parent.exists() for path in paths)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(("emulated", "runs"), [(True, RUNS), (False, 2 * RUNS)])
def test_only_an_emulated_device_runs_what_it_knows_once(emulated, runs):
    device = FakeDevice(right, emulated=emulated)
    first, second = (verify_on_device(device, kernel(), SMALL) for _ in range(2))
    assert first == second
    assert len(device.calls) == runs


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path))
    forget_cases(monkeypatch)
    return tmp_path


def forget_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only the cache on disk have references, as in a process that has just started."""
    monkeypatch.setattr(references, "_ON_HOST", references.KeptCases(1 << 20))


@pytest.mark.parametrize(
    "changed",
    [
        {"kernel": kernel("__global__ void f() { /* changed */ }")},
        {"kernel": replace(kernel(), launches=(replace(kernel().launches[0], grid=(2, 1, 1)),))},
        {"seeds": (0, 2)},
        {"compiler": "2.0"},
    ],
    ids=["source", "launch", "seeds", "compiler"],
)
def test_what_was_known_of_another_kernel_does_not_count(own_cache, changed):
    verify_on_device(FakeDevice(right, emulated=True), kernel(), SMALL)
    device = FakeDevice(right, emulated=True, compiler=changed.get("compiler", "1.0"))
    verify_on_device(
        device, changed.get("kernel", kernel()), SMALL, seeds=changed.get("seeds", SEEDS)
    )
    assert own_cache.is_dir()
    assert len(device.calls) == len(SEEDS)


def test_a_wrong_kernel_is_never_known(own_cache):
    device = FakeDevice(lambda _: None, emulated=True)
    for _ in range(2):
        with pytest.raises(KernelFault):
            verify_on_device(device, kernel(), SMALL)
    assert not list((own_cache / "verified").iterdir())
    assert len(device.calls) == 2 * 2  # a wrong one runs once more, on other outputs


def test_a_workload_without_a_digest_is_verified_every_time(own_cache):
    tensors = (Tensor("x", (4,), "float32", "input"), Tensor("y", (4,), "float32", "output"))
    workload = Contract("w", tensors, lambda given: {"y": given["x"]})
    device = FakeDevice(lambda arenas: write(arenas, arenas["x"].value(), "y"), emulated=True)
    for _ in range(2):
        verify_on_device(device, kernel(), workload)
    assert len(device.calls) == 2 * len(drawings_of((*SEEDS, 2), workload))
    assert not list(own_cache.rglob("*.npz"))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"seeds": 5}', '{"seeds": [0, 1]}', "\0"])
def test_a_damaged_memory_is_made_again(own_cache, text):
    verify_on_device(FakeDevice(right, emulated=True), kernel(), SMALL)
    (memory,) = (own_cache / "verified").iterdir()
    memory.write_text(text)
    device = FakeDevice(right, emulated=True)
    assert isinstance(verify_on_device(device, kernel(), SMALL), Correctness)
    assert len(device.calls) == RUNS


def test_a_reference_is_computed_once(own_cache, monkeypatch):
    first = cached_reference(SMALL, 3)["output"]
    forget_cases(monkeypatch)
    monkeypatch.setattr(Conv2d, "reference", None)
    assert own_cache.is_dir()
    np.testing.assert_array_equal(cached_reference(SMALL, 3)["output"], first)


@pytest.mark.usefixtures("own_cache")
def test_kept_cases_are_made_once_and_the_oldest_are_forgotten(monkeypatch):
    made: list[Drawing] = []

    def noted(workload: Any, drawing: Drawing, arrays: Any) -> Case:
        made.append(drawing)
        return case_of(workload, drawing, arrays)

    monkeypatch.setattr(references, "case_of", noted)
    first, second, third = (Drawing(seed) for seed in range(3))
    nbytes = sum(value.nbytes for value in case_of(SMALL, first).reference.values())
    cases = references.KeptCases(2 * nbytes)
    for drawing in (first, second, first, third, first, second):
        assert cases.case_of(SMALL, drawing).inputs.keys() == {"data", "weight"}
    assert made == [first, second, third, second]


@pytest.mark.usefixtures("own_cache")
def test_a_case_near_numbers_of_a_kernel_is_made_once():
    drawing = Drawing(7, 1, literals=(0.37,))
    assert case_of(SMALL, drawing) is case_of(SMALL, drawing)
    assert case_of(SMALL, drawing) is not case_of(SMALL, Drawing(7, 1, literals=(0.38,)))


@pytest.mark.usefixtures("own_cache")
def test_of_threads_that_need_a_reference_one_computes_it(monkeypatch):
    computing: set[int] = set()
    compute = Conv2d.reference

    def noted(workload: Conv2d, inputs: Any) -> Any:
        computing.add(threading.get_ident())
        return compute(workload, inputs)

    monkeypatch.setattr(Conv2d, "reference", noted)
    together = threading.Barrier(4)

    def needed() -> Any:
        together.wait(60.0)
        return cached_reference(SMALL, 4)["output"]

    with ThreadPoolExecutor(together.parties) as pool:
        found = [each.result() for each in [pool.submit(needed) for _ in range(together.parties)]]
    assert len(computing) == 1
    for values in found:
        np.testing.assert_array_equal(values, found[0])


def test_workloads_of_the_same_sizes_share_a_reference(own_cache):
    cached_reference(SMALL, 0)
    cached_reference(replace(SMALL, name="other"), 0)
    assert len(list(own_cache.rglob("*.npz"))) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_reference_is_made_again(own_cache, monkeypatch, data):
    workload = Conv2d.of("tiny", 1, 2, 2, 1, 1, 1, 1, 1, 0)
    forget_cases(monkeypatch)
    wanted = cached_reference(workload, 0)["output"]
    (path,) = own_cache.rglob("*.npz")
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans(), label="truncate"):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
            content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    forget_cases(monkeypatch)
    np.testing.assert_array_equal(cached_reference(workload, 0)["output"], wanted)


def test_a_reference_of_another_shape_is_made_again(own_cache, monkeypatch):
    wanted = cached_reference(SMALL, 0)["output"]
    (path,) = own_cache.rglob("*.npz")
    np.savez(path, output=wanted[:, :1])
    forget_cases(monkeypatch)
    np.testing.assert_array_equal(cached_reference(SMALL, 0)["output"], wanted)


FLOAT32 = Gemm("g", 8, 8, 8)
SPLIT = Gemm("g", 8, 8, 8, mode="3xtf32")
ON_TENSOR_CORES = MmaParameters(tile_m=16, tile_n=16, tile_k=16, warp_m=16, warp_n=16, stages=2)
ON_CUDA_CORES = SimtParameters(tile_m=16, tile_n=32, tile_k=4, thread_m=4, thread_n=4, stages=2)


@pytest.fixture(scope="module")
def device() -> Iterator[EmulatedDevice]:
    with EmulatedDevice() as device:
        yield device


@pytest.mark.slow
def test_float32_is_not_computed_on_tensor_cores(device):
    kernel = ON_TENSOR_CORES.kernel(SPLIT)
    with pytest.raises(KernelFault) as fault:
        verify_on_device(device, kernel, FLOAT32)
    assert fault.value.outcome == "correctness"
    assert "instructions for tensor cores (mma), but g is declared as float32" in str(fault.value)
    assert "declare mode=3xtf32" in str(fault.value)


@pytest.mark.parametrize(
    ("mode", "instruction", "right"),
    [
        ("3xtf32", "HGMMA.F32.TF32", True),
        ("3xtf32", "HMMA.F32.BF16", True),
        ("3xtf32", "HMMA.F32.F16", False),
        ("tf32", "HMMA.F32.TF32", True),
        ("tf32", "HGMMA.F32.F16", False),
        ("tf32", "DMMA", True),
        ("float16", "HGMMA.F32.F16", True),
        ("float16", "HGMMA.F16.F16", False),
        ("float16", "HMMA.F32.BF16", False),
        ("bfloat16", "HMMA.F32.BF16", True),
        ("bfloat16", "HMMA.F32.F16", False),
    ],
)
def test_tensor_cores_have_the_types_of_the_mode(monkeypatch, mode, instruction, right):
    gemm = Gemm("g", 8, 8, 8, mode=mode)

    def product(**tensors: Any) -> None:
        output = tensors.pop("C")
        inputs = {name: numbers(stored, gemm.dtype) for name, stored in tensors.items()}
        output[...] = rounded_to(gemm.reference(inputs)["C"], gemm.dtype)

    device = PythonDevice(product)
    monkeypatch.setattr(device, "tensor_core_instructions", lambda _: frozenset({instruction}))
    if right:
        verify_on_device(device, KERNEL, gemm, seeds=SEEDS[:1])
        return
    words = rf"\({instruction}\) with other types than g declares: sums in F32"
    with pytest.raises(KernelFault, match=words):
        verify_on_device(device, KERNEL, gemm)


@pytest.mark.slow
@pytest.mark.slow
def test_a_mode_that_declares_them_may(device):
    assert verify_on_device(device, ON_TENSOR_CORES.kernel(SPLIT), SPLIT).max_relative_error < 1e-5


@pytest.mark.slow
@pytest.mark.slow
def test_float32_may_be_computed_on_cuda_cores(device):
    assert (
        verify_on_device(device, ON_CUDA_CORES.kernel(FLOAT32), FLOAT32).max_relative_error < 1e-5
    )


@pytest.mark.slow
def test_text_that_is_not_compiled_does_not_count(device):
    kernel = ON_CUDA_CORES.kernel(FLOAT32)
    unused = "#if 0\n" + ON_TENSOR_CORES.kernel(SPLIT).source + "\n#endif\n"
    other = type(kernel)(unused + kernel.source, kernel.launches)
    assert device.tensor_core_instructions(Job.of(other, FLOAT32)) == frozenset()


M, N, K = 32, 16, 64
PRODUCT = Gemm("product", M, N, K)
SOURCE = """
extern "C" __global__ void product(const float* A, const float* B, float* C) {
  float sum = 0;
  for (int k = 0; k < 64; ++k) sum += A[blockIdx.x * 64 + k] * B[k * 16 + threadIdx.x];
  C[blockIdx.x * 16 + threadIdx.x] = sum;
}
"""


def product_kernel(source: str) -> Kernel:
    return Kernel(source, (Launch("product", (M, 1, 1), (N, 1, 1), ("A", "B", "C")),))


@pytest.mark.slow
@pytest.mark.slow
def test_an_exact_product_is_right():
    with EmulatedDevice() as device:
        assert verify_on_device(device, product_kernel(SOURCE), PRODUCT).seeds[:2] == (0, 1)


@pytest.mark.slow
def test_errors_of_the_size_of_rounding_are_found_where_nothing_is_rounded():
    careless = product_kernel(SOURCE.replace("= sum;", "= sum * 1.0000002f;"))
    with EmulatedDevice() as device, pytest.raises(KernelFault, match=r"bound 0\.0e\+00"):
        verify_on_device(device, careless, PRODUCT)
