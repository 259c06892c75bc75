"""A kernel that is right at first and wrong later, on a GPU that is this process."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from host_cupy import device_in_this_process, host_gpu
from points import each_once

from pytest_gpuenergy.ab import take_turns
from pytest_gpuenergy.devices import MAX_PLACEMENTS, Binary, CudaDevice
from pytest_gpuenergy.energy import MeterSettings
from pytest_gpuenergy.engine import (
    check_again,
    read_job,
    references,
    seeded_arenas,
    seeded_check,
    verify_on_device,
    write_job,
)
from pytest_gpuenergy.kernels import Job, Kernel, Launch
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Contract, Tensor

SIZE = 16_384
WORKLOAD = Contract(
    "double",
    (Tensor("x", (SIZE,), "float32", "input"), Tensor("y", (SIZE,), "float32", "output")),
    lambda inputs: {"y": 2 * inputs["x"]},
)
KERNEL = Kernel(
    "__global__ void f(const float* x, float* y, float* w) {}",
    (Launch("f", (1, 1, 1), (32, 1, 1), ("x", "y", "w")),),
    workspaces=(Tensor("w", (4,), "float32", "workspace"),),
)
Change = Callable[["Double", Any, Any, Any], None]


class Double:
    """Doubles x, and changes the outcome of late launches, or of those on the set it has chosen.

    Attributes:
        launches: so far, since there have been late ones.
        late: whether there have been more than are made to verify it.
        sets: addresses of the outputs of all sets.
    """

    def __init__(self, change: Change, sets: int) -> None:
        self.launches = 0
        self.late = False
        self.sets: list[int] = []
        self.all_sets = threading.Event()
        self._change = change
        self._count = sets

    def __call__(self, x: Any, y: Any, w: Any) -> None:
        self.launches += 1
        if self.late and y.ctypes.data not in self.sets:
            self.sets.append(y.ctypes.data)
            if len(self.sets) == self._count:
                self.all_sets.set()
        self._change(self, x.view(np.float32), y.view(np.float32), w)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    binary = Binary(Path("f.cubin"), {"f": "f"})
    monkeypatch.setattr(CudaDevice, "_binary", lambda *_: binary)
    return device_in_this_process(monkeypatch)


PLACES = {"in files": False, "on the GPU": True}


@pytest.fixture
def in_place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare on the GPU if asked for."""
    if request.param:
        monkeypatch.setattr(references, "_LARGE_ELEMENTS", 1)


def measured(
    device: CudaDevice, change: Change, cache: Any = "hot", workload: Contract = WORKLOAD
) -> int:
    """Verify, launch on all sets, check again, and return the number of launches."""
    sets = MAX_PLACEMENTS if cache == "hot" else 2 * 4 * 2**20 // (2 * 4 * SIZE + 16) + 1
    double = Double(change, sets)
    with host_gpu(double), seeded_arenas(workload, 0, device.arrays) as arenas:
        verify_on_device(device, KERNEL, workload)
        double.late, double.launches = True, 0
        check = seeded_check(device, workload, arenas, seed=0)
        job = Job.of(KERNEL, workload, cache=cache, apart=True)
        with device.repeat(job, arenas) as repeater:
            repeater.start()
            assert double.all_sets.wait(60.0)
            repeater.stop()
            repeater.launch(1)  # as a program does that has no graph
            check_again(repeater, check)
    return double.launches


def right(_: Double, x: Any, y: Any, __: Any) -> None:
    y[:] = 2 * x


@pytest.mark.slow
@pytest.mark.usefixtures("in_place")
@pytest.mark.parametrize(
    ("in_place", "cache"), each_once(PLACES, ["hot", "cold"]), indirect=["in_place"]
)
def test_a_kernel_that_stays_right_passes(device, cache):
    assert measured(device, right, cache) > 3 * MAX_PLACEMENTS


def stops(double: Double, x: Any, y: Any, _: Any) -> None:
    if not double.late or double.launches <= 40:
        y[:] = 2 * x


def stops_on_one_set(double: Double, x: Any, y: Any, _: Any) -> None:
    if not double.late or double.launches <= 40 or y.ctypes.data != double.sets[0]:
        y[:] = 2 * x


def leaves_what_is_there(double: Double, x: Any, y: Any, _: Any) -> None:
    if not (double.late and np.isfinite(y).all()):
        y[:] = 2 * x


