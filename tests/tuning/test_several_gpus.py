"""Searches on several GPUs: what the log says, and what becomes of them when a part fails."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tuning_fakes import FakeDevice, WordSpace, time_by_digest, word_kernel

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.emulator import DEFAULT_PROFILE
from pytest_gpuenergy.engine import Evaluation, HostLostError, Member, Team
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.support import DeviceError, WorkerDiedError, WorkerTimeoutError
from pytest_gpuenergy.tuning import TimingTask, Tuner, TuneSettings, TuningGpus
from pytest_gpuenergy.workloads import Conv2d, Workload

ONE = Conv2d.of("one", 1, 4, 4, 1, 1, 1, 1, 1, 0)
WORDS = [f"word{number}" for number in range(12)]
WATTS = 300.0


class Compiling(FakeDevice):
    """A device that compiles whatever it is given."""

    def compile(self, kernel: Kernel) -> None:
        pass

    def renew(self) -> None:
        pass


@dataclass
class Board:
    """A GPU whose kernels take ``slow`` times as long, at ``hungry`` times the power.

    ``instead`` is called before each task with its number, and may raise what goes wrong.
    """

    uuid: str
    slow: float = 1.0
    hungry: float = 1.0
    instead: Callable[[int, TimingTask], object] = lambda _, __: None
    move: Callable[[str], object] = lambda _: None
    done: list[str] = field(default_factory=list)
    announced: list[str] = field(default_factory=list)

    def call(self, method: str, *args: Any, timeout_s: float | None = None) -> Any:  # noqa: ARG002
        if method != "run":
            return None
        (task,) = args
        found = self.instead(len(self.done), task)
        self.done.append(task.job.kernel.source)
        if isinstance(found, Evaluation):
            return found
        time_ms = time_by_digest(task.job.kernel) * self.slow if task.runs else None
        power_w = WATTS * self.hungry if task.power else None
        return Evaluation(outcome="timed", time_ms=time_ms, power_w=power_w, gpu=self.uuid)

    def retire(self) -> None:
        pass

    def prepare(self, kernels: Sequence[Any]) -> None:
        self.announced += [kernel.source for kernel in kernels]


@dataclass
class Found:
    folder: Path
    told: list[str]

    @property
    def trials(self) -> list[dict[str, Any]]:
        """The last line about each trial."""
        lines = (self.folder / "one" / "raw" / "trials.jsonl").read_text().splitlines()
        found: dict[int, dict[str, Any]] = {}
        for one in map(json.loads, lines):
            found[one["index"]] = {name: v for name, v in one.items() if name != "elapsed_s"}
        return [found[index] for index in sorted(found)]

    @property
    def times(self) -> list[float]:
        return [one["time_ms"] for one in self.trials]


def tune(
    folder: Path,
    boards: Sequence[Board],
    trials: int = 12,
    objective: Metric = Metric.TIME,
) -> Found:
    """Search on these boards, further if there was a search already."""
    found = Found(folder, [])
    device = Compiling(time_by_digest)

    def space(workload: Workload) -> WordSpace:
        return WordSpace(workload, [WORDS[start : start + 6] for start in range(0, 12, 6)])

    members = [Member(one.uuid, one, prepare=one.prepare) for one in boards]
    with Team(members, found.told.append) as team:
        for board, member in zip(boards, members, strict=True):
            board.move = member.move
        tuner = Tuner(
            gpus=TuningGpus((device,) * len(boards), (lambda *_, **__: None,) * len(boards), team),
            make_space=space,
            folder=folder,
            settings=TuneSettings(trials, 2, objective, energy=False, resume=True),
            tell=found.told.append,
            live=None,
            stop=Event(),
        )
        assert len([*tuner.tune([ONE])]) == 1
    return found


def truth() -> list[float]:
    """What the words take on the board where a search begins."""
    return [time_by_digest(word_kernel(word)) for word in WORDS]


def two(**changes: Any) -> list[Board]:
    return [Board("GPU-a"), Board("GPU-b", 1.05, 1.04, **changes)]


def test_both_gpus_time_candidates_and_figures_are_those_of_the_first(tmp_path):
    found = tune(tmp_path, two())
    assert found.times == pytest.approx(truth())
    assert {one["gpu"] for one in found.trials} == {"GPU-a", "GPU-b"}
    scales = {one["gpu"]: one["time_scale"] for one in found.trials}
    assert scales == {"GPU-a": 1.0, "GPU-b": pytest.approx(1 / 1.05)}
    assert found.told[0] == "one: searching on 2 x NVIDIA H200 (emulated) with words"


def test_powers_are_relative_to_the_reference_on_the_same_gpu(tmp_path):
    found = tune(tmp_path, two(), objective=Metric.ENERGY)
    measured = [one for one in found.trials if "power_w" in one]
    assert {one["gpu"] for one in measured} == {"GPU-a", "GPU-b"}
    assert [one["power_w"] for one in measured] == pytest.approx([WATTS] * len(measured))
    assert [one["energy_mj"] for one in measured] == pytest.approx(
        [WATTS * one["time_ms"] for one in measured]
    )


def test_the_log_does_not_depend_on_which_gpu_answers_first(tmp_path):
    first = tune(tmp_path / "first", two())
    waits = Event()

    def wait(number: int, _: TimingTask) -> None:
        if number == 1:  # after the reference
            assert waits.wait(timeout=60)

    def go(number: int, _: TimingTask) -> None:
        if number == 3:
            waits.set()

    late = [Board("GPU-a", instead=go), Board("GPU-b", 1.05, 1.04, wait)]
    assert tune(tmp_path / "late", late).trials == first.trials


def test_candidates_of_a_lost_gpu_are_timed_on_the_other(tmp_path):
    def lose(number: int, _: TimingTask) -> None:
        if number >= 2:
            raise DeviceError("The GPU has fallen off the bus.")

    found = tune(tmp_path, two(instead=lose))
    assert found.times == pytest.approx(truth())
    assert [one["gpu"] for one in found.trials].count("GPU-b") == 1
    assert "the search goes on without GPU-b: The GPU has fallen off the bus." in found.told


def test_a_candidate_whose_host_is_lost_is_timed_on_another_gpu(tmp_path):
    def lose(number: int, _: TimingTask) -> None:
        if number == 2:
            two_boards[1].instead = lambda *_: None
            raise HostLostError("h2 was lost: The host burns.")

    two_boards = two(instead=lose)
    found = tune(tmp_path, two_boards)
    assert found.times == pytest.approx(truth())
    assert sum("is tried once more, because: h2 was lost" in line for line in found.told) == 1
    assert not any("goes on without" in line for line in found.told)
    assert two_boards[1].uuid in {one["gpu"] for one in found.trials[6:]}  # it was reached again


def test_a_candidate_that_loses_two_hosts_has_failed(tmp_path):
    def lose(_: int, task: TimingTask) -> None:
        if task.job.kernel.source == "word3":
            raise HostLostError("The host burns.")

    found = tune(tmp_path, [Board("GPU-a", instead=lose), Board("GPU-b", instead=lose)])
    assert found.trials[3]["outcome"] == "runtime"
    assert found.trials[3]["message"].startswith("It was tried twice, and each time the host was")
    assert [one["outcome"] for one in found.trials].count("timed") == 11


def test_a_gpu_in_the_place_of_a_lost_one_measures_the_reference_first(tmp_path):
    moved = Board("GPU-b", 1.05)

    def move(number: int, _: TimingTask) -> None:
        if number == 3:
            moved.uuid, moved.slow = "GPU-c", 0.8
            moved.move("GPU-c")

    moved.instead = move
    found = tune(tmp_path, [Board("GPU-a"), moved])
    assert found.times == pytest.approx(truth())
    assert {one["gpu"] for one in found.trials} == {"GPU-a", "GPU-b", "GPU-c"}


def test_each_gpu_hears_early_which_kernels_it_will_have(tmp_path):
    boards = two()
    tune(tmp_path, boards)
    assert {one for board in boards for one in board.announced} == set(WORDS[1:])
    assert set(boards[1].announced) <= set(boards[1].done)


def test_when_no_gpu_is_left_the_trials_so_far_remain(tmp_path):
    def lose(number: int, _: TimingTask) -> None:
        if number >= 4:
            raise DeviceError("The GPU has fallen off the bus.")

    with pytest.raises(DeviceError, match="off the bus"):
        tune(tmp_path, [Board("GPU-a", instead=lose), Board("GPU-b", instead=lose)])
    before = Found(tmp_path, []).times
    assert 0 < len(before) < 12
    assert tune(tmp_path, [Board("GPU-a")]).times == pytest.approx(truth())


@pytest.mark.parametrize(
    ("error", "outcome"), [(WorkerDiedError, "runtime"), (WorkerTimeoutError, "timeout")]
)
def test_a_candidate_whose_process_ends_twice_has_failed(tmp_path, error, outcome):
    def end(_: int, task: TimingTask) -> None:
        if task.job.kernel.source == "word3":
            raise error("It has ended.")

    found = tune(tmp_path, [Board("GPU-a", instead=end), Board("GPU-b", instead=end)])
    failed = found.trials[3]
    assert failed["outcome"] == outcome
    assert failed["message"] == "It was tried twice. It has ended."
    others = [one for one in found.trials if one is not failed and one["index"] != 3]
    assert all(one["outcome"] == "timed" for one in others)
    assert any("is tried once more, because: It has ended." in line for line in found.told)


def test_a_gpu_on_which_the_reference_fails_is_not_used(tmp_path):
    def fail(_: int, __: TimingTask) -> Evaluation:
        return Evaluation(outcome="runtime", message="It crashed.", gpu="GPU-b")

    found = tune(tmp_path, two(instead=fail))
    assert found.times == pytest.approx(truth())
    assert {one["gpu"] for one in found.trials} == {"GPU-a"}
    assert any("reference kernel fails there (runtime): It crashed." in one for one in found.told)


def test_a_candidate_that_fails_is_not_the_reference(tmp_path):
    def fail(_: int, task: TimingTask) -> Evaluation | None:
        if task.job.kernel.source in ("word0", "word1"):
            return Evaluation(outcome="runtime", message="It crashed.", gpu="GPU-a")
        return None

    found = tune(tmp_path, [Board("GPU-a", instead=fail), Board("GPU-b", 1.05)])
    assert [one["outcome"] for one in found.trials[:3]] == ["runtime", "runtime", "timed"]
    times = [one["time_ms"] for one in found.trials[2:]]
    assert times == pytest.approx(truth()[2:])


@pytest.mark.parametrize(
    "later",
    [
        [Board("GPU-c", 1.2)],
        [Board("GPU-b", 1.05), Board("GPU-c", 1.2), Board("GPU-d", 0.9)],
    ],
)
def test_a_search_goes_on_over_other_gpus_in_the_same_figures(tmp_path, later):
    tune(tmp_path, two(), trials=7)
    found = tune(tmp_path, later)
    assert found.times == pytest.approx(truth())
    assert {one["gpu"] for one in found.trials[7:]} <= {one.uuid for one in later}


def test_a_single_gpu_that_was_always_alone_needs_no_reference(tmp_path):
    board = Board("GPU-a")
    found = tune(tmp_path, [board])
    assert board.done == []
    assert "gpu" not in found.trials[0]


@pytest.mark.slow
def test_tune_times_candidates_on_all_emulated_gpus(tmp_path, capsys):
    shape = ["--shape", "tiny=gemm:MNK=32 layout=nt", "--objective", "energy", "--no-energy"]
    words = ["tune", *shape, "--trials", "3", "--keep", "1", "--out", str(tmp_path)]
    assert main([*words, "--gpu-device", "emulated:h200x2"]) == 0
    lines = (tmp_path / "tiny/raw-template/trials.jsonl").read_text().splitlines()
    trials = [json.loads(line) for line in lines]
    first, second = (DEFAULT_PROFILE.uuid(index) for index in range(2))
    assert {one["gpu"] for one in trials} == {first, second}
    assert trials[0]["power_w"] > 0  # of the reference
    assert {one["index"] for one in trials} == {0, 1, 2}
    assert "searching on 2 x NVIDIA H200 (emulated)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [
        ("emulated,emulated", "names GPU-.* twice"),
        ("emulated,emulated:h100", "figures cannot be compared"),
        ("emulated,", "has an empty name"),
        ("emulated;emulated", "is not understood"),
    ],
)
def test_gpus_that_cannot_work_together_are_refused(tmp_path, capsys, gpus, reason):
    words = ["gemm", "tune", "MNK=32", "--tuner", "template", "--out", str(tmp_path)]
    assert main([*words, "--gpu-device", gpus]) == 2
    assert re.search(reason, capsys.readouterr().err)
