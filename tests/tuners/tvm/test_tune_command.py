"""``gpuenergy tune`` on the command line."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from processes import KILLED_UNDER_A_CAP, said_through

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.control import Setpoint, enforced_setpoint
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import load_records
from pytest_gpuenergy.tuners.tvm import tvm_requirements as requirements
from pytest_gpuenergy.tuning import RawLog, Trial, Tuner, TuneResult, find_records, read_trials
from pytest_gpuenergy.workloads import Workload, parse_shape

EMULATED = ["--gpu-device", "emulated"]
SHAPE = "tiny=1,4,4,4,4,1,1,1,0"
WORKLOAD = parse_shape(SHAPE)


@pytest.fixture(autouse=True)
def tvm_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """For commands in this process, whose search is a stand-in."""
    monkeypatch.setattr(requirements, "check_tvm", lambda: "0.27.0")


@dataclass(frozen=True)
class Tuned:
    """What a command printed, and the folder it wrote."""

    out: str
    err: str
    folder: Path


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    folder, out, err = tmp_path_factory.mktemp("tuned"), io.StringIO(), io.StringIO()
    few = ["--trials", "3", "--keep", "1", "--no-energy", "--strategy", "replay-trace"]
    options = [*few, "--json", "--out", str(folder)]
    with redirect_stdout(out), redirect_stderr(err):
        assert main(["tune", *EMULATED, "--shape", SHAPE, *options]) == 0
    return Tuned(out.getvalue(), err.getvalue(), folder)


@pytest.mark.tvm
def test_it_tunes_on_the_emulated_gpu(tuned):
    (outcome,) = json.loads(tuned.out)
    assert (outcome["workload"], outcome["tried"], outcome["kept"]) == ("tiny", 3, 1)
    assert (outcome["gpu"], outcome["emulated"]) == ("NVIDIA H200 (emulated)", True)
    assert "tiny (emulated): 3 of 3 trials" in tuned.err
    path = find_records(tuned.folder, WORKLOAD)
    assert outcome["path"] == str(path)
    assert load_records(path).gpu.endswith("(emulated)")
    assert load_records(path).recorded(1) == ()


@pytest.mark.tvm
def test_it_measures_later(tuned, tmp_path, capsys):
    shutil.copytree(tuned.folder, tmp_path, dirs_exist_ok=True)
    options = ["--trials", "3", "--keep", "1", "--resume", "--out", str(tmp_path)]
    assert main(["tune", *EMULATED, "--shape", SHAPE, *options]) == 0
    gpu, header, row = capsys.readouterr().out.splitlines()
    assert gpu == "NVIDIA H200 (emulated)"
    assert header.split()[:4] == ["workload", "trials", "valid", "kept"]
    assert row.split()[:4] == ["tiny", "3", "3", "1"]
    (figures,) = load_records(find_records(tmp_path, WORKLOAD)).recorded(1)
    assert figures.energy_mj == pytest.approx(figures.time_ms * figures.power_w, rel=0.05)


@pytest.mark.tvm
def test_an_outcome_that_was_lost_is_written_by_resume(tuned, tmp_path, capsys):
    shutil.copytree(tuned.folder, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "performance")
    (tmp_path / "tuning.csv").write_text("")  # as a full disk leaves it
    resume = ["--trials", "3", "--no-energy", "--resume", "--keep", "1", "--out", str(tmp_path)]
    for passed_over in (False, True):
        assert main(["tune", *EMULATED, "--shape", SHAPE, *resume]) == 0
        assert ("already complete" in capsys.readouterr().err) == passed_over
    (row,) = csv.DictReader((tmp_path / "tuning.csv").read_text().splitlines())
    assert row["workload"] == "tiny"
    assert len(list((tmp_path / "performance").glob("tiny_*.json"))) == 1


@pytest.mark.tvm
def test_what_tunings_came_to_is_a_table(tuned):
    (row,) = csv.DictReader((tuned.folder / "tuning.csv").read_text().splitlines())
    assert datetime.fromisoformat(row["started"]) <= datetime.now(UTC)
    assert (row["workload"], row["tried"], row["kept"]) == ("tiny", "3", "1")
    assert (row["gpu"], row["emulated"]) == ("NVIDIA H200 (emulated)", "True")
    (rate,) = (tuned.folder / "performance").glob("tiny_conv2d_*.json")
    comment, figure = rate.read_text().splitlines()
    assert comment == "# NVIDIA H200 (emulated): recorded or modelled figures"
    assert int(figure) == pytest.approx(float(row["best_gflops"]), abs=1)


def test_equal_shapes_are_tuned_once(tmp_path, capsys, monkeypatch):
    tuned = tuned_names(monkeypatch)
    arguments = ["--case", "case7,resnet09", "--network", "cases", "--out", str(tmp_path)]
    assert main(["tune", *EMULATED, *arguments]) == 0
    assert tuned == ["case7", *(f"case{k}" for k in range(1, 7))]
    assert "resnet09: has the same shape as case7 and uses its records" in capsys.readouterr().err


def test_quick_takes_the_ends(tmp_path, monkeypatch):
    tuned = tuned_names(monkeypatch)
    assert main(["tune", *EMULATED, "--quick", "--out", str(tmp_path)]) == 0
    assert tuned == ["case1", "case7"]


def test_what_was_tuned_is_told_when_the_rest_was_not(tmp_path, capsys, monkeypatch):
    def half(_: Tuner, workloads: Sequence[Workload]) -> Iterator[TuneResult]:
        yield result_of(workloads[0])
        raise InputError("1 of 2 workloads could not be tuned.")

    monkeypatch.setattr(Tuner, "tune", half)
    arguments = ["--case", "case6,case7", "--out", str(tmp_path)]
    assert main(["tune", *EMULATED, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines()[2].split()[0] == "case6"
    assert "1 of 2 workloads could not be tuned." in err


def test_a_search_runs_under_its_power_cap_and_leaves_the_prior_one(tmp_path, monkeypatch):
    enforced = []

    def look(tuner: Tuner, workloads: Sequence[Workload]) -> Iterator[TuneResult]:
        enforced.append(enforced_setpoint(tuner.device))
        yield from map(result_of, workloads)

    monkeypatch.setattr(Tuner, "tune", look)
    monkeypatch.delenv("GPUENERGY_CAP_WRITES")
    arguments = ["--case", "case7", "--powercap", "300W", "--out", str(tmp_path)]
    assert main(["tune", *EMULATED, *arguments]) == 0
    assert enforced == [Setpoint(300.0)]
    with open_device("emulated") as device:
        assert enforced_setpoint(device) == Setpoint(700.0)


def tuned_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the workloads that the command tunes, instead of tuning them."""
    names: list[str] = []

    def note(_: Tuner, workloads: Sequence[Workload]) -> Iterator[TuneResult]:
        for workload in workloads:
            names.append(workload.name)
            yield result_of(workload)

    monkeypatch.setattr(Tuner, "tune", note)
    return names