def leaves_what_is_there_in_the_last_set(double: Double, x: Any, y: Any, _: Any) -> None:
    is_last = double.all_sets.is_set() and y.ctypes.data == double.sets[-1]
    if not (is_last and np.isfinite(y).all()):
        y[:] = 2 * x


def pauses(double: Double, x: Any, y: Any, _: Any) -> None:
    if not double.late or double.launches < 40 or double.launches % 3 == 0:
        y[:] = 2 * x


def changes_its_input(double: Double, x: Any, y: Any, _: Any) -> None:
    y[:] = 2 * x
    if double.late and double.launches == 40:
        x[5] += 1


def beside_its_output(double: Double, x: Any, y: Any, _: Any) -> None:
    y[:] = 2 * x
    if double.late and double.launches == 40:
        ctypes.memset(y.ctypes.data + y.nbytes, 0, 1)


CHANGES = {
    "stops": (stops, "16384 of 16384 elements of y .* never written"),
    "stops on one set": (stops_on_one_set, "16384 of 16384 elements of y .* never written"),
    "leaves what is there": (leaves_what_is_there, "elements? of y .* wrong"),
    "leaves what is there in the last set": (
        leaves_what_is_there_in_the_last_set,
        "elements? of y .* wrong",
    ),
    "pauses": (pauses, "elements? of y "),
    "changes its input": (
        changes_its_input,
        r"1 of 16384 elements of x \(first x\[5\]\) is changed",
    ),
    "beside its output": (beside_its_output, "past the end of y"),
}
WHERE = {
    f"{place} {cache}": (large, cache)
    for place, large in PLACES.items()
    for cache in ("hot", "cold")
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words", "in_place", "cache"), each_once(CHANGES, WHERE), indirect=["in_place"]
)
@pytest.mark.usefixtures("in_place")
def test_a_kernel_that_is_right_only_at_first_is_found(device, change, words, cache):
    sentence = rf"^Correct at first, wrong after \d+ launches: .*{words}"
    with pytest.raises(KernelFault, match=sentence) as fault:
        measured(device, change, cache)
    assert fault.value.outcome == "correctness"


WORKS: dict[str, Callable[[int], bool]] = {
    "20": lambda launch: launch <= 20,
    "60": lambda launch: launch <= 60,
    "1000": lambda launch: launch <= 1000,
    "not each seventh": lambda launch: launch % 7 != 6,
    "not each 31st": lambda launch: launch % 31 != 30,
    "each 13th later": lambda launch: launch < 100 or launch % 13 == 0,
    "each second later": lambda launch: launch < 100 or launch % 2 == 0,
}


@pytest.mark.parametrize(("works", "in_place"), each_once(WORKS, PLACES), indirect=["in_place"])
@pytest.mark.usefixtures("in_place")
def test_a_kernel_that_leaves_out_launches_is_found_before_it_is_measured(
    device, works, monkeypatch
):
    # On a busy machine, 1000 launches take longer than the limit.
    monkeypatch.setattr("pytest_gpuenergy.devices.cuda.relaunch.BURST_S", 60.0)

    def change(double: Double, x: Any, y: Any, _: Any) -> None:
        if works(double.launches):
            y[:] = 2 * x

    sentence = r"\d+ of 16384 elements? of y .* (wrong|N)"
    with host_gpu(Double(change, 1)), pytest.raises(KernelFault, match=sentence) as fault:
        verify_on_device(device, KERNEL, WORKLOAD)
    assert fault.value.outcome == "correctness"


def test_what_launches_have_left_in_variables_is_gone_at_the_next_verification(device):
    launches: dict[int, int] = {}

    def change(x: Any, y: Any, _: Any) -> None:
        launches[gpu.loaded] = launches.get(gpu.loaded, 0) + 1
        if launches[gpu.loaded] <= 20:
            y.view(np.float32)[:] = 2 * x.view(np.float32)

    with host_gpu(change) as gpu:
        for _ in range(3):
            with pytest.raises(KernelFault, match=r"^Correct at first, wrong after \d+ launches"):
                verify_on_device(device, KERNEL, WORKLOAD)
    assert len(launches) == 3


@pytest.mark.parametrize("in_place", PLACES.values(), ids=PLACES, indirect=True)
@pytest.mark.usefixtures("in_place")
def test_a_kernel_that_leaves_out_one_of_several_blocks_at_some_launches_is_found(device):
    def change(double: Double, x: Any, y: Any, _: Any) -> None:
        kept = y[:4096].copy()
        y[:] = 2 * x
        if double.launches % 11 == 10:
            y[:4096] = kept

    with host_gpu(Double(change, 1)), pytest.raises(KernelFault, match=r"elements? of y"):
        verify_on_device(device, KERNEL, WORKLOAD)


