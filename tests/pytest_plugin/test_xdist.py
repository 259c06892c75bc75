"""pytest-xdist's workers share one run, and each has its own GPU if there are several."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from small_project import BENCH

from pytest_gpuenergy.opening import open_device

pytestmark = pytest.mark.slow

TWO = ("-p", "xdist", "-n", "2")
AUTO = ("-p", "xdist", "-n", "auto")
# Called when our hook does not decide, as pytest-xdist's own is.
TWO_CORES = """
import pytest

def pytest_xdist_auto_num_workers():
    return 2

def pytest_xdist_setupnodes(specs):
    pytest.exit(f"{len(specs)} workers would start")
"""
MEETS = """
import os, threading, time
import pytest
from pathlib import Path
from parts import LAUNCH, SCALE, SOURCE

def meet(name):
    # Each worker waits for the other in its first item, so that neither does everything alone.
    Path(name + os.environ["PYTEST_XDIST_WORKER"]).touch()
    deadline_s = time.monotonic() + 60
    while len(list(Path().glob(name + "gw*"))) < 2 and time.monotonic() < deadline_s:
        threading.Event().wait(0.01)

@pytest.mark.parametrize("number", range(4))
def test_scale(number, powercap, gpu, load_kernel, energy_benchmark):
    meet("met-")
    limit_mw = gpu.nvml.nvmlDeviceGetPowerManagementLimit(gpu.handle)
    assert limit_mw == powercap.power_limit_w * 1000
    energy_benchmark(load_kernel(SOURCE, **LAUNCH), workload=SCALE)
