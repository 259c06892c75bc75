"""A run over hosts that ssh reaches, none of which sees another's files."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Hosts

pytestmark = pytest.mark.slow
Run = Callable[..., pytest.RunResult]


def test_items_are_measured_where_no_file_is_shared(hosts, run_fleet):
    hosts.add("h1", "h2")
    result = run_fleet(hosts.text("h1", "h2", "h3"), "--powercap", "1,3")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "fleet: ssh:h1:*,h2:*,h3:*: 2 workers: h1 (1), h2 (1)",
            "fleet: left out: h3: ssh: Could not resolve hostname h3.",
            "*= gpuenergy =*",
            "fleet: left out: h3: ssh: Could not resolve hostname h3.",
        ]
    )
    kept = [json.loads(line) for name in ("h1", "h2") for line in hosts.measured(name)]
    assert sorted(one["power_limit_w"] for one in kept) == [200, 450]


ITEMS = """
import os, signal
import pytest
from pathlib import Path

HOME = Path(os.environ["HOME"])

@pytest.mark.parametrize("number", range(4))
def test_item(number, tmp_pathFIXTURES):
    gpu = os.environ["GPUENERGY_FLEET_GPU"]
    (HOME.parent / f"met-{HOME.name}-{gpu}").touch()
    while len(list(HOME.parent.glob("met-*"))) < MEETING:
        os.sched_yield()
    if HOME.name == "h1" and not (HOME / "once").exists():
        (HOME / "once").touch()
        ACTION
    assert tmp_path.is_dir()
    with (HOME.parent / "done").open("a") as done:
        done.write(f"{HOME.name} {number} {gpu}\\n")
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
VANISH = f'HOME.rename(HOME.with_name("gone")); {KILL}'


@pytest.fixture
def run_items(pytester: pytest.Pytester, hosts: Hosts, run_fleet: Run) -> Run:
    """Run four items that measure nothing, of which the first one on h1 does something else."""

    def run_them(
        action: str,
        *names: str,
        device: str = "emulated",
        fixtures: str = "",
        meeting: int = 1,
        run: Run = pytester.runpytest_inprocess,
    ) -> pytest.RunResult:
        (hosts.project / "test_scale.py").unlink()
        module = ITEMS.replace("ACTION", action).replace("FIXTURES", fixtures)
        module = module.replace("MEETING", str(meeting))
        pytester.makepyfile(test_item=module)
        hosts.add(*names)
        # pytest-xdist's loadgroup does not give a replacement more than one group.
        result = run_fleet(hosts.text(*names), "--dist", "load", "--gpu-device", device, run=run)
        assert "INTERNALERROR" not in result.stdout.str()
        return result

    return run_them


def done(hosts: Hosts) -> set[tuple[str, ...]]:
    """Who has done which item on which GPU."""
    return {tuple(line.split()) for line in (hosts.folder / "done").read_text().splitlines()}


@pytest.mark.thorough
def test_each_gpu_of_a_host_has_a_worker(hosts, run_items):
    result = run_items("pass", "h1", device="emulated:h200x2", meeting=2)
    result.assert_outcomes(passed=4)
    assert {gpu for _, _, gpu in done(hosts)} == {"0", "1"}


@pytest.mark.thorough
def test_a_worker_that_is_killed_is_replaced(hosts, run_items):
    result = run_items(KILL, "h1")
    result.stdout.fnmatch_lines(["*node down: h1 was lost*", "replacing crashed worker *"])
    assert {number for _, number, _ in done(hosts)} >= {"1", "2", "3"}


def test_a_worker_that_somebody_else_ends_is_replaced(hosts, run_items):
    as_scancel = "os.kill(os.getpid(), signal.SIGTERM); signal.pause()"
    result = run_items(as_scancel, "h1", fixtures=", gpu")
    result.stdout.fnmatch_lines(["*node down: ended by SIGTERM", "replacing crashed worker *"])
    assert {number for _, number, _ in done(hosts)} == {"0", "1", "2", "3"}


@pytest.mark.thorough
def test_a_run_goes_on_without_a_host_that_is_lost(hosts, run_items):
    result = run_items(VANISH, "h1", "h2", meeting=2)
    result.stdout.fnmatch_lines(["*fleet: left out: h1: *: ssh: Could not resolve hostname h1."])
    assert {host for host, *_ in done(hosts)} == {"h2"}


def test_a_host_that_had_ended_takes_over_from_one_that_is_lost_last(hosts, run_items):
    other = 'int((HOME.parent / "h2" / "pids").read_text().split()[-1])'
    ended = f"import select; select.select([os.pidfd_open({other})], [], [])"
    result = run_items(f"{ended}; {VANISH}", "h1", "h2", meeting=2)
    result.stdout.fnmatch_lines(["*fleet: left out: h1: *: ssh: Could not resolve hostname h1."])
    assert len({number for _, number, _ in done(hosts)}) == 3  # all but the one that was lost


@pytest.mark.thorough
def test_a_run_that_has_lost_all_hosts_ends_with_a_sentence(run_items):
    result = run_items(VANISH, "h1")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*fleet: left out: h1: *: ssh: Could not resolve hostname h1."])


@pytest.mark.thorough
def test_a_cap_that_no_host_can_have_ends_the_run_in_one_sentence(hosts, run_fleet):
    hosts.add("h1", "h2")
    result = run_fleet(hosts.text("h1", "h2"), "--powercap", "900W")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.stderr.lines == ["ERROR: --powercap 900W: this GPU accepts 200 W to 700 W.", ""]
    assert "900W" not in result.stdout.str()


def test_hosts_with_another_project_are_left_out_and_say_why(hosts, pytester, run_fleet):
    hosts.add("h2")
    pytester.makeconftest("def pytest_addoption(parser):\n    parser.addoption('--own')")
    hosts.add("h1")
    (hosts.folder / "h1" / "project" / "test_scale.py").unlink()
    result = run_fleet(hosts.text("h1", "h2"), "--own", "x", "test_scale.py")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "fleet: left out: h2: its pytest cannot begin there: unrecognized arguments: --own: "
            "the project there has another conftest.py than here: copy it, or give dir=PATH.",
            "left out: gw0 on h1: file or directory not found: test_scale.py",
            "gpuenergy: error: Nothing was run, because no worker can measure: gw0 on h1: *; h2: *",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


CONTROLLER = """
import os
from pathlib import Path

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        Path({path!r}).write_text(str(os.getpid()))
"""


def test_an_interrupt_reaches_the_workers_which_restore_the_limit(hosts, run_items, pytester):
    pytester.makeconftest(CONTROLLER.format(path=str(hosts.folder / "pid")))
    action = 'os.kill(int((HOME.parent / "pid").read_text()), signal.SIGINT); signal.pause()'
    result = run_items(action, "h1", fixtures=", powercap", run=pytester.runpytest_subprocess)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    (state,) = (hosts.folder / "h1" / "state" / "emulated").glob("GPU-*.json")
    assert (hosts.folder / "h1" / "once").exists()
    assert json.loads(state.read_text())["limit_mw"] == 700_000
    assert not list((hosts.folder / "h1" / "state").glob("leases/*"))