SUM = Contract(
    "sum",
    (Tensor("x", (SIZE,), "float32", "input"), Tensor("y", (SIZE,), "float32", "inout")),
    lambda inputs: {"y": inputs["x"] + inputs["y"]},
)


@pytest.mark.parametrize("skipped", [None, 6])
@pytest.mark.parametrize("in_place", PLACES.values(), ids=PLACES, indirect=True)
@pytest.mark.usefixtures("in_place")
def test_what_a_kernel_changes_is_restored_before_each_launch(device, skipped):
    def change(double: Double, x: Any, y: Any, _: Any) -> None:
        assert np.abs(y).max() <= 128, "launches on what others have left add up"
        if double.launches % 7 != skipped:
            y[:] = x + y

    with host_gpu(Double(change, 1)):
        if skipped is None:
            assert verify_on_device(device, KERNEL, SUM)
        else:
            with pytest.raises(KernelFault, match=r"elements? of y .* wrong"):
                verify_on_device(device, KERNEL, SUM)


def adds(_: Double, x: Any, y: Any, __: Any) -> None:
    y[:] = x + y


def adds_at_most_launches(double: Double, x: Any, y: Any, _: Any) -> None:
    if not double.late or double.launches % 3:
        y[:] = x + y


def stops_adding_to_one_set(double: Double, x: Any, y: Any, _: Any) -> None:
    if not double.late or double.launches <= 40 or y.ctypes.data != double.sets[-1]:
        y[:] = x + y


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["hot", "cold"])
def test_what_a_kernel_changes_is_right_on_all_sets_after_a_measurement(device, cache):
    assert measured(device, adds, cache, SUM) > 3 * MAX_PLACEMENTS


@pytest.mark.parametrize(
    ("change", "cache"),
    each_once([adds_at_most_launches, stops_adding_to_one_set], ["hot", "cold"]),
)
def test_a_kernel_that_adds_only_at_first_is_found(device, change, cache):
    sentence = r"^Correct at first, wrong after \d+ launches: .*elements? of y .* wrong"
    with pytest.raises(KernelFault, match=sentence):
        measured(device, change, cache, SUM)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "cache"), each_once([adds, adds_at_most_launches], ["hot", "cold"])
)
def test_a_comparison_restores_what_kernels_change(device, tmp_path, change, cache):
    double = Double(change, 1)
    double.late = True
    heats_s = []

    def measure(repeater: Any, settings: MeterSettings) -> Any:
        heats_s.append(settings.warmup_s)
        double.all_sets.clear()
        double.sets.clear()
        repeater.start()
        assert double.all_sets.wait(60.0)
        repeater.stop()
        return SimpleNamespace(flags=())

    name = write_job(tmp_path, Job.of(KERNEL, SUM, cache=cache, apart=True), SUM)
    exhibit: Any = SimpleNamespace(stored=read_job(tmp_path, name))
    meter: Any = SimpleNamespace(measure=measure)
    with host_gpu(double):
        turns = take_turns(device, exhibit, exhibit, rounds=2, timeout_s=60.0, meter=meter)
    assert len(turns.base) == len(turns.head) == (2 if change is adds else 0)
    assert bool(turns.base_fault) == (change is not adds)
    assert heats_s[0] == 2.0  # which does not count
    assert set(heats_s[1:]) <= {0.3}


def test_a_light_load_runs_without_any_buffer(device, monkeypatch):
    binary = Binary(Path("f.cubin"), {"light_load": "f"})
    monkeypatch.setattr(CudaDevice, "_binary", lambda *_: binary)
    launched = threading.Event()
    with host_gpu(lambda: launched.set()), device.light_load() as repeater:
        repeater.start()
        assert launched.wait(60.0)
        timeline = repeater.stop()
    assert timeline.launches[-1] > 0


def test_a_late_write_beside_a_workspace_is_found(device):
    def change(double: Double, x: Any, y: Any, w: Any) -> None:
        y[:] = 2 * x
        if double.late and double.launches == 40:
            ctypes.memset(w.ctypes.data - 1, 0, 1)

    with pytest.raises(KernelFault, match="outside its workspace 'w'"):
        measured(device, change)
