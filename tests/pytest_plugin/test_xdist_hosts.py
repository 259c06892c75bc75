"""Workers on several hosts without a shared file system: nothing is lost, nothing is doubled."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fleet_hosts import Host, make_host, module
from processes import pause

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.report import load_report

pytestmark = pytest.mark.slow

ONE_CAP = ("--gpu-device", "emulated:h200x4", "--powercap", "1")
PATIENCE_S = 120.0
PAUSE = "__import__('threading').Event().wait(0.02)"
"""Of a test, as it waits for another host's, which needs the processor."""


class Fleet:
    """A controller's folder, and hosts beside it."""

    def __init__(self, base: Path, python: Path) -> None:
        self.base = base
        self.python = python
        self.hosts: list[Host] = []
        self.control = make_host(base, python, "control", module())

    def add(self, name: str, text: str, **variables: str) -> Host:
        host = make_host(self.base, self.python, name, text, **variables)
        self.hosts.append(host)
        return host

    @property
    def command(self) -> list[str]:
        specs = [part for host in self.hosts for part in ("--tx", host.spec)]
        return [str(self.python), "-m", "pytest", "-p", "xdist", "-d", *specs]

    def run(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [*self.command, *arguments],
            cwd=self.control.path,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def fleet(tmp_path: Path, host_cache: Path, warm_python: Path) -> Fleet:
    """Nothing but files that are made again is shared by hosts."""
    assert host_cache.exists()
    return Fleet(tmp_path, warm_python)


def limit_w(host: Host, monkeypatch: pytest.MonkeyPatch, index: int) -> float:
    """The power limit of an emulated GPU of a host."""
    with monkeypatch.context() as patch:
        patch.setenv("GPUENERGY_STATE", str(host.path / "state"))
        patch.setenv("GPUENERGY_EMULATED_HOST", host.path.name)
        with open_device("emulated:h200x4", index=index) as device:
            return device.nvml.nvmlDeviceGetPowerManagementLimit(device.handle) / 1e3


def until(happened: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline_s
        pause()


def lines_in(host: Host) -> int:
    """How many measurements a host has stored, also while it measures."""
    found = list((host.path / ".gpuenergy").glob("runs/*/measurements.jsonl"))
    return sum(path.read_bytes().count(b"\n") for path in found)


def test_a_killed_worker_costs_nothing_and_hosts_merge(fleet, capsys):
    dies = module(count=3, after='number == 1 and once("died") and die()')
    first, second = fleet.add("alpha", dies), fleet.add("beta", dies)
    code, said = fleet.run(*ONE_CAP)
    assert code == 0, said
    assert "3 passed" in said
    assert "was lost in test_scale.py::test_scale[1-200W], which is run again" in said
    report = fleet.control.stored()
    # The killed worker had measured its item, which was then measured again.
    assert lines_in(first) + lines_in(second) == 4
    assert len(report.measurements) == 3
    assert lines_in(fleet.control) == 4
    assert {m.gpu_uuid for m in report.measurements} <= {s.gpu_uuid for s in report.stations}

    merged = fleet.base / "merged.json"
    folders = [str(next((host.path / ".gpuenergy/runs").iterdir())) for host in (first, second)]
    assert main(["report", *folders, "--json", str(merged)]) == 0
    capsys.readouterr()
    again = load_report(merged)
    assert sorted(again.measurements, key=lambda m: m.node_id) == sorted(
        report.measurements, key=lambda m: m.node_id
    )
    assert len(again.stations) == 2


def test_a_lost_host_and_one_that_cannot_measure_are_named(fleet, monkeypatch):
    # A host that is lost cannot be reached any more, either.
    gone = 'HERE.name == "gone" and ((HERE / "python").unlink(), die())'
    lost = fleet.add("gone", module(count=3, before=gone))
    fleet.add("good", module(count=3))
    busy = '{"foreign_process": {"pid": 4711}}'
    fleet.add("busy", module(count=3), GPUENERGY_EMULATED_FAULTS=busy)
    code, said = fleet.run(*ONE_CAP)
    assert "3 passed" in said, said
    assert code == 0
    assert {m.gpu_uuid for m in fleet.control.stored().measurements} == {
        m.gpu_uuid for m in fleet.hosts[1].stored().measurements
    }
    assert "Other processes use NVIDIA H200: 4711." in said
    assert "no worker can be started with" in said
    assert "was set to 200W: the next run on" in " ".join(said.split())
    assert limit_w(lost, monkeypatch, 0) == 200


def test_a_run_goes_on_over_other_hosts_and_models(fleet):
    cap = ("--powercap", "300W")
    fleet.add("alpha", module(count=3))
    code, said = fleet.run("--gpu-device", "emulated:h200", *cap, "-k", "0- or 1-")
    assert code == 0, said
    before = {m.node_id: m for m in fleet.control.stored().measurements}
    fleet.hosts.clear()
    fleet.add("beta", module(count=3))
    code, said = fleet.run("--gpu-device", "emulated:a100", *cap, "--gpuenergy-resume")
    after = fleet.control.stored()
    clean = [m for m in before.values() if not m.validity]
    assert f"{len(clean)} skipped" in said, said
    assert len(after.measurements) == 3
    assert all(m in after.measurements for m in clean)
    assert len(after.stations) == 2
    (other,) = {one.gpu_uuid for one in after.stations} - {m.gpu_uuid for m in clean}
    assert other in {m.gpu_uuid for m in after.board_checks}  # alone in this run, not in the report
    assert "on NVIDIA H200" in said


def test_a_host_that_a_cap_does_not_fit_is_left_out(fleet):
    fleet.add("alpha", module(count=1))
    other = fleet.add("beta", module(count=1))
    with (other.path / "pyproject.toml").open("a") as file:
        file.write('[tool.gpuenergy.powercaps]\n"NVIDIA H200" = [200, 300, 400]\n')
    code, said = fleet.run("--gpu-device", "emulated:h200", "--powercap", "4")
    assert code == 0, said
    said = " ".join(said.split())
    assert "1 passed" in said
    assert "left out: gw1 on beta: --powercap 4: this GPU's table has the caps 1 to 3" in said


def test_nothing_to_measure_with_fails_the_run_in_one_sentence(fleet):
    faults = '{"mig": {}}'
    fleet.add("alpha", module(count=1), GPUENERGY_EMULATED_FAULTS=faults)
    fleet.add("beta", module(count=1, at_import="die()"))
    code, said = fleet.run(*ONE_CAP)
    assert code == pytest.ExitCode.TESTS_FAILED
    said = " ".join(said.split())
    assert "Nothing was run, because no worker can measure: gw0 on " in said
    assert "MIG mode" in said
    assert "3 workers in a row were lost there before they had completed an item" in said


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)]
)
def test_workers_restore_their_gpus_when_the_controller_ends(fleet, monkeypatch, number):
    waits = 'number == 1 and ((HERE / "waits").touch(), __import__("time").sleep(600))'
    host = fleet.add("alpha", module(count=2, before=waits))
    with (fleet.base / "out.txt").open("w") as out:
        run = subprocess.Popen(
            [*fleet.command, "-q", *ONE_CAP], cwd=fleet.control.path, stdout=out, stderr=out
        )
    until((host.path / "waits").exists)
    assert limit_w(host, monkeypatch, 0) == 200
    run.send_signal(number)
    run.wait(PATIENCE_S)
    until(lambda: limit_w(host, monkeypatch, 0) == 700)
    assert lines_in(host) == lines_in(fleet.control) == 1


