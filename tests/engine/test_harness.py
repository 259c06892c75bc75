"""An item from start to finish on the emulated GPU: a hand-written kernel and its mutants."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from jobs import job_of
from power_cards import killed
from python_kernels import KERNEL, PythonDevice

from pytest_gpuenergy.control import Setpoint
from pytest_gpuenergy.devices import MAX_PLACEMENTS, Repeater, Timeline
from pytest_gpuenergy.emulator import EmulatedDevice, VirtualRepeater
from pytest_gpuenergy.energy import MeterSettings
from pytest_gpuenergy.engine import (
    Harness,
    Subject,
    Verifier,
    board_kernels,
    drawings_of,
    verify_on_device,
)
from pytest_gpuenergy.kernels import Kernel, Launch, Origin, RecordedFigures
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.record import FIGURES, Measurement, WorkloadInfo, check
from pytest_gpuenergy.support import DeviceError, KernelFault, decode, encode
from pytest_gpuenergy.workloads import Contract, Conv2d, Tensor

SMALL = Conv2d.of("small", 1, 8, 8, 8, 4, 3, 3, 1, 1)
SUBJECT = Subject("test.py::test[small-k01-current]", "k01")

# One block per output channel, one thread per output pixel; the padded input is staged.
SOURCE = """
extern "C" __global__ void conv(const float* data, const float* weight, float* output) {
  __shared__ float tile[100];
  int x = threadIdx.x, y = threadIdx.y, thread = y * 8 + x, co = blockIdx.x;
  float sum = 0;
  for (int ci = 0; ci < 4; ++ci) {
    for (int i = thread; i < 100; i += 64) {
      int row = i / 10 - 1, column = i % 10 - 1;
      bool inside = row >= 0 && row < 8 && column >= 0 && column < 8;
      tile[i] = inside ? data[(ci * 8 + row) * 8 + column] : 0.0f;
    }
    __syncthreads();
    for (int ky = 0; ky < 3; ++ky)
      for (int kx = 0; kx < 3; ++kx)
        sum += tile[(y + ky) * 10 + x + kx] * weight[((co * 4 + ci) * 3 + ky) * 3 + kx];
    __syncthreads();
  }
  output[(co * 8 + y) * 8 + x] = sum;
}
"""


def conv(old: str = "", new: str = "", **changes: Any) -> Kernel:
    """Return the kernel above with one piece of its text replaced."""
    if old:
        assert SOURCE.count(old) == 1, old
    launch = Launch("conv", (8, 1, 1), (8, 8, 1), ("data", "weight", "output"))
    source = SOURCE.replace(old, new) if old else SOURCE
    return Kernel(source, (replace(launch, **changes.pop("launch", {})),), **changes)


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    with open_device("emulated") as found:
        assert isinstance(found, EmulatedDevice)
        yield found


def measure(device: EmulatedDevice, kernel: Kernel, subject: Subject = SUBJECT) -> Measurement:
    measurement = Harness(device).measure_kernel(kernel, SMALL, subject)
    # Whatever comes out can be kept.
    again = decode(encode(measurement), Measurement)
    check(again)
    assert again == measurement
    return measurement


def refused(device: EmulatedDevice, kernel: Kernel) -> Measurement:
    """Return the record of a kernel that fails, which has an error and no figures."""
    measurement = measure(device, kernel)
    assert measurement.outcome != "correct"
    assert measurement.error
    assert not measurement.measured
    assert [getattr(measurement, name) for name in FIGURES] == [None] * len(FIGURES)
    assert measurement.trials == ()
    assert measurement.energy_mj_ci95 is None
    return measurement


@pytest.mark.slow
def test_a_correct_kernel_has_all_figures(device):
    found = measure(device, conv())
    assert (found.outcome, found.error, found.validity) == ("correct", None, ())
    assert None not in [getattr(found, name) for name in FIGURES]
    assert found.correctness is not None
    assert found.correctness.max_relative_error <= found.correctness.max_relative_bound


@pytest.mark.slow
def test_an_item_is_of_several_places_in_memory(device, monkeypatch):
    stop, placed = VirtualRepeater.stop, []

    def noted(self: VirtualRepeater) -> Timeline:
        timeline = stop(self)
        placed.append(timeline.placements)
        return timeline

    monkeypatch.setattr(VirtualRepeater, "stop", noted)
    measure(device, conv())
    assert placed == [MAX_PLACEMENTS]


@pytest.mark.slow
def test_figures_agree_with_each_other(device):
    m = measure(device, conv())
    assert m.time_ms is not None
    assert m.energy_mj is not None
    assert m.power_w is not None
    assert m.edp_mj_ms == pytest.approx(m.energy_mj * m.time_ms, rel=1e-3)
    assert m.energy_mj == pytest.approx(m.power_w * m.time_ms, rel=5e-3)
    assert m.gflops == pytest.approx(SMALL.flops / m.time_ms / 1e6)
    assert m.gflops_per_w == pytest.approx(m.gflops / m.power_w)
    for name in ("time_ms", "energy_mj", "edp_mj_ms"):
        interval = getattr(m, f"{name}_ci95")
        assert interval.low <= getattr(m, name) <= interval.high


PAST = "= sum;\n  if (co == 7 && thread == 63) output[514] = sum;\n"
WRONG = {
    # The last column of the input is missing in the last two columns of 8 x 8 outputs.
    "border": (
        *("column < 8", "column < 7"),
        "128 of 512 elements of output (first output[0, 0, 0, 6]) are wrong",
    ),
    "unwritten": (
        *("  output[", "  if (co != 3 || thread != 13) output["),
        "1 of 512 elements of output (first output[0, 3, 1, 5]) is never written",
    ),
    "barrier": ("    }\n    __syncthreads();\n", "    }\n", "race on shared memory: access tile["),
    "past the end": ("= sum;\n", PAST, "output[514], past its end of 512 elements"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_found(device, name):
    right, wrong, said = WRONG[name]
    found = refused(device, conv(right, wrong))
    assert found.outcome == "correctness"
    assert all(words in found.error for words in said.split(": "))


def test_a_kernel_that_does_not_compile_has_its_line(device):
    found = refused(device, conv("float sum = 0", "float sum = nothing"))
    assert found.outcome == "compile"
    assert "nothing" in found.error


def test_a_block_too_large_breaks_the_constraints(device):
    found = refused(device, conv(launch={"block": (64, 32, 1)}))
    assert found.outcome == "constraints"


@pytest.mark.slow
def test_a_kernel_that_hangs_is_stopped(device):
    loop = "while (*(volatile const float*)data != 123.0f) {}\n  float sum = 0"
    harness = Harness(device, timeout_s=0.5)
    found = harness.measure_kernel(conv("float sum = 0", loop), SMALL, SUBJECT)
    assert (found.outcome, found.measured) == ("timeout", False)
    assert "0.5 s" in (found.error or "")


def test_a_launch_that_fails_while_measuring_leaves_no_figure(device):
    measure(device, conv())
    device.inject("launch", {"error": "gpu_is_lost", "after_calls": 1})
    assert refused(device, conv()).outcome == "runtime"


def test_a_broken_counter_leaves_a_flag_and_no_figure(device):
    device.inject("counter_stuck", {"after_s": 0.5})
    found = measure(device, conv())
    assert (found.outcome, found.validity) == ("correct", ("counter_stale",))
    assert "has not moved" in (found.error or "")
    assert not found.measured


def test_the_record_names_workload_kernel_and_cap(device):
    origin = Origin("record", 7, {"tuner": "meta-schedule"})
    kernel = conv(origin=origin)
    subject = Subject("id", "k07", Setpoint(450.0, index=3), Setpoint(430.0))
    found = measure(device, kernel, subject)
    assert found.workload == WorkloadInfo(
        "small", dict(SMALL.parameters), SMALL.flops, SMALL.bytes_moved
    )
    assert (found.kernel.label, found.kernel.digest) == ("k07", kernel.digest)
    assert (found.kernel.origin, found.kernel.rank) == ("record", 7)
    assert found.kernel.details == {"tuner": "meta-schedule"}
    assert (found.node_id, found.cap, found.cap_index) == ("id", "450W", 3)
    assert (found.power_limit_w, found.enforced_power_limit_w) == (450.0, 430.0)
    assert Setpoint.asked_for(found) == subject.setpoint
    assert Setpoint.enforced_for(found) == subject.enforced


@pytest.mark.parametrize("clock_mhz", [None, 1500])
def test_a_measurement_has_the_identity_of_its_subject(device, clock_mhz):
    subject = Subject("id", "k07", Setpoint(450.0, sm_clock_mhz=clock_mhz))
    found, _ = Harness(device).verify_kernel(conv(), SMALL, subject)
    assert found.identity == subject.identity("small", "hot")
    other = replace(subject, setpoint=Setpoint(450.0, sm_clock_mhz=1200))
    assert found.identity != other.identity("small", "hot")


def recorded(device: EmulatedDevice, power_w: float) -> Kernel:
    """The kernel, with figures of its own that the emulated GPU follows."""
    return conv(recorded=(RecordedFigures(device.name, 700.0, 0.02, power_w, 0.02 * power_w),))


@pytest.mark.parametrize(("power_w", "binding"), [(600.0, True), (210.0, False)])
def test_a_cap_binds_only_a_kernel_that_needs_more(device, power_w, binding):
    device.nvml.nvmlDeviceSetPowerManagementLimit(device.handle, 300_000)
    subject = replace(SUBJECT, setpoint=Setpoint(300.0), enforced=Setpoint(300.0))
    found = measure(device, recorded(device, power_w), subject)
    assert found.cap_binding is binding
    assert found.validity == ()


def test_power_near_the_limit_counts_as_bound(device):
    subject = replace(SUBJECT, enforced=Setpoint(426.0))
    assert measure(device, recorded(device, 420.0), subject).cap_binding is True


def test_a_stranger_on_the_card_is_flagged(device):
    device.inject("foreign_process", {"pid": 4242})
    assert measure(device, conv()).validity == ("foreign_process",)


def test_a_stranger_that_appears_while_measuring_is_flagged(device):
    harness = Harness(device)
    device.inject("foreign_process", {"pid": 4242, "after_s": 1.5})
    assert harness.measure_kernel(conv(), SMALL, SUBJECT).validity == ("foreign_process",)


def test_a_stranger_that_appears_between_two_items_is_flagged(device):
    harness = Harness(device)
    assert harness.measure_kernel(conv(), SMALL, SUBJECT).validity == ()
    device.inject("foreign_process", {"pid": 4242})
    assert harness.measure_kernel(conv(), SMALL, SUBJECT).validity == ("foreign_process",)


def test_settings_of_the_meter_are_used(device):
    settings = MeterSettings(min_trials=6, min_measure_s=0.0, relative_half_width=1.0)
    harness = Harness(device, settings)
    assert len(harness.measure_kernel(conv(), SMALL, SUBJECT).trials) == 6


def test_a_kernel_is_not_launched_by_this_process(device):
    assert Harness(device).measure_kernel(conv(), SMALL, SUBJECT).in_process is False


def test_a_kernel_that_is_wrong_after_its_measurement_has_no_figures(device, monkeypatch):
    """As on a card, where the launches are real: here they leave the poison where it is."""

    def relaunch(_: VirtualRepeater, *, once: bool) -> Iterator[int]:
        assert not once
        yield 2001

    monkeypatch.setattr(VirtualRepeater, "relaunch", relaunch)
    found = Harness(device).measure_kernel(conv(), SMALL, SUBJECT)
    assert (found.outcome, found.measured) == ("correctness", False)
    assert found.error is not None
    assert found.error.startswith("Correct at first, wrong after 2001 launches: 512 of 512 ")
    assert [getattr(found, name) for name in FIGURES] == [None] * len(FIGURES)


def repeater(device: EmulatedDevice, timeout_s: float = 60.0) -> Any:
    kernel = recorded(device, 400.0)
    return device.repeat(job_of(kernel, flops=10**6, bytes_moved=10**3, timeout_s=timeout_s), {})


def test_a_callable_is_measured(device):
    workload = WorkloadInfo("mine", {}, 10**6, 10**3)
    found = Harness(device).measure_callable(lambda: repeater(device), workload, SUBJECT, "call")
    assert (found.workload, found.kernel.origin) == (workload, "call")
    assert found.in_process
    assert found.time_ms == pytest.approx(0.02, rel=0.01)
    assert found.power_w == pytest.approx(400.0, rel=0.01)
    assert found.correctness is None


def test_a_callable_that_is_wrong_after_its_measurement_has_no_figures(device):
    measured_s = []

    def check(_: Repeater) -> None:
        measured_s.append(device.clock.now_s())
        raise KernelFault("correctness", "wrong by now")

    began_s, workload = device.clock.now_s(), WorkloadInfo("mine", {}, 10**6, 10**3)
    found = Harness(device).measure_callable(
        lambda: repeater(device), workload, SUBJECT, "call", check
    )
    assert (found.outcome, found.error, found.measured) == ("correctness", "wrong by now", False)
    assert measured_s[0] > began_s + 1


def test_a_callable_that_fails_leaves_no_figure(device):
    workload = WorkloadInfo("mine", {}, 10**6, 10**3)
    found = Harness(device).measure_callable(
        lambda: repeater(device, timeout_s=1e-6), workload, SUBJECT, "call"
    )
    assert (found.outcome, found.measured) == ("timeout", False)


def test_a_callables_repeater_may_be_any(device):
    with repeater(device) as ready:
        inner: Repeater = ready
        found = Harness(device).measure_callable(
            lambda: nullcontext(inner), WorkloadInfo("mine", {}, 1, 1), SUBJECT, "call"
        )
    assert found.measured


def test_a_process_killed_while_measuring_leaves_the_card_usable(device):
    killed(
        "from pytest_gpuenergy.emulator import Demand, Load, Owner\n"
        "with device.state.change() as card:\n"
        "    card.start(Load(Owner.me(), Demand(2e-5, 400.0)))\n"
    )
    assert measure(device, conv()).validity == ()
    assert os.getpid() not in {
        process.pid for process in device.nvml.nvmlDeviceGetComputeRunningProcesses(device.handle)
    }


@pytest.mark.slow
def test_the_kernels_of_boards_are_right_and_their_references_can_tell():
    with open_device("emulated") as device:
        rotate, scale = board_kernels(device)
        for one in (rotate, scale):
            verify_on_device(device, one.kernel, one.workload)
        shorter = replace(rotate.kernel, source=rotate.kernel.source.replace("k < 512", "k < 511"))
        with pytest.raises(KernelFault, match="wrong"):
            verify_on_device(device, shorter, rotate.workload)


def test_boards_of_one_model_get_the_same_kernels():
    with open_device("emulated:h200x2") as one, open_device("emulated:h200x2", index=1) as other:
        assert [k.kernel.digest for k in board_kernels(one)] == [
            k.kernel.digest for k in board_kernels(other)
        ]


TENSORS = (Tensor("x", (64,), "float32", "input"), Tensor("y", (64,), "float32", "output"))


def double(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"y": 2 * inputs["x"]}


def right(x: Any, y: Any) -> None:
    y[...] = 2 * x


DOUBLE = Contract("double", TENSORS, double)
EACH = len(drawings_of((0, 1, 2), DOUBLE))


def verifier(
    body: Callable[..., None] = right, *, emulated: bool = True
) -> tuple[Verifier, PythonDevice]:
    device = PythonDevice(body, emulated=emulated)
    return Verifier(device, 60.0, None), device


def test_a_workload_that_is_a_function_is_verified_once_on_an_emulated_gpu():
    found, device = verifier()
    results = [found.verify(KERNEL, DOUBLE) for _ in range(5)]
    assert device.runs == EACH
    assert len(set(results)) == 1


def test_a_real_gpu_verifies_every_time():
    found, device = verifier(emulated=False)
    for _ in range(2):
        found.verify(KERNEL, DOUBLE)
    assert device.runs == 2 * EACH


@pytest.mark.parametrize(
    ("kernel", "workload"),
    [
        (replace(KERNEL, source="__global__ void f() { /* other */ }"), DOUBLE),
        (KERNEL, replace(DOUBLE, compute=lambda inputs: {"y": 2 * inputs["x"]})),
        (KERNEL, replace(DOUBLE, init={"x": (0.0, 1.0)})),
    ],
    ids=["text", "function", "range"],
)
def test_what_was_known_of_another_pair_does_not_count(kernel, workload):
    found, device = verifier()
    found.verify(KERNEL, DOUBLE)
    found.verify(kernel, workload)
    assert device.runs == 2 * EACH


def test_a_wrong_kernel_is_never_known():
    found, device = verifier(lambda x, y: None)  # noqa: ARG005 -- it does nothing
    for _ in range(2):
        with pytest.raises(KernelFault):
            found.verify(KERNEL, DOUBLE)
    assert device.runs == 2 * 2  # a wrong one runs once more, on other outputs


def test_a_workload_without_a_hash_is_verified_every_time():
    class Unhashable(Contract):
        __hash__ = None  # type: ignore[assignment]

    found, device = verifier()
    for _ in range(2):
        found.verify(KERNEL, Unhashable("double", TENSORS, double))
    assert device.runs == 2 * EACH


class NotedHeater:
    """A heater that runs nothing, and notes when it begins and ends."""

    def __init__(self, events: list[str]) -> None:
        self._events = events
        self._ended = threading.Event()

    def __enter__(self) -> Repeater:
        self._events.append("heat")
        self._ended.wait(30)  # it takes as long to load as there is to do
        raise DeviceError("It has been ended.")

    def __exit__(self, *_: object) -> None: ...

    def end(self) -> None:
        self._events.append("heated")
        self._ended.set()


def test_a_card_is_heated_while_its_kernel_is_verified_but_not_measured(device, monkeypatch):
    events: list[str] = []
    monkeypatch.setattr(device, "heater", lambda: NotedHeater(events))
    for name in ("compile", "repeat"):
        plain = getattr(device, name)

        def noted(*arguments: Any, plain: Any = plain, name: str = name) -> Any:
            events.append(name)
            return plain(*arguments)

        monkeypatch.setattr(device, name, noted)
    measurement = Harness(device).measure_kernel(conv(), SMALL, SUBJECT)
    assert measurement.measured
    order = [events.index(name) for name in ("compile", "heated", "repeat")]
    assert order == sorted(order)
    assert "heat" in events[: events.index("repeat")]


class Alongside:
    """A kernel that runs beside its verification, although an emulated card has no other process.

    Attributes:
        order: what has been done, in order.
    """

    def __init__(
        self,
        device: EmulatedDevice,
        monkeypatch: pytest.MonkeyPatch,
        faults: Mapping[str, KernelFault] | None = None,
    ) -> None:
        self.order: list[str] = []
        self._device = device
        self._faults = faults or {}
        self._started, self._ended = threading.Event(), threading.Event()
        monkeypatch.setattr(device, "alongside", self._alongside)
        monkeypatch.setattr(device, "renew", lambda: self.order.append("renew"))
        verify = Verifier.verify

        def verified(verifier: Verifier, *arguments: Any) -> Any:
            assert self._started.wait(20)
            self.order.append("verify")
            return verify(verifier, *arguments)

        monkeypatch.setattr(Verifier, "verify", verified)

    def _alongside(self, job: Any, arenas: Callable[[], Any]) -> Alongside:
        self._started.clear()
        self._repeat = self._device.repeat(job, arenas())
        return self

    def __enter__(self) -> Any:
        repeater = self._repeat.__enter__()
        start = repeater.start

        def started() -> None:
            start()
            self.order.append("start")
            self._started.set()
            if (fault := self._faults.get("start")) is not None:
                raise fault
            if (fault := self._faults.get("hang")) is not None:
                assert self._ended.wait(20)
                raise fault

        repeater.start = started
        if (fault := self._faults.get("relaunch")) is not None:
            repeater.relaunch = Mock(side_effect=fault)
        return repeater

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self.order.append("end")
        self._ended.set()
        self._repeat.__exit__(None, None, None)


def test_a_kernel_heats_the_card_while_it_is_verified(device, monkeypatch):
    beside = Alongside(device, monkeypatch)
    found = measure(device, conv())
    assert (found.outcome, found.validity) == ("correct", ())
    assert found.measured
    assert found.correctness is not None
    assert beside.order == ["start", "verify", "renew", "end"]


ADDRESS = KernelFault("runtime", "The kernel failed: an illegal memory access was encountered.")
TIMEOUT = KernelFault("timeout", "The kernel did not finish within 60 s.")


@pytest.mark.parametrize("fault", [ADDRESS, TIMEOUT])
def test_a_kernel_that_fails_only_beside_its_verification_has_no_figures(
    device, fault, monkeypatch
):
    with monkeypatch.context() as beside:
        Alongside(device, beside, {"start": fault})
        found = refused(device, conv())
    assert (found.outcome, found.error) == (fault.outcome, str(fault))
    assert found.correctness is not None
    assert measure(device, conv()).measured


def test_a_wrong_kernel_that_hangs_beside_its_verification_ends_with_that(device, monkeypatch):
    right, wrong, _ = WRONG["unwritten"]
    with monkeypatch.context() as beside:
        order = Alongside(device, beside, {"hang": TIMEOUT}).order
        found = refused(device, conv(right, wrong))
    assert found.outcome == "correctness"
    assert (order[:2], set(order[2:])) == (["start", "verify"], {"end"})
    assert measure(device, conv()).measured


def test_a_kernel_that_fails_once_nothing_runs_beside_it_has_no_figures(device, monkeypatch):
    beside = Alongside(device, monkeypatch, {"relaunch": ADDRESS})
    found = refused(device, conv())
    assert (found.outcome, found.error) == ("runtime", str(ADDRESS))
    assert beside.order == ["start", "verify", "renew", "end"]


def test_a_wrong_kernel_that_heats_the_card_has_no_figures(device, monkeypatch):
    beside = Alongside(device, monkeypatch)
    right, wrong, _ = WRONG["unwritten"]
    assert refused(device, conv(right, wrong)).outcome == "correctness"
    assert beside.order == ["start", "verify", "end"]
