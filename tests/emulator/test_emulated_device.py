"""The emulated GPU as a device, with kernels run by a stand-in for the host."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import job_of
from outcomes import raises

from pytest_gpuenergy.control import Lease, Setpoint
from pytest_gpuenergy.devices import Arena, Work
from pytest_gpuenergy.emulator import (
    DEFAULT_PROFILE,
    EmulatedDevice,
    HostKernel,
    LaunchProfile,
    Traffic,
    find_profile,
)
from pytest_gpuenergy.kernels import Kernel, Launch, RecordedFigures
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.support import DeviceError, InputError, KernelFault
from pytest_gpuenergy.workloads import Tensor

# What `HostKernel` documents: launches, and the processor time of one and of all.
LIMIT, PERIOD, AFFORDABLE_S, WHOLE_S = 10_000, 32, 0.025, 1.0

LAUNCH = Launch("f", (196, 1, 1), (128, 1, 1), ("x",))
BARE = Kernel("__global__ void f(float* x) {}", (LAUNCH,))
RECORDED = replace(BARE, recorded=(RecordedFigures(DEFAULT_PROFILE.name, 700, 0.0194, 419, 8.13),))
WORK = Work(flops=231_211_008, bytes_moved=1_753_088)
COUNTS = Traffic(
    global_read_bytes=20_000,
    global_write_bytes=4_096,
    shared_read_bytes=400_000,
    shared_write_bytes=20_000,
    barriers=16,
    load_intervals=8,
    static_shared_bytes=8_192,
    global_loads=160,
    global_stores=32,
    global_sectors=768,
    l2_sectors=512,
    shared_accesses=3_200,
    shared_wavefronts=3_300,
    private_words=16,
)


class FakeRunner:
    """A runner that records its calls and fails on demand."""

    def __init__(self, fault: KernelFault | None = None) -> None:
        self.calls: list[str] = []
        self.fault = fault
        self.launch_s = 0.001

    def prepare(self, kernels: Any) -> None:
        self.calls.append(f"prepare {len(kernels)}")

    def compile(self, kernel: Kernel) -> Path:
        self.calls.append("compile")
        return Path(kernel.short_digest)

    @contextmanager
    def open(self, *_: Any, timeout_s: float, inspecting: bool = False) -> Iterator[FakeProgram]:
        yield FakeProgram(FakeRunner() if inspecting else self, timeout_s)

    def check_races(self, kernel: Kernel, *_: Any, timeout_s: float) -> Any:
        self.calls.append(f"check {timeout_s:g}")
        if self.fault:
            raise self.fault
        return (LaunchProfile("f", 196, 8, COUNTS),) * len(kernel.launches)

    def close(self) -> None:
        self.calls.append("close")


@dataclass(frozen=True)
class FakeProgram:
    runner: FakeRunner
    timeout_s: float

    def run(
        self,
        *,
        order_seed: int = 0,
        fresh: bool = True,
        most: int = 1,
        budget_s: float = 0.0,
        stride: int = 1,
    ) -> tuple[int, float]:
        more = "" if fresh else f" again {most} {budget_s:g}"
        more += f" every {stride}" if stride > 1 else ""
        self.runner.calls.append(f"run {order_seed} {self.timeout_s:g}{more}")
        return most, self.runner.launch_s


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path))
    return FakeRunner()


@pytest.fixture
def gpu(runner: FakeRunner) -> Iterator[EmulatedDevice]:
    with EmulatedDevice(runner=runner) as device:
        yield device


def repeat(gpu: EmulatedDevice, kernel: Kernel = RECORDED, **options: Any) -> Any:
    amount = {"flops": WORK.flops, "bytes_moved": WORK.bytes_moved, "timeout_s": 10.0}
    return gpu.repeat(job_of(kernel, **{**amount, **options}), {})


def timeline(gpu: EmulatedDevice, seconds: float, kernel: Kernel = RECORDED) -> Any:
    with repeat(gpu, kernel) as repeater:
        repeater.start()
        gpu.clock.sleep_s(seconds)
        return repeater.stop()


def test_it_says_what_it_is(gpu, monkeypatch):
    assert gpu.emulated
    assert gpu.name == gpu.nvml.nvmlDeviceGetName(gpu.handle) == "NVIDIA H200"
    assert gpu.uuid == gpu.nvml.nvmlDeviceGetUUID(gpu.handle)
    assert gpu.architecture == "sm_90"
    assert gpu.describe()["driver"] == "emulated"
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert gpu.describe()["host_compiler"].startswith("none (")


def test_a_timeline_is_busy_and_as_fast_as_recorded(gpu):
    begin_s = gpu.clock.now_s()
    line = timeline(gpu, 2.0)
    assert (line.launches[0], line.busy_s[0]) == (0, 0)
    assert begin_s <= line.time_s[0] <= begin_s + 1e-3
    steps_s = np.diff(line.time_s)  # it advances in batches of some milliseconds
    assert 5e-3 < steps_s.min() <= steps_s.max() < 10e-3
    assert len(set(np.diff(line.launches).tolist())) == 1
    took_s, busy_s = np.ptp(line.time_s), line.busy_s[-1]
    assert took_s == pytest.approx(2.0, abs=0.02)
    assert 0.998 < busy_s / took_s < 1
    assert busy_s / line.launches[-1] == pytest.approx(19.4e-6, rel=2e-3)


def test_launches_from_the_host_take_the_kernels_time(gpu):
    with repeat(gpu) as repeater:
        launches = repeater.launch(1000)
        assert launches.count == 1000
        assert launches.end_s - launches.begin_s == pytest.approx(1000 * 19.4e-6, rel=5e-3)
        assert launches.end_s == pytest.approx(gpu.clock.now_s(), abs=1e-3)
        # A single one is timed with what the host adds.
        assert repeater.launch(1).gpu_s == pytest.approx(32.4e-6, rel=5e-3)
        repeater.start()
        gpu.clock.sleep_s(0.1)
        assert repeater.stop().launches[-1] > 1000


def test_launches_from_the_host_that_take_too_long_are_a_timeout(gpu):
    with repeat(gpu, timeout_s=1.0) as repeater, raises("timeout"):
        repeater.launch(100_000)
    assert gpu.state.spend(0).load is None


def test_a_timeline_ends_when_the_launches_do(gpu):
    line = timeline(gpu, 0.0)
    assert len(line.launches) == 2
    assert line.time_s[-1] <= gpu.clock.now_s() < line.time_s[-1] + 1e-4


def test_long_launches_come_one_by_one(gpu):
    slow = replace(BARE, recorded=(RecordedFigures(gpu.name, 700, 250.0, 419, 1e5),))
    line = timeline(gpu, 1.0, slow)
    assert line.launches.tolist() == [0, 1, 2, 3, 4]


def test_trials_differ_by_little_noise(gpu):
    times, powers = [], []
    timeline(gpu, 60.0)
    for _ in range(20):
        with repeat(gpu) as repeater:
            repeater.start()
            gpu.clock.sleep_s(1.0)
            before = gpu.state.spend(0)
            begin_pj, begin_ns = before.energy_pj(before.now_ns), before.now_ns
            gpu.clock.sleep_s(0.4)
            after = gpu.state.spend(0)
            powers.append((after.energy_pj(after.now_ns) - begin_pj) / (after.now_ns - begin_ns))
            line = repeater.stop()
        times.append(line.busy_s[-1] / line.launches[-1])
    assert 1e-4 < np.std(times) / np.mean(times) < 6e-4
    assert 5e-4 < np.std(powers) / np.mean(powers) < 2.5e-3


def test_a_cap_set_while_it_runs_shows_in_the_timeline(gpu):
    with repeat(gpu) as repeater:
        repeater.start()
        gpu.clock.sleep_s(1.0)
        changed_s = gpu.clock.now_s()
        gpu.nvml.nvmlDeviceSetPowerManagementLimit(gpu.handle, 200_000)
        gpu.clock.sleep_s(1.0)
        line = repeater.stop()
    before = np.diff(line.time_s[line.time_s < changed_s])
    after = np.diff(line.time_s[line.time_s > changed_s + 0.1])
    assert after.min() > 1.3 * before.max()


def test_nothing_sleeps_in_real_time(gpu, monkeypatch):
    slept_s: list[float] = []
    monkeypatch.setattr(time, "sleep", slept_s.append)
    assert np.ptp(timeline(gpu, 100.0).time_s) == pytest.approx(100, rel=0.01)
    assert not slept_s


def test_the_first_run_looks_for_races_and_later_ones_do_not(gpu, runner):
    for seed in (0, 1):
        gpu.run_once(job_of(BARE, timeout_s=3), {}, order_seed=seed)
    assert runner.calls == ["check 3", "run 0 3", "run 1 3"]


def test_a_kernel_that_was_run_is_launched_again_and_again_in_its_process(gpu, runner):
    with gpu.load(job_of(BARE, timeout_s=3), {}) as loaded:
        loaded.run(1)
        launches = [list(loaded.relaunch(once=once)) for once in (False, True)]
    assert launches == [[1 + LIMIT], [2 + LIMIT]]
    assert runner.calls == [
        "check 3",
        "run 1 3",
        f"run 0 3 again {LIMIT} 0.05",
        "run 4 3 again 1 0",
    ]


@pytest.mark.parametrize(("times", "stride"), [(1.01, 2), (3, 4), (30, 32)])
def test_of_a_kernel_that_takes_long_on_the_host_a_part_is_launched_again(
    gpu, runner, tmp_path, times, stride
):
    runner.launch_s = times * AFFORDABLE_S
    arenas = {"x": Arena.create(tmp_path / "x", Tensor("x", (4,), "float32", "output"))}
    with gpu.load(job_of(BARE, timeout_s=3), arenas) as loaded:
        loaded.run()
        loaded.run(1)
        launches = [list(loaded.relaunch(once=once)) for once in (False, True)]
    part = f"run 0 3 again 1 0 every {stride}"
    assert launches == [[4 + PERIOD], [5 + PERIOD]]
    repeated = f"run 0 3 again {PERIOD} {AFFORDABLE_S:g} every {stride * PERIOD}"
    finding = part  # which elements the part writes
    runs = ["check 3", "run 0 3", "run 1 3"]
    assert runner.calls == [*runs, finding, repeated, part, part]


def test_blocks_that_may_depend_on_one_another_are_launched_together(gpu, runner):
    kernel = replace(BARE, source=f"{BARE.source}\nint f(int* n) {{ return atomicAdd(n, 1); }}")
    for runner.launch_s, launches in ((0.99 * WHOLE_S, [1, 2]), (1.01 * WHOLE_S, [])):
        with gpu.load(job_of(kernel, timeout_s=3), {}) as loaded:
            loaded.run()
            again = [count for once in (False, True) for count in loaded.relaunch(once=once)]
        assert again == launches
    assert [call for call in runner.calls if "again" in call] == ["run 4 3 again 1 0"]


def test_what_was_counted_is_remembered_by_the_next_device_unless_damaged(gpu, runner, tmp_path):
    def calls_of_another() -> list[str]:
        again = FakeRunner()
        with EmulatedDevice(runner=again) as other:
            timeline(other, 0.1, BARE)
        return again.calls

    timeline(gpu, 0.1, BARE)
    assert runner.calls[:2] == ["compile", "check 10"]
    assert calls_of_another() == ["compile", "close"]
    (file,) = (tmp_path / "emulated" / "traffic").rglob("*.json")
    file.write_text('[{"barriers": "many"}]')
    assert "check 10" in calls_of_another()


def test_a_race_is_a_fault_each_time(gpu, runner):
    runner.fault = KernelFault("correctness", "threads 0 and 1 race")
    for _ in range(2):
        with raises("correctness", "race"):
            gpu.run_once(job_of(BARE, timeout_s=3), {})
    assert "run 0 3" not in runner.calls


def test_recorded_figures_need_no_count(gpu, runner):
    timeline(gpu, 0.1)
    assert runner.calls == ["compile"]


def test_without_a_workload_the_buffers_stand_for_the_traffic(gpu, tmp_path):
    arena = Arena.create(tmp_path / "x", Tensor("x", (256,), "float32", "input"))
    with gpu.repeat(job_of(BARE), {"x": arena}) as repeater:
        repeater.start()
        assert repeater.stop().launches[-1] > 0


def test_preparing_is_the_runners_affair(gpu, runner):
    gpu.prepare([BARE, RECORDED])
    assert runner.calls == ["prepare 2"]


@pytest.mark.parametrize(
    ("profile", "launch"),
    [
        ("h200", Launch("f", (1, 1, 1), (2048, 1, 1), ("x",))),
        ("h200", Launch("f", (1, 1, 1), (1, 1, 128), ("x",))),
        ("h200", Launch("f", (1, 70_000, 1), (32, 1, 1), ("x",))),
        ("rtx3090", Launch("f", (1, 1, 1), (32, 1, 1), ("x",), 120_000)),
    ],
)
def test_launches_that_the_card_would_refuse_are_faults(runner, profile, launch):
    kernel = Kernel("source", (launch,))
    with EmulatedDevice(find_profile(profile), runner=runner) as gpu:
        with raises("constraints"):
            gpu.run_once(job_of(kernel, timeout_s=3), {})
        with raises("constraints"), repeat(gpu, kernel):
            pass


def test_a_launch_longer_than_allowed_is_a_timeout(gpu):
    slow = replace(BARE, recorded=(RecordedFigures(gpu.name, 700, 20_000, 419, 8e6),))
    with repeat(gpu, slow) as repeater:
        repeater.start()
        with raises("timeout", r"One run takes 20 s .* longer than the 10 s"):
            repeater.stop()
    assert gpu.state.spend(0).load is None


def test_a_launch_can_fail_on_demand(gpu):
    with repeat(gpu) as repeater:
        repeater.start()
        gpu.inject("launch", "unknown")
        with raises("runtime", r"launch failed .*unknown"):
            repeater.stop()
    assert gpu.state.spend(0).load is None


def test_a_lost_gpu_runs_nothing(gpu):
    gpu.inject("any", "gpu_is_lost")
    with pytest.raises(KernelFault, match="gpu_is_lost"):
        gpu.run_once(job_of(BARE, timeout_s=3), {})


def test_leaving_without_stop_takes_the_load_off(gpu):
    with suppress(RuntimeError), repeat(gpu) as repeater:
        repeater.start()
        raise RuntimeError
    assert gpu.state.spend(0).load is None


def test_a_card_runs_one_kernel_at_a_time(gpu):
    with repeat(gpu) as first, repeat(gpu) as second:
        first.start()
        with pytest.raises(DeviceError, match="already runs a kernel of process"):
            second.start()
        assert first.stop().launches[-1] > 0


def test_a_load_that_is_gone_is_a_fault(gpu):
    with repeat(gpu) as repeater:
        repeater.start()
        with gpu.state.change() as card:
            card.stop()
        with pytest.raises(KernelFault, match="lost the kernel"):
            repeater.stop()


def test_stopping_what_never_started_is_a_mistake(gpu):
    with repeat(gpu) as repeater, pytest.raises(RuntimeError, match="without start"):
        repeater.stop()


def test_closing_twice_is_fine(gpu, runner):
    gpu.inject("mig")
    gpu.close()
    gpu.close()
    assert runner.calls == ["close", "close"]
    assert gpu.state.spend(0).faults == []


def test_the_environment_brings_faults_until_the_device_closes(runner, monkeypatch):
    def with_fault(fault: str) -> EmulatedDevice:
        monkeypatch.setenv("GPUENERGY_EMULATED_FAULTS", fault)
        return EmulatedDevice(runner=runner)

    with pytest.raises(InputError, match="no fault 'gremlins'"):
        with_fault('{"gremlins": true}')
    with pytest.raises(DeviceError, match="NVML of the emulated NVIDIA H200 does not start"):
        with_fault('{"driver_mismatch": true}')
    power_limit = '{"power_limit": "no_permission"}'
    with with_fault(power_limit) as gpu, pytest.raises(gpu.nvml.NVMLError_NoPermission):
        gpu.nvml.nvmlDeviceSetPowerManagementLimit(gpu.handle, 300_000)
    with with_fault("") as gpu:
        gpu.nvml.nvmlDeviceSetPowerManagementLimit(gpu.handle, 300_000)


def test_several_devices_are_several_cards(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path))
    devices = [EmulatedDevice(find_profile("a30"), index) for index in range(3)]
    assert len({device.uuid for device in devices}) == 3
    devices[2].nvml.nvmlDeviceSetPowerManagementLimit(devices[2].handle, 120_000)
    limits = [d.nvml.nvmlDeviceGetPowerManagementLimit(d.handle) for d in devices]
    assert limits == [165_000, 165_000, 120_000]
    for device in devices:
        device.close()


def test_a_twin_is_its_card_at_one_moment():
    with open_device("emulated") as device:
        lease = Lease(device)
        lease.set(Setpoint(300.0))
        moments = []
        for _ in range(2):
            device.clock.sleep_s(7.0)
            before_s = device.clock.now_s()
            with device.twin() as twin:
                assert (twin.uuid, twin.name) == (device.uuid, device.name)
                assert twin.nvml.nvmlDeviceGetPowerManagementLimit(twin.handle) == 300_000
                moments.append(twin.clock.now_s())
                twin.clock.sleep_s(100.0)
            assert device.clock.now_s() - before_s < 1.0
        assert moments[0] == moments[1]
        lease.restore()
    assert not list(Path("/dev/shm").glob(f"gpuenergy-{os.getpid()}-*"))


SIZE = 8
SLOW_S, FAST_S = 3 * AFFORDABLE_S, AFFORDABLE_S / 2


class Program:
    """A program that writes the number of its run to the first elements, or to every stride-th."""

    def __init__(self, arena: Arena, launches_s: list[float]) -> None:
        self.arena, self.launches_s, self.runs = arena, launches_s, 0

    def run(
        self,
        *,
        order_seed: int = 0,  # noqa: ARG002 -- as of a `HostProgram`, like the following
        fresh: bool = True,
        most: int = 1,  # noqa: ARG002
        budget_s: float = 0.0,  # noqa: ARG002
        stride: int = 1,
    ) -> tuple[int, float]:
        self.runs += fresh
        values = self.arena.value()
        values[:SIZE:stride] = self.runs
        self.arena.fill(values)
        return 1, self.launches_s[self.runs - 1]


@pytest.mark.parametrize(
    "launches_s", [[SLOW_S] * 3, [SLOW_S, SLOW_S, FAST_S], [SLOW_S, FAST_S, SLOW_S]]
)
def test_what_a_part_does_not_write_is_from_the_latest_run(tmp_path, launches_s):
    arena = Arena.create(tmp_path / "y", Tensor("y", (SIZE,), "float32", "output"))
    program = Program(arena, launches_s)
    with ExitStack() as stack:
        kernel = HostKernel(
            lambda: None, lambda: nullcontext(program), stack, [arena], divisible=True
        )
        for _ in launches_s:
            kernel.run()
        (left,) = [arena.value() for _ in kernel.relaunch(once=False)]
    np.testing.assert_array_equal(left, np.full(SIZE, 3, np.float32))


@pytest.mark.parametrize("divisible", [True, False])
def test_what_no_run_writes_stays_when_a_slow_kernel_is_not_launched_again(tmp_path, divisible):
    arena = Arena.create(tmp_path / "y", Tensor("y", (2 * SIZE,), "float32", "output"))
    program = Program(arena, [SLOW_S] * 3)
    contents = iter([-1.0, -2.0, -3.0, 7.0])

    def fill() -> None:
        arena.fill(np.full(2 * SIZE, next(contents), np.float32))

    with ExitStack() as stack:
        kernel = HostKernel(fill, lambda: nullcontext(program), stack, [arena], divisible=divisible)
        for _ in range(3):
            kernel.run()
        if not divisible:
            fill()  # as verification does; a part is launched on what is there before
        (left,) = [arena.value() for _ in kernel.relaunch(once=False)]
    np.testing.assert_array_equal(left[:SIZE], np.full(SIZE, 3, np.float32))
    np.testing.assert_array_equal(left[SIZE:], np.full(SIZE, 7, np.float32))