FILLS_UP = """import resource
    if HERE.name == "full":
        (ALL / "begun").touch()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, -1))
    while not (ALL / "begun").exists():
        PAUSE
""".replace("PAUSE", PAUSE)


def test_a_host_whose_disk_fills_up_leaves_its_items_to_others(fleet):
    fleet.add("full", module(count=6, before=FILLS_UP))
    fleet.add("good", module(count=6, before=FILLS_UP))
    code, said = fleet.run(*ONE_CAP)
    assert "6 passed" in said, said
    assert code == 0
    assert "left out: gw0 on full" in " ".join(said.split())
    assert "File too large" in said


def test_an_item_that_breaks_each_host_is_not_passed_on_for_ever(fleet):
    breaks = "number == 1 and __import__('resource').setrlimit(1, (100_000, -1))  # RLIMIT_FSIZE"
    fleet.add("alpha", module(count=3, before=breaks))
    fleet.add("beta", module(count=3, before=breaks))
    fleet.add("gamma", module(count=3, before=breaks))
    code, said = fleet.run(*ONE_CAP)
    assert code == 1, said
    assert "1 failed, 2 passed" in said


def test_what_a_killed_worker_has_set_is_restored_before_the_run_ends(fleet, monkeypatch):
    # The replacement of the worker that dies has no item to run: the other host runs this one.
    dies = module(count=1, after='once("died") and die()')
    hosts = [fleet.add("alpha", dies), fleet.add("beta", dies)]
    code, said = fleet.run(*ONE_CAP)
    assert code == 0, said
    assert [limit_w(host, monkeypatch, 0) for host in hosts] == [700, 700]
    assert "was set to" not in said


def test_a_host_whose_project_lacks_the_tests_is_left_out(fleet):
    # The one that lacks them collects last: pytest-xdist takes its number of items for the run's.
    fleet.add("whole", module(count=3, before="(ALL / 'begun').touch()"))
    late = module(at_import=f"while not (ALL / 'begun').exists(): {PAUSE}")
    lacking = late.replace("def test_scale", "def scale").replace("BEFORE", "pass")
    fleet.add("lacking", lacking)
    code, said = fleet.run(*ONE_CAP)
    assert code == 0, said
    assert "3 passed" in said
    assert "gw1: its project has none of the 3 items that gw0 on whole" in " ".join(said.split())
