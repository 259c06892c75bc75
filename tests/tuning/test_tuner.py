"""Tuning over a space of words, on a device without hardware: failures and interruptions too."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tuning_fakes import WORDS, FakeDevice, WordSpace, time_by_digest

from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.support import DeviceError, InputError, KernelFault
from pytest_gpuenergy.tuning import (
    Measured,
    RecordFile,
    Tuner,
    TuneResult,
    TuneSettings,
    TuningGpus,
    keep_outcome,
    read_records,
)
from pytest_gpuenergy.workloads import Conv2d, Workload

ONE, OTHER = (Conv2d.of(name, 1, 4, 4, 1, 1, 1, 1, 1, 0) for name in ("one", "other"))
WORDS_OF_SIX = ["lorem", "ipsum", "dolor", "sit", "amet", "elit"]

Tune = Callable[..., "Search"]


@dataclass
class Search:
    """What was seen of a search."""

    folder: Path
    told: list[str] = field(default_factory=list)
    timed: list[str] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)
    results: list[TuneResult] = field(default_factory=list)
    spaces: list[WordSpace] = field(default_factory=list)

    @property
    def result(self) -> TuneResult:
        (result,) = self.results
        return result

    @property
    def trials(self) -> list[dict[str, Any]]:
        path = self.folder / "one" / "raw" / "trials.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    @property
    def records(self) -> RecordFile:
        return read_records(self.result.path)


@pytest.fixture
def tune() -> Tune:
    """tune(folder, trials, ...): numbers count timings or confirmations from 0."""

    def go(
        folder: Path,
        trials: int = 6,
        *,
        keep: int = 4,
        objective: Metric = Metric.TIME,
        resume: bool = True,
        best_only: bool = False,
        failing: Sequence[int] = (),
        wrong: Sequence[int] = (),
        lost_at: int | None = None,
        stop_at: int | None = None,
        measure: Callable[[Kernel], Measured] | None = None,
        gpu: str = "NVIDIA H200",
        workloads: Sequence[Workload] = (ONE,),
        words: Sequence[str] = WORDS_OF_SIX,
        without_space: str = "",
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

        def confirm(kernel: Kernel, *_: Workload, energy: bool) -> Measured | None:
            assert kernel.origin.kind == WORDS.tuner
            search.confirmed.append(kernel.digest)
            if len(search.confirmed) - 1 in wrong:
                raise KernelFault("correctness", "1 of 100 elements of output is wrong.")
            assert energy == (measure is not None)
            return None if measure is None else measure(kernel)

        def make_space(workload: Workload) -> WordSpace:
            if workload.name == without_space:
                raise InputError(f"{workload.name} has no schedules.")
            batches = [words[start : start + 4] for start in range(0, len(words), 4)]
            search.spaces.append(WordSpace(workload, batches))
            return search.spaces[-1]

        device = FakeDevice(time_ms)
        device.name = gpu
        search.timed = device.timed
        settings = TuneSettings(trials, keep, objective, measure is not None, resume, best_only)
        tuner = Tuner(
            gpus=TuningGpus((device,), (confirm,)),
            make_space=make_space,
            folder=folder,
            settings=settings,
            tell=search.told.append,
            live=None,
            stop=stop,
        )
        search.results.extend(tuner.tune(workloads))
        return search

    return go


def measured(kernel: Kernel, power_w: float = 300.0) -> Measured:
    time_ms = time_by_digest(kernel)
    return Measured(time_ms, power_w, power_w * time_ms, 700.0)


@pytest.fixture
def searched(tune: Tune, tmp_path: Path) -> Search:
    """Six trials, of which the third failed; four kernels kept."""
    return tune(tmp_path / "searched", failing=[2])


@pytest.fixture
def copy(searched: Search, tmp_path: Path) -> Path:
    """A folder with that search, to continue it."""
    shutil.copytree(searched.folder, tmp_path / "copy")
    return tmp_path / "copy"


def test_every_trial_is_kept_with_its_outcome(searched):
    assert (searched.result.tried, searched.result.valid) == (6, 5)
    outcomes = [trial["outcome"] for trial in searched.trials]
    assert outcomes == ["timed", "timed", "timeout", "timed", "timed", "timed"]
    assert searched.trials[2]["message"] == "The kernel did not finish within 20 s."


def test_the_records_are_ranked_by_time(searched):
    file = searched.records
    times = [WORDS.time_ms(record.recipe) for record in file.records]
    assert times == sorted(times)
    assert (len(times), file.trials_total, file.trials_valid) == (4, 6, 5)
    assert times[0] == pytest.approx(searched.result.best_ms)
    assert searched.result.best_gflops == pytest.approx(ONE.flops / times[0] / 1e6)


def test_the_record_file_says_what_it_was_made_with(searched):
    file = searched.records
    assert (file.tuner, file.toolchain) == ("words", {"language": "English"})
    assert (file.gpu, file.driver) == ("NVIDIA H200 (emulated)", "580.0")


def test_progress_is_told_in_plain_lines(searched):
    assert searched.told[0] == "one: searching on NVIDIA H200 (emulated) with words"
    assert any(line.startswith("one (emulated): 6 of 6 trials, best 0.") for line in searched.told)


def test_a_proposer_is_closed_when_its_search_ends(searched):
    (space,) = searched.spaces
    assert [proposer.closed for proposer in space.proposers] == [True]


def test_a_search_goes_on_where_it_ended(tune, copy):
    again = tune(copy, 8, words=[*WORDS_OF_SIX, "sed", "do"])
    assert len(again.timed) == 2
    assert (again.result.tried, again.result.valid) == (8, 7)
    (known,) = again.spaces[0].known
    assert [feedback.cost_s is None for feedback in known] == [i == 2 for i in range(6)]


def test_a_search_is_not_continued_unless_asked_to(tune, copy):
    with pytest.raises(InputError, match="already contains 6 trials: continue with --resume"):
        tune(copy, 8, resume=False)


def test_a_record_file_that_was_lost_is_written_again(tune, copy, searched):
    next(copy.glob("one_*.json")).unlink()
    again = tune(copy)
    assert again.timed == []
    assert again.records == searched.records


def test_a_workload_that_is_done_is_passed_over(tune, copy):
    again = tune(copy)
    assert (again.timed, again.confirmed, again.results) == ([], [], [])
    (path,) = copy.glob("one_*.json")
    kept = f"4 kernels in {path}"
    assert again.told == [f"one: already complete, with 6 trials; {kept}"]


def test_a_workload_that_is_done_need_not_be_resumed(tune, copy):
    again = tune(copy, resume=False)
    assert (again.timed, again.confirmed, again.results) == ([], [], [])
    with pytest.raises(InputError, match="already contains 6 trials"):
        tune(copy, keep=3, resume=False)  # that would take the place of the five kernels


def test_the_best_only_are_the_fastest_and_the_second_fastest(tune, tmp_path):
    usual, best = tune(tmp_path / "a", keep=2), tune(tmp_path / "b", keep=2, best_only=True)
    assert [record.band for record in usual.records.records] == ["fastest", "p10"]
    assert [record.band for record in best.records.records] == ["fastest", "fastest"]
    times = sorted(trial["time_ms"] for trial in best.trials if trial.get("time_ms"))
    assert best.result.gflops == tuple(ONE.flops / time_ms / 1e6 for time_ms in times[:2])


def test_what_was_kept_before_is_no_tuning_of_the_best_only(tune, copy):
    tune(copy, keep=2)
    again = tune(copy, keep=2, best_only=True)
    assert [record.band for record in again.records.records] == ["fastest", "fastest"]
    assert tune(copy, keep=2, best_only=True).results == []


def test_a_workload_with_fewer_kernels_than_asked_for_is_passed_over_too(tune, copy):
    tune(copy, keep=25)
    again = tune(copy, keep=25)
    assert (again.timed, again.confirmed, again.results) == ([], [], [])


@pytest.mark.parametrize(
    "changed",
    [{"keep": 3}, {"objective": Metric.EDP, "measure": measured}, {"measure": measured}],
    ids=["keep", "objective", "figures"],
)
def test_kernels_of_another_choice_are_chosen_again(tune, copy, changed):
    assert tune(copy, **changed).confirmed


def test_the_next_workload_is_searched_after_the_first(tune, tmp_path):
    search = tune(tmp_path, 2, workloads=[ONE, OTHER])
    tried = [(result.workload, result.tried) for result in search.results]
    assert tried == [("one", 2), ("other", 2)]


def test_what_is_wrong_with_the_next_workload_costs_the_first_nothing(tune, copy):
    (copy / "one").rename(copy / "other")
    search = Search(copy)
    with pytest.raises(InputError, match=r"1 of 2 workloads could not be tuned.*: other"):
        tune(copy, 2, workloads=[ONE, OTHER], search=search)
    assert [result.workload for result in search.results] == ["one"]
    assert any(re.match("other: not tuned: .*other/raw contains", line) for line in search.told)


def test_a_workload_that_cannot_be_tuned_does_not_end_the_others(tune, tmp_path):
    search = Search(tmp_path)
    with pytest.raises(InputError, match=r"1 of 2 workloads could not be tuned.*: one"):
        tune(tmp_path, 2, workloads=[ONE, OTHER], failing=range(2), search=search)
    assert [result.workload for result in search.results] == ["other"]
    assert any("None of the 2 trials of one ran" in line for line in search.told)


def test_a_wrong_kernel_is_replaced_and_never_chosen_again(tune, copy):
    search = tune(copy, keep=2, wrong=[0])
    assert len(search.confirmed) == 3
    assert search.result.kept == 2
    (rejected,) = search.result.rejected
    assert rejected.startswith(search.confirmed[0][:12])
    assert "correctness: 1 of 100 elements" in rejected
    again = tune(copy, keep=3)
    assert search.confirmed[0] not in again.confirmed
    assert again.result.valid == 4


def test_no_kernel_is_confirmed_twice(tune, copy):
    search = tune(copy, keep=5, wrong=[0, 2], objective=Metric.EDP, measure=measured)
    assert len(search.confirmed) == len(set(search.confirmed)) == 5


def test_too_few_kernels_are_told(tune, copy):
    search = tune(copy, keep=25)
    assert search.result.kept == 5
    assert "one: only 5 kernels to keep instead of 25" in search.told


def test_no_right_kernel_is_an_error(tune, copy):
    with pytest.raises(InputError, match="No kernel of one is correct; 5 were verified"):
        tune(copy, keep=5, wrong=range(5))


def test_figures_are_written_with_the_records(tune, copy):
    (figures,) = tune(copy, keep=1, measure=measured).records.recorded(1)
    assert figures.energy_mj == pytest.approx(300.0 * figures.time_ms)
    assert figures.gpu == "NVIDIA H200 (emulated)"


def test_the_best_are_those_that_measure_best(tune, copy):
    """With very much power for the fastest, the next one takes the least energy."""
    plain = tune(copy, keep=1, measure=measured)
    fastest = plain.confirmed[0]

    def thirsty(kernel: Kernel) -> Measured:
        return measured(kernel, 1e6 if kernel.digest == fastest else 300.0)

    search = tune(copy, keep=1, objective=Metric.ENERGY, measure=thirsty)
    assert search.records.objective == "energy"
    assert [record.band for record in search.records.records] == ["best"]
    assert search.confirmed == [fastest, search.confirmed[1]]
    assert search.records.recorded(1)[0].power_w == 300.0


def test_a_folder_of_another_gpu_is_refused(tune, copy):
    with pytest.raises(InputError, match="contains another search"):
        tune(copy, gpu="NVIDIA A100")


def test_nowhere_to_look_is_an_error_that_leaves_nothing(tune, tmp_path):
    with pytest.raises(InputError, match="one has no schedules"):
        tune(tmp_path, without_space="one")
    assert list(tmp_path.iterdir()) == []


def test_nothing_that_runs_is_an_error(tune, tmp_path):
    with pytest.raises(InputError, match="None of the 2 trials of one ran"):
        tune(tmp_path, 2, failing=range(2))


def test_without_trials_nothing_can_be_chosen(tune, tmp_path):
    with pytest.raises(InputError, match="one has no trials to choose from: give --trials at le"):
        tune(tmp_path, 0)


def test_a_stopped_search_keeps_what_it_tried(tune, tmp_path):
    search = Search(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path, stop_at=1, search=search)
    assert len(search.trials) == 2
    assert len((tmp_path / "one" / "raw" / WORDS.file_name).read_text().splitlines()) == 2


def test_a_lost_device_is_not_taken_for_a_bad_kernel(tune, tmp_path):
    with pytest.raises(DeviceError, match=r"The GPU is lost\."):
        tune(tmp_path, 2, lost_at=1)


RESULT = TuneResult(
    workload="case5",
    path=Path("case5.json"),
    started="2026-11-21T00:00:00+00:00",
    tried=8,
    valid=7,
    kept=2,
    best_ms=0.013,
    best_gflops=17000.0,
    gflops=(17000.4, 16000.0),
    rejected=(),
    search_s=1.0,
    elapsed_s=2.0,
    energy_j=None,
    gpu="NVIDIA H200",
)
EMULATED = replace(RESULT, gpu="NVIDIA H200 (emulated)", emulated=True)


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "tuning.csv").read_text().splitlines()))


def rates(folder: Path) -> list[str]:
    return (folder / "performance" / "case5.json").read_text().splitlines()


def test_rates_of_a_real_gpu_are_integers_only(tmp_path):
    keep_outcome(tmp_path, RESULT)
    assert rates(tmp_path) == ["17000", "16000"]
    assert [(row["gpu"], row["emulated"]) for row in rows(tmp_path)] == [("NVIDIA H200", "False")]


def test_rates_of_an_emulated_gpu_say_so(tmp_path):
    keep_outcome(tmp_path, EMULATED)
    comment, *figures = rates(tmp_path)
    assert comment == "# NVIDIA H200 (emulated): recorded or modelled figures"
    assert figures == ["17000", "16000"]
    (row,) = rows(tmp_path)
    assert (row["gpu"], row["emulated"]) == ("NVIDIA H200 (emulated)", "True")


@pytest.mark.parametrize("line", ["case4,case4.json,x,1,1,1,0.1,2.0,1.0,2.0,3.0", ""])
def test_a_table_of_an_older_release_gets_the_new_columns(tmp_path, line):
    header = (
        "workload,path,started,tried,valid,kept,best_ms,best_gflops,search_s,elapsed_s,energy_j"
    )
    (tmp_path / "tuning.csv").write_text("\n".join([header, *([line] if line else []), ""]))
    keep_outcome(tmp_path, EMULATED)
    keep_outcome(tmp_path, RESULT)
    found = rows(tmp_path)
    assert [row["emulated"] for row in found] == [*([""] if line else []), "True", "False"]
    assert not line or found[0]["energy_j"] == "3.0"