def result_of(workload: Workload) -> TuneResult:
    path = Path(f"{workload.name}_conv2d.json")
    return TuneResult(
        workload.name, path, "2026-11-21T00:00:00+00:00", 1, 1, 1, 1.0, 1.0, (1.0,), (), 1, 1, None
    )


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_tried(tmp_path, monkeypatch, capsys):
    add = RawLog.add

    def add_and_interrupt(log: RawLog, recipe: str, trial: Trial) -> Trial:
        added = add(log, recipe, trial)
        signal.raise_signal(signal.SIGINT)
        return added

    monkeypatch.setattr(RawLog, "add", add_and_interrupt)
    product = ["--shape", "gemm:M=8 N=8 K=16", "--tuner", "template", "--trials", "3"]
    assert main(["tune", *EMULATED, *product, "--no-energy", "--out", str(tmp_path)]) == 130
    assert "its trials are kept in" in capsys.readouterr().err
    (journal,) = tmp_path.rglob("trials.jsonl")
    assert len(read_trials(journal)) == 1
    assert len(journal.with_name("parameters.jsonl").read_text().splitlines()) == 1


HANGS = """
import sys
from pathlib import Path
from pytest_gpuenergy.cli import main
from pytest_gpuenergy.tuners.tvm import tvm_requirements
from pytest_gpuenergy.tuning.tuner import Tuner

def hang(tuner, workloads):
    Path(sys.argv[1]).write_text("ready")
    while True:
        tuner.stop.wait(0.01)
    yield

Tuner.tune = hang
tvm_requirements.check_tvm = lambda: "0.27.0"
sys.exit(main(["tune", *sys.argv[2:]]))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("machine_apart")
def test_a_second_signal_ends_a_tuning_that_hangs_and_puts_the_limit_back(tmp_path):
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    options = ["--case", "case7", "--powercap", "300W", "--out", str(tmp_path / "out"), *EMULATED]
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS, str(ready), *options], stderr=subprocess.DEVNULL
    )
    assert said_through(ready) == "ready"
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 130
    with open_device("emulated") as device:
        assert enforced_setpoint(device) == Setpoint(700.0)


@pytest.mark.usefixtures("machine_apart")
def test_a_tuning_begins_with_what_a_killed_run_has_left(tmp_path, monkeypatch, capsys):
    subprocess.run([sys.executable, "-c", KILLED_UNDER_A_CAP], check=False)
    tuned_names(monkeypatch)
    assert main(["tune", *EMULATED, "--case", "case7", "--out", str(tmp_path)]) == 0
    assert "is back at 700 W" in capsys.readouterr().err
    with open_device("emulated") as device:
        assert enforced_setpoint(device) == Setpoint(700.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "case99"], "no workload 'case99'"),
        (["--case", ","], "No workload is named"),
        (["--network", "alexnet"], "no network 'alexnet'"),
        (["--shape", "1,2,3"], "--shape '1,2,3' is not understood"),
        (["--shape", "fft:1024"], "There is no kind of workload 'fft': choose one of conv2d"),
        (["--case", "case1", "--objective", "speed"], "--objective"),
        (["--case", "case1", "--powercap", "9", *EMULATED], "--powercap 9: this GPU's table has"),
        (["--case", "case1", "--powercap", "all", *EMULATED], "runs under a single power limit"),
        (["--case", "case1", "--trials", "many"], "'many' is not a number from 1 to 30000"),
        (["--case", "case1", "--trials", "0"], "0 asks for no trials: give at least 1; with"),
        (["--case", "case1", "--keep", "0"], "'0' is not a number from 1 to 25"),
        (["--case", "case1", "--keep", "26"], "'26' is not a number from 1 to 25"),
        (["--case", "case1", "--seed", "-1"], "--seed"),
    ],
)
def test_wrong_usage_is_told(tmp_path, capsys, arguments, message):
    assert main(["tune", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_device_that_is_not_there_is_told(tmp_path, capsys):
    arguments = ["--case", "case1", "--out", str(tmp_path), "--gpu-device", "nonsense"]
    assert main(["tune", *arguments]) == 2
    assert "--gpu-device 'nonsense' is not understood" in capsys.readouterr().err


def test_a_tuning_that_is_complete_ends_well_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Tuner, "tune", lambda _, __: iter(()))
    arguments = ["--case", "case1,case7", "--out", str(tmp_path)]
    assert main(["tune", *EMULATED, *arguments]) == 0
    assert capsys.readouterr().out == "already complete: 2 of 2\n"
    assert main(["tune", *EMULATED, *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_records_are_written_to_tuned_unless_told_otherwise(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuned").mkdir()
    tuned_names(monkeypatch)
    assert main(["tune", *EMULATED, "--case", "5"]) == 0
    assert (tmp_path / "tuned" / "tuning.csv").is_file()
    assert "case5" in capsys.readouterr().out


def test_a_quick_tuning_keeps_the_two_fastest(tmp_path, monkeypatch):
    settings = []

    def look(tuner: Tuner, workloads: Sequence[Workload]) -> Iterator[TuneResult]:
        settings.append((tuner.settings.keep, tuner.settings.best_only))
        yield from map(result_of, workloads)

    monkeypatch.setattr(Tuner, "tune", look)
    assert main(["tune", *EMULATED, "--quick", "--out", str(tmp_path)]) == 0
    assert settings == [(2, True)]
