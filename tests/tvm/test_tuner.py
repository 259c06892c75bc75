# ruff: noqa: ARG001, ARG005 -- verify and measure are told more than is needed here
"""A whole search with TVM on a device without hardware, failures and interruptions included."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tuning_fakes import FakeDevice, time_by_digest

from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.support.errors import DeviceError, InputError, KernelFault
from pytest_gpuenergy.support.worker import Worker
from pytest_gpuenergy.tvm.database import load_database
from pytest_gpuenergy.tvm.lowering import KernelStore
from pytest_gpuenergy.tvm.records import Measured, RecordFile, load_records
from pytest_gpuenergy.tvm.settings import SearchSettings
from pytest_gpuenergy.tvm.tuner import Tuner, TuneResult
from pytest_gpuenergy.workloads import CASES, Conv2d, Workload
from pytest_gpuenergy.workloads.table import parse_shape

pytestmark = pytest.mark.tvm
Tune = Callable[..., "Search"]
CASE_7_AND_6 = [CASES["case7"], CASES["case6"]]


@dataclass
class Search:
    """What was seen of a search."""

    folder: Path
    told: list[str] = field(default_factory=list)
    timed: list[str] = field(default_factory=list)
    verified: list[str] = field(default_factory=list)
    results: list[TuneResult] = field(default_factory=list)

    @property
    def result(self) -> TuneResult:
        (result,) = self.results
        return result

    @property
    def raw(self) -> Path:
        return self.folder / "case7" / "raw"

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.raw / "trials.jsonl").read_text().splitlines()]

    @property
    def records(self) -> RecordFile:
        return load_records(self.result.path)


@pytest.fixture(scope="module")
def tune(lowering: KernelStore) -> Tune:
    """tune(folder, trials, ...): search case7; numbers count timings or verifications from 0."""

    def go(
        folder: Path,
        trials: int,
        *,
        keep: int = 4,
        objective: Any = "time",
        resume: bool = True,
        failing: Sequence[int] = (),
        wrong: Sequence[int] = (),
        lost_at: int | None = None,
        stop_at: int | None = None,
        measure: Callable[[Kernel], Measured] | None = None,
        gpu: str = "NVIDIA H200",
        workloads: Sequence[Conv2d] = (CASES["case7"],),
        space: Any = "direct",
        search: Search | None = None,
    ) -> Search:
        search, stop = search or Search(folder), Event()

        def time_ms(kernel: Kernel) -> float:
            number = len(device.timed) - 1
            if number == stop_at:
                stop.set()
            if number == lost_at:
                raise DeviceError("The GPU is lost.")
            if number in failing:
                raise KernelFault("timeout", "The kernel did not finish within 20 s.")
            return time_by_digest(kernel)

        def verify(device: Device, kernel: Kernel, workload: Workload) -> None:
            search.verified.append(kernel.digest)
            if len(search.verified) - 1 in wrong:
                raise KernelFault("correctness", "1 of 100 elements of output is wrong.")

        device = FakeDevice(time_ms)
        device.name = gpu
        search.timed = device.timed
        tuner = Tuner(
            device=device,
            store=lowering,
            folder=folder,
            keep=keep,
            objective=objective,
            resume=resume,
            verify=verify,
            measure=None if measure is None else lambda device, kernel, workload: measure(kernel),
            tell=search.told.append,
            live=None,
            stop=stop,
        )
        settings = SearchSettings(trials, 0, 1, "replay-trace", space, batch=4)
        search.results.extend(tuner.tune(workloads, settings))
        return search

    return go


def measured(kernel: Kernel, power_w: float = 300.0) -> Measured:
    time_ms = time_by_digest(kernel)
    return Measured(time_ms, power_w, power_w * time_ms, 700.0)


@pytest.fixture(scope="module")
def searched(tune: Tune, tmp_path_factory: pytest.TempPathFactory) -> Search:
    """Six trials, of which the third failed; four kernels kept."""
    return tune(tmp_path_factory.mktemp("searched"), 6, failing=[2])


@pytest.fixture
def copy(searched: Search, tmp_path: Path) -> Path:
    """A folder with that search, to continue it."""
    shutil.copytree(searched.folder, tmp_path / "copy")
    return tmp_path / "copy"


def test_every_trial_is_kept_with_its_outcome(searched: Search) -> None:
    assert (searched.result.tried, searched.result.valid) == (6, 5)
    assert [event["outcome"] for event in searched.events].count("timed") == 5
    third = searched.events[2]
    assert third["outcome"] == "timeout"
    assert third["message"] == "The kernel did not finish within 20 s."
    failed = [record.failed for record in load_database(searched.raw).records]
    assert failed == [False, False, True, False, False, False]


def test_the_records_are_ranked_by_time(searched: Search) -> None:
    file = searched.records
    times = [record.run_secs[0] for record in file.records]
    assert times == sorted(times)
    assert (len(times), file.trials_total, file.trials_valid) == (4, 6, 5)
    assert 1e3 * times[0] == pytest.approx(searched.result.best_ms)
    flops_per_ms = CASES["case7"].flops / searched.result.best_ms
    assert searched.result.best_gflops == pytest.approx(flops_per_ms / 1e6)


def test_a_record_gives_the_very_kernel_that_was_timed(
    searched: Search, lowering: KernelStore
) -> None:
    timed = {event["digest"]: event.get("time_ms") for event in searched.events}
    file = searched.records
    for record in file.records:
        digest = lowering.kernel(file, record.rank).digest
        assert timed[digest] == pytest.approx(1e3 * record.run_secs[0])


def test_progress_is_told_in_plain_lines(searched: Search) -> None:
    assert any(line.startswith("case7: 6 of 6 trials, best 0.") for line in searched.told)
    assert any("failed: 1 timeout" in line for line in searched.told)
    assert all("\r" not in line and "\n" not in line for line in searched.told)


def test_a_folder_that_holds_a_search_is_only_continued_when_told(tune: Tune, copy: Path) -> None:
    with pytest.raises(InputError, match=r"holds 6 trials already: continue them with --resume"):
        tune(copy, 8, resume=False)


def test_a_search_goes_on_without_repeating_a_trial(tune: Tune, copy: Path) -> None:
    search = tune(copy, 8)
    assert search.result.tried == 8
    assert len(search.timed) == 2
    digests = [record.trace_text for record in load_database(search.raw).records]
    assert len(set(digests)) == 8


def test_representatives_can_be_chosen_again_without_a_trial(
    tune: Tune, copy: Path, searched: Search
) -> None:
    next(copy.glob("case7_*.json")).unlink()
    again = tune(copy, 6)
    assert again.timed == []
    assert again.records == searched.records


def test_a_workload_that_is_done_is_passed_over(tune: Tune, copy: Path, searched: Search) -> None:
    again = tune(copy, 6)
    assert (again.timed, again.verified, again.results) == ([], [], [])
    assert again.told == ["case7: its kernels are chosen and proven already"]
    (path,) = copy.glob("case7_*.json")
    assert load_records(path) == searched.records


def test_a_workload_with_fewer_kernels_than_asked_for_is_passed_over_too(
    tune: Tune, copy: Path
) -> None:
    tune(copy, 6, keep=25)
    again = tune(copy, 6, keep=25)
    assert (again.timed, again.verified, again.results) == ([], [], [])


@pytest.mark.parametrize(
    "changed",
    [{"keep": 3}, {"objective": "edp", "measure": measured}, {"measure": measured}],
    ids=["keep", "objective", "figures"],
)
def test_kernels_of_another_choice_are_chosen_again(
    tune: Tune, copy: Path, changed: dict[str, Any]
) -> None:
    assert tune(copy, 6, **changed).verified


def test_the_next_workload_is_searched_after_the_first(tune: Tune, tmp_path: Path) -> None:
    search = tune(tmp_path, 2, workloads=CASE_7_AND_6)
    assert [(result.workload, result.tried) for result in search.results] == [
        ("case7", 2),
        ("case6", 2),
    ]


def test_what_is_wrong_with_the_next_workload_costs_the_first_nothing(
    tune: Tune, copy: Path
) -> None:
    (copy / "case7").rename(copy / "case6")
    search = Search(copy)
    with pytest.raises(InputError, match=r"1 of 2 workloads could not be tuned.*: case6"):
        tune(copy, 2, workloads=CASE_7_AND_6, search=search)
    assert [result.workload for result in search.results] == ["case7"]
    assert any(re.match("case6: not tuned: .*case6/raw holds", line) for line in search.told)


def test_a_workload_that_cannot_be_tuned_does_not_end_the_others(
    tune: Tune, tmp_path: Path
) -> None:
    search = Search(tmp_path)
    with pytest.raises(InputError, match=r"1 of 2 workloads could not be tuned.*: case7"):
        tune(tmp_path, 2, workloads=CASE_7_AND_6, failing=range(2), search=search)
    assert [result.workload for result in search.results] == ["case6"]
    assert any("None of the 2 trials of case7 ran" in line for line in search.told)


def test_the_same_seed_finds_the_same(tune: Tune, tmp_path: Path, searched: Search) -> None:
    again = tune(tmp_path, 6, failing=[2])
    assert again.timed == searched.timed
    assert again.records.records == searched.records.records


def test_a_wrong_kernel_is_replaced_and_never_chosen_again(tune: Tune, copy: Path) -> None:
    search = tune(copy, 6, keep=2, wrong=[0])
    assert len(search.verified) == 3
    assert search.result.kept == 2
    (rejected,) = search.result.rejected
    assert rejected.startswith(search.verified[0][:12])
    assert "correctness: 1 of 100 elements" in rejected
    again = tune(copy, 6, keep=3)
    assert search.verified[0] not in again.verified
    assert again.result.valid == 4


def test_too_few_kernels_are_told(tune: Tune, copy: Path) -> None:
    search = tune(copy, 6, keep=25)
    assert search.result.kept == 5
    assert "case7: only 5 of 25 kernels to keep" in search.told


def test_no_right_kernel_is_an_error(tune: Tune, copy: Path) -> None:
    with pytest.raises(InputError, match=r"No kernel of case7 is right \(5 checked\)"):
        tune(copy, 6, keep=5, wrong=range(5))


def test_figures_are_written_with_the_records(tune: Tune, copy: Path) -> None:
    (figures,) = tune(copy, 6, keep=1, measure=measured).records.recorded(1)
    assert figures.energy_mj == pytest.approx(300.0 * figures.time_ms)
    assert figures.gpu == "NVIDIA H200 (emulated)"


def test_the_best_are_those_that_measure_best(tune: Tune, copy: Path) -> None:
    """With five times the power for the fastest, the next one takes the least energy."""
    plain = tune(copy, 6, keep=1, measure=measured)
    fastest = plain.verified[0]

    def thirsty(kernel: Kernel) -> Measured:
        return measured(kernel, 1e6 if kernel.digest == fastest else 300.0)

    search = tune(copy, 6, keep=1, objective="energy", measure=thirsty)
    assert search.records.objective == "energy"
    assert [record.band for record in search.records.records] == ["best"]
    assert search.verified == [fastest, search.verified[1]]
    assert search.records.recorded(1)[0].power_w == 300.0


def test_a_folder_of_another_gpu_is_refused(tune: Tune, copy: Path) -> None:
    with pytest.raises(InputError, match="holds another search"):
        tune(copy, 6, gpu="NVIDIA A100")


@pytest.mark.parametrize(
    "shape", ["fc=1,1,1,16,8,1,1,1,0", "grouped=1,8,8,8,8,3,3,1,1,1,2"], ids=["fc", "grouped"]
)
def test_a_space_without_schedules_is_an_error(tune: Tune, tmp_path: Path, shape: str) -> None:
    workload = parse_shape(shape)
    with pytest.raises(InputError, match=f"{workload.name} has no schedules as a matrix product"):
        tune(tmp_path, 2, workloads=[workload], space="gemm")
    assert list(tmp_path.iterdir()) == []


def test_nothing_that_runs_is_an_error(tune: Tune, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="None of the 2 trials of case7 ran"):
        tune(tmp_path, 2, failing=range(2))


def test_a_stopped_search_keeps_what_it_tried(tune: Tune, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path, 4, stop_at=1)
    assert len(load_database(tmp_path / "case7" / "raw").records) == 2
    assert len((tmp_path / "case7" / "raw" / "trials.jsonl").read_text().splitlines()) == 2


def test_a_lost_device_is_not_taken_for_a_bad_kernel(tune: Tune, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"The GPU is lost\."):
        tune(tmp_path, 2, lost_at=1)


def test_two_launches_share_a_workspace(child: Worker) -> None:
    kernel = child.call("lower_two_stages", timeout_s=60)
    (space,) = kernel.workspaces
    assert (space.shape, space.dtype, space.role) == ((1024,), "float32", "workspace")
    first, second = kernel.launches
    assert set(first.arguments) == {space.name, "input"}
    assert set(second.arguments) == {space.name, "result"}
    assert first.entry != second.entry
    assert (first.grid, first.block) == ((8, 1, 1), (128, 1, 1))


def test_dynamic_shared_memory_reaches_the_launch(child: Worker) -> None:
    (launch,) = child.call("lower_shared", timeout_s=60).launches
    assert launch.shared_bytes == 128 * 4
    assert sorted(launch.arguments) == ["input", "result"]
