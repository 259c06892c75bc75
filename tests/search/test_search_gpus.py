"""Searches on several GPUs: what they find, and how they continue when a part fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import pytest
from kernel_specs import BUDGET, optimize, spec_with, state_of, write
from msgspec.structs import replace
from points import MORE
from processes import has_ended
from search_folders import disk_with_room, search_killed_at

from pytest_gpuenergy.engine import GpuWorker, Settings, claim_gpus
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.search import EvaluationTask, Result, SearchBench, create_evaluator, read_spec
from pytest_gpuenergy.support import DeviceError, Worker

Capsys = pytest.CaptureFixture[str]

pytestmark = pytest.mark.slow

GPUS = ("--gpus", "emulated:h200x2", "--objective", "edp", "--seed", "1")


class Call(NamedTuple):
    """An evaluation in the process of a GPU."""

    worker: Worker
    task: EvaluationTask
    gpu: int
    real: Callable[..., Any]

    @property
    def is_baseline(self) -> bool:
        return self.task.state.id == self.task.spec.baseline.id


Instead = Callable[[Callable[[Call], Any]], None]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return write(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a search that runs without interruption."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert optimize(write(folder), folder / "out", *GPUS) == 0
    return folder / "out"


@pytest.fixture
def whole(undisturbed: Path) -> Any:
    """Return the state of that search."""
    return state_of(undisturbed)


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Instead:
    """Return a function that replaces each evaluation by a call."""
    real = Worker.call

    def install(evaluate: Callable[[Call], Any]) -> None:
        def call(worker: Worker, method: str, *arguments: Any, timeout_s: Any = None) -> Any:
            def run(timeout_s: Any = timeout_s) -> Any:
                return real(worker, method, *arguments, timeout_s=timeout_s)

            if method != "run":
                return run()
            return evaluate(Call(worker, arguments[0], worker._args[1], run))

        monkeypatch.setattr(Worker, "call", call)

    return install


def results(out: Path) -> list[Any]:
    """Return the results of all variants of a search."""
    folder = out / "kernels/_scale/variants"
    return [json.loads(path.read_text()) for path in folder.glob("*/result.json")]


def test_both_gpus_evaluate_and_the_best_is_kept(undisturbed):
    state = state_of(undisturbed)
    assert state["finished"]
    assert (state["width"], state["builds"]) == (2, BUDGET)
    assert state["gains"][-1]["accepted"]
    assert len({one["gpu"] for one in results(undisturbed)}) == 2


def test_figures_are_relative_to_the_baseline_on_the_same_gpu(undisturbed):
    baseline = undisturbed / "kernels/_scale/baseline"
    first = json.loads((baseline / "result.json").read_text())
    [path] = (baseline / "gpus").iterdir()
    other = json.loads(path.read_text())
    assert path.stem == other["gpu"] != first["gpu"]
    edp = {one["gpu"]: one["time_ms"] * one["energy_mj"] for one in (first, other)}
    costs = {node["id"]: node["cost"] for node in state_of(undisturbed)["nodes"]}
    for one in results(undisturbed):
        scale = edp[first["gpu"]] / edp[one["gpu"]]
        assert one["scale"] == pytest.approx(scale)
        assert costs[one["id"]] == pytest.approx(one["time_ms"] * one["energy_mj"] * scale)


@pytest.mark.thorough
def test_kernels_of_a_folder_are_searched_on_both_gpus(tmp_path):
    for name in ("one", "two"):
        write(tmp_path, spec_with(name=name))
    assert optimize(tmp_path, tmp_path / "out", *GPUS, "--budget-builds", "2") == 0
    for name in ("one", "two"):
        results = (tmp_path / f"out/kernels/_{name}/variants").glob("*/result.json")
        assert len({json.loads(path.read_text())["gpu"] for path in results}) == 2


def test_the_process_of_a_gpu_evaluates_as_a_search_on_this_gpu_does(tmp_path):
    spec = read_spec(write(tmp_path))
    process = GpuWorker("emulated:h200x2", 1)
    found = process.run(EvaluationTask(spec, Metric.EDP, 7, spec.baseline, (spec.baseline,)))
    process.rest()
    process.close()
    with open_device("emulated:h200x2", index=1) as device:
        expected = SearchBench(spec, device, Metric.EDP, 7).evaluate(spec.baseline)
    assert replace(found, steps_s={}) == replace(expected, steps_s={})


def test_nothing_is_evaluated_on_a_gpu_that_is_used_alone(tmp_path, monkeypatch):
    spec = read_spec(write(tmp_path))
    asked: list[tuple[int, str]] = []

    def call(worker: Worker, method: str, *_: Any, timeout_s: Any = None) -> Any:  # noqa: ARG001
        asked.append((worker._args[1], method))
        return Result(id="", outcome="correct", emulated=True, objective=Metric.EDP)

    monkeypatch.setattr(Worker, "call", call)
    with ExitStack() as stack:
        gpus = claim_gpus(
            stack,
            "emulated:h200x2",
            Settings("current", "current", False),
            print,
            "--gpus",
        )
        evaluator = create_evaluator(gpus, spec, Metric.EDP, 0)
        evaluator.start(0, spec.baseline)
        with evaluator.alone():
            waiting = evaluator.start(0, spec.baseline)
            for _ in range(9):
                evaluator.start(1, spec.baseline).result()
            of_first = [method for gpu, method in asked if gpu == 0]
            assert of_first == ["is_ready", "run", "rest"]
        waiting.result()


@pytest.mark.thorough
@pytest.mark.parametrize(("earlier", "later"), [(1, 2), MORE(2, 1)])
def test_it_does_not_matter_which_result_comes_first(
    spec, tmp_path, whole, instead, earlier, later
):
    is_there = Event()

    def evaluate(call: Call) -> Any:
        if call.task.state.id == whole["nodes"][later]["id"]:
            assert is_there.wait(timeout=60)
        found = call.real()
        if call.task.state.id == whole["nodes"][earlier]["id"]:
            is_there.set()
        return found

    instead(evaluate)
    assert optimize(spec, tmp_path / "out", *GPUS) == 0
    assert state_of(tmp_path / "out") == whole


@pytest.mark.thorough
def test_each_variant_says_where_it_ran_and_can_be_run_there_alone(undisturbed, tmp_path):
    out = shutil.copytree(undisturbed, tmp_path / "copy", symlinks=True)
    for place in (out / "kernels/_scale/variants").iterdir():
        before = json.loads((place / "result.json").read_text())
        assert json.loads((place / "run.json").read_text())["gpu_uuid"] == before["gpu"]
        worker = ["--worker", str(place / "control.json")]
        assert optimize(Path("unused"), tmp_path / "out", *worker) == (
            0 if before["time_ms"] else 1
        )
        after = json.loads((place / "runner_result.json").read_text())
        ignored = {"steps_s": {}, "scale": 1.0}
        assert after | ignored == before | ignored


def test_a_search_goes_on_with_fewer_gpus(spec, undisturbed, tmp_path, whole):
    out = shutil.copytree(undisturbed, tmp_path / "out", symlinks=True)
    one = ("--gpus", "emulated:h200", "--budget-builds", str(BUDGET + 1))
    assert optimize(spec, out, *GPUS, *one, "--resume") == 0
    *before, added = state_of(out)["nodes"]
    assert [node["id"] for node in before] == [node["id"] for node in whole["nodes"]]
    assert added["outcome"] == "correct"


def test_a_killed_process_is_replaced(spec, tmp_path, whole, instead, capsys):
    killed: list[str] = []
    doomed = {whole["nodes"][number]["id"] for number in (0, 2)}

    def evaluate(call: Call) -> Any:
        if call.task.state.id in doomed - {*killed}:
            killed.append(call.task.state.id)
            assert call.worker.pid is not None
            os.kill(call.worker.pid, signal.SIGKILL)
        return call.real()

    instead(evaluate)
    assert optimize(spec, tmp_path / "out", *GPUS) == 0
    assert {*killed} == doomed
    assert state_of(tmp_path / "out") == whole
    assert "is tried once more, because: The process" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize("hangs", [False, True])
def test_a_process_that_hangs_or_is_killed_while_it_waits_is_replaced(
    spec, tmp_path, whole, instead, hangs
):
    hung: list[str] = []

    def evaluate(call: Call) -> Any:
        if hangs and not call.is_baseline and call.task.state.id not in hung:
            hung.append(call.task.state.id)
            return call.real(timeout_s=0)
        found = call.real()
        if not hangs:
            assert call.worker.pid is not None
            os.kill(call.worker.pid, signal.SIGKILL)
        return found

    instead(evaluate)
    assert optimize(spec, tmp_path / "out", *GPUS) == 0
    assert len(hung) == (BUDGET if hangs else 0)
    assert state_of(tmp_path / "out") == whole


@pytest.mark.thorough
def test_a_variant_that_ends_its_process_twice_has_failed(spec, tmp_path, whole, instead):
    bad = whole["nodes"][2]["id"]

    def evaluate(call: Call) -> Any:
        if call.task.state.id == bad:
            call.worker.kill()
            return call.real(timeout_s=0)
        return call.real()

    instead(evaluate)
    assert optimize(spec, tmp_path / "out", *GPUS) == 0
    state = state_of(tmp_path / "out")
    assert state["finished"]
    outcomes = {node["id"]: node["outcome"] for node in state["nodes"]}
    assert outcomes.pop(bad) == "timeout"
    assert set(outcomes.values()) == {"correct"}


def test_without_a_lost_gpu_the_search_goes_on(spec, tmp_path, whole, instead, capsys):
    def evaluate(call: Call) -> Any:
        if call.gpu == 1 and not call.is_baseline:
            raise DeviceError("It has fallen off the bus.")
        return call.real()

    instead(evaluate)
    assert optimize(spec, tmp_path / "out", *GPUS) == 0
    ids = [node["id"] for node in whole["nodes"]]
    assert [node["id"] for node in state_of(tmp_path / "out")["nodes"]] == ids
    assert len({one["gpu"] for one in results(tmp_path / "out")}) == 1
    error = capsys.readouterr().err
    assert error.count("It has fallen off the bus.") == 1
    assert "the search goes on without GPU-" in error


@pytest.mark.thorough  # of one GPU: test_a_lost_gpu_refuses_no_variant
def test_without_any_gpu_it_ends_and_can_be_resumed(
    spec, tmp_path, whole, instead, monkeypatch, capsys
):
    def evaluate(call: Call) -> Any:
        if call.task.state.id in (whole["nodes"][0]["id"], whole["nodes"][1]["id"]):
            return call.real()
        raise DeviceError("It has fallen off the bus.")

    instead(evaluate)
    assert optimize(spec, tmp_path / "out", *GPUS) == 1
    assert "error: It has fallen off the bus." in capsys.readouterr().err
    monkeypatch.undo()
    assert optimize(spec, tmp_path / "out", *GPUS, "--resume") == 0
    assert state_of(tmp_path / "out") == whole


@pytest.mark.thorough
def test_a_gpu_on_which_the_baseline_fails_is_not_used(spec, tmp_path, instead, capsys):
    def evaluate(call: Call) -> Any:
        found: Result = call.real()
        if call.gpu == 1 and call.is_baseline:
            return replace(found, time_ms=None, outcome="correctness", message="It is wrong.")
        return found

    instead(evaluate)
    assert optimize(spec, tmp_path / "out", *GPUS) == 0
    assert len({one["gpu"] for one in results(tmp_path / "out")}) == 1
    assert "because the baseline fails there (correctness): It is wrong." in capsys.readouterr().err


@pytest.mark.thorough
def test_ctrl_c_ends_it_after_what_is_running(spec, tmp_path, whole, instead, monkeypatch, capsys):
    pids: set[int | None] = set()

    def evaluate(call: Call) -> Any:
        pids.add(call.worker.pid)
        if call.task.state.id == whole["nodes"][1]["id"]:
            os.kill(os.getpid(), signal.SIGINT)
        return call.real()

    instead(evaluate)
    assert optimize(spec, tmp_path / "out", *GPUS) == 130
    monkeypatch.undo()
    assert "everything evaluated is kept in" in capsys.readouterr().err
    stopped = state_of(tmp_path / "out")["nodes"]
    assert stopped == whole["nodes"][: len(stopped)]
    assert 2 <= len(stopped) <= 3
    assert len(pids) == 2
    assert all(has_ended(pid) for pid in pids if pid is not None)
    assert optimize(spec, tmp_path / "out", *GPUS, "--resume") == 0
    assert state_of(tmp_path / "out") == whole


@pytest.mark.thorough
@pytest.mark.parametrize("files", [3, 12, 27])
def test_a_full_disk_loses_nothing(spec, tmp_path, whole, files, capsys):
    with disk_with_room(files):
        assert optimize(spec, tmp_path / "out", *GPUS) == 1
    error = capsys.readouterr().err
    assert "(No space left on device): make room, then continue with --resume." in error
    assert optimize(spec, tmp_path / "out", *GPUS, "--resume") == 0
    assert state_of(tmp_path / "out") == whole


@pytest.mark.thorough
@pytest.mark.parametrize("files", [5, 14, 23])
def test_a_killed_search_leaves_no_process_and_ends_with_the_same_result(
    spec, tmp_path, whole, files
):
    pids = search_killed_at(files, spec, tmp_path / "out", *GPUS)
    assert len(pids) == 2
    assert all(map(has_ended, pids))
    assert optimize(spec, tmp_path / "out", *GPUS, "--resume") == 0
    assert state_of(tmp_path / "out") == whole