"""


def limits_w(count: int) -> list[float]:
    """The current power limits of the first emulated H200s."""
    found = []
    for index in range(count):
        with open_device(f"emulated:h200x{count}", index=index) as device:
            limit_mw = device.nvml.nvmlDeviceGetPowerManagementLimit(device.handle)
            found.append(limit_mw / 1e3)
    return found


def test_workers_write_one_report(project):
    project.ini('gpuenergy_json = "r.json"')
    marked = BENCH.replace("def test", '@pytest.mark.xdist_group("mine")\ndef test')
    project.module(f"import pytest\n{marked}")
    arguments = (*TWO, "--gpu-device", "emulated:h200x2", "--dist", "loadgroup")
    result = project.run(*arguments)
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(["EMULATED NVIDIA H200: results are verified, *"])
    report = project.report()
    assert sorted(m.cap for m in report.measurements) == ["200W", "325W", "450W", "575W", "700W"]
    assert len({m.gpu_uuid for m in report.measurements}) == 1
    assert not any("@" in m.node_id for m in report.measurements)  # as pytest-xdist marks groups
    assert (project.path / "r.json").exists()
    flagged = sum(bool(m.validity) for m in report.measurements)
    project.run(*arguments, "-n", "1", "--gpuenergy-resume").assert_outcomes(
        passed=flagged, skipped=5 - flagged
    )


def test_each_worker_has_a_gpu_with_its_own_cap_and_lock(project):
    project.module(MEETS)
    arguments = (*TWO, "--gpu-device", "emulated:h200x2", "--powercap", "1,3")
    project.run(*arguments).assert_outcomes(passed=8)
    measurements = project.report().measurements
    assert len({m.node_id for m in measurements}) == 8
    with open_device("emulated") as first, open_device("emulated:h200x2", index=1) as second:
        uuids = {first.uuid, second.uuid}
    counts = Counter(m.gpu_uuid for m in measurements)
    assert set(counts) == uuids
    for m in measurements:
        assert m.power_limit_w == m.enforced_power_limit_w
    assert limits_w(2) == [700, 700]


def workers_of(pytester: pytest.Pytester, *arguments: str) -> int:
    """How many workers a run would have, which ends before they start."""
    pytester.makeconftest(TWO_CORES)
    result = pytester.runpytest_inprocess(*AUTO, *arguments)
    (line,) = [line for line in result.stdout.lines if "workers would start" in line]
    return int(line.split()[2])


@pytest.mark.parametrize(
    ("arguments", "count"),
    [(("--gpu-device", "emulated:h200x3", "--powercap", "1"), 3), (("--powercap", "1"), 1)],
    ids=["option", "ini file"],
)
def test_auto_gives_each_gpu_a_worker(project, arguments, count):
    assert workers_of(project.pytester, *arguments) == count


def test_auto_is_left_alone_where_no_gpu_is_named(pytester):
    pytester.makepyfile("def test_of_somebody_else():\n    pass")
    assert workers_of(pytester) == 2


def test_auto_can_be_set_by_xdists_own_variable(project, monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "2")
    assert workers_of(project.pytester, "--gpu-device", "emulated:h200x3", "--powercap", "1") == 2


def test_auto_and_a_device_that_is_not_understood_is_wrong_usage(project):
    result = project.run(*AUTO, "--gpu-device", "emulatedx99")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--gpu-device 'emulatedx99' asks for 99 GPUs*"])


def test_workers_that_share_a_gpu_take_turns(project):
    arguments = (*TWO, "--gpuenergy-lock-wait", "0", "--powercap", "1,2,3")
    project.run(*arguments).assert_outcomes(passed=3)
    assert len(project.report().measurements) == 3
    assert limits_w(1) == [700]


def test_a_gpu_that_is_lost_leaves_its_items_to_the_other_one(project):
    lost = """
    if os.environ["PYTEST_XDIST_WORKER"] == "gw1":
        gpu.inject("any", "gpu_is_lost")
    energy_benchmark("""
    project.module(MEETS.replace("\n    energy_benchmark(", lost))
    result = project.run(*TWO, "--gpu-device", "emulated:h200x2", "--powercap", "1")
    outcomes = result.parseoutcomes()
    assert "failed" not in outcomes
    assert "INTERNALERROR" not in result.stdout.str()
    stored = project.report().measurements
    assert sum(m.measured for m in stored) == outcomes["passed"]
    with open_device("emulated") as first:
        assert {m.gpu_uuid for m in stored if m.measured} == {first.uuid}


def test_what_no_item_can_do_is_said_without_a_crash(project):
    project.run("--powercap", "1").assert_outcomes(passed=1)
    arguments = ("-p", "xdist", "-n", "1", "--gpuenergy-cache", "cold", "--gpuenergy-resume")
    result = project.run("--powercap", "1,2", *arguments)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["gpuenergy: error: Nothing was run, because no worker can measure: *hot cache*"]
    )
    assert "INTERNALERROR" not in result.stdout.str()


@pytest.mark.parametrize("dist", ["load", pytest.param("loadfile", marks=pytest.mark.thorough)])
def test_a_cap_that_no_worker_can_have_ends_the_run_as_without_workers(project, dist):
    project.module("def test_other(powercap):\n    pass\n", name="test_other")
    result = project.run(*TWO, "--dist", dist, "--powercap", "900W")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    sentence = "ERROR: --powercap 900W: this GPU accepts 200 W to 700 W."
    assert result.stderr.str().split() == sentence.split()
    for more in ("900W", "INTERNALERROR", "left out"):
        assert more not in result.stdout.str()
    assert project.runs == []


def test_a_cap_that_is_not_understood_ends_the_run_before_workers_start(project):
    result = project.run(*TWO, "--powercap", "1,lots")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --powercap 'lots' is not understood: give a list of *"])
    assert "bringing up" not in result.stdout.str()


def test_a_worker_that_is_killed_is_followed_by_one_with_its_gpu(project):
    kills = """
    if number == 2:
        import signal
        os.kill(os.getpid(), signal.SIGKILL)
    energy_benchmark("""
    project.module(MEETS.replace("\n    energy_benchmark(", kills).replace("range(4)", "range(8)"))
    result = project.run(*TWO, "--gpu-device", "emulated:h200x2", "--powercap", "1")
    result.assert_outcomes(passed=7, failed=1)
    result.stdout.fnmatch_lines(["*worker gw* and then worker gw* were lost while running *"])
    assert "INTERNALERROR" not in result.stdout.str()
    assert len([m for m in project.report().measurements if m.measured]) == 7
    assert limits_w(2) == [700, 700]


@pytest.mark.thorough
def test_what_a_killed_worker_left_is_restored_at_the_end_of_the_run(project):
    kills = """
    import signal
    if os.environ["PYTEST_XDIST_WORKER"] == "gw1":
        os.kill(os.getpid(), signal.SIGKILL)
    energy_benchmark("""
    project.module(MEETS.replace("\n    energy_benchmark(", kills))
    arguments = ("--gpu-device", "emulated:h200x2", "--powercap", "1", "--max-worker-restart", "0")
    result = project.run(*TWO, *arguments)
    assert result.ret != 0
    assert limits_w(2) == [700, 700]


def test_a_limit_that_a_worker_cannot_put_back_fails_the_run(project, monkeypatch):
    refuse = {"power_limit": {"error": "unknown", "after_calls": 1}}
    monkeypatch.setenv("GPUENERGY_EMULATED_FAULTS", json.dumps(refuse))
    project.module(MEETS)
    result = project.run(*TWO, "--gpu-device", "emulated:h200x2", "--powercap", "1")
    result.assert_outcomes(passed=2, skipped=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["gpuenergy: error: The power limit * was not restored to 700 W *"])
    monkeypatch.delenv("GPUENERGY_EMULATED_FAULTS")
    project.run("--gpu-device", "emulated:h200x2", "--powercap", "current")
    assert limits_w(2) == [700, 700]


UNSET = "gpuenergy: error: The power cap 200W could not be set for any item: The power limit of *"
REFUSING = """
@pytest.fixture
def refusing(gpu):
    if os.environ["PYTEST_XDIST_WORKER"] in WORKERS:
        gpu.inject("power_limit", "no_permission")

@pytest.mark.parametrize"""


@pytest.mark.parametrize(
    ("refused", "code"), [(("gw0", "gw1"), 1), (("gw1",), 0)], ids=["by both", "by one"]
)
def test_a_cap_that_no_worker_could_set_fails_the_run_in_one_sentence(project, refused, code):
    module = MEETS.replace("\n@pytest.mark.parametrize", f"\nWORKERS = {refused}\n{REFUSING}")
    module = module.replace("(number, powercap", "(number, refusing, powercap")
    project.module(module.replace("    meet(", "    return\n    meet("))
    arguments = ("--gpu-device", "emulated:h200x2", "--powercap", "1", "--dist", "load")
    result = project.run(*TWO, *arguments)
    assert result.ret == code
    said = [line for line in result.stdout.lines if "could not be set for any item" in line]
    assert len(said) == code
    result.stdout.fnmatch_lines(
        ["power caps that could not be set: 200W (* items)", *[UNSET][: len(said)]]
    )
