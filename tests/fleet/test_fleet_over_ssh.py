"""A run over hosts that ssh reaches, none of which sees another's files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Hosts

pytestmark = pytest.mark.slow
Run = Callable[..., pytest.RunResult]


def test_items_are_measured_on_both_hosts(hosts: Hosts, run_fleet: Run) -> None:
    hosts.add("h1", "h2")
    result = run_fleet(hosts.text("h1", "h2", "h3"), "--powercap", "1,3")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "fleet: ssh:h1:*,h2:*,h3:*: 2 workers: h1 (1), h2 (1)",
            "fleet: left out: h3: ssh: Could not resolve hostname h3.",
        ]
    )
    kept = {name: [json.loads(line) for line in hosts.measured(name)] for name in ("h1", "h2")}
    assert {name: len(lines) for name, lines in kept.items()} == {"h1": 1, "h2": 1}
    assert kept["h1"][0]["gpu_uuid"] != kept["h2"][0]["gpu_uuid"]
    assert {line["power_limit_w"] for lines in kept.values() for line in lines} == {200, 450}


TWO_ITEMS = """
import os, signal
import pytest
from pathlib import Path
from parts import LAUNCH, SCALE, SOURCE

@pytest.mark.parametrize("number", range(2))
def test_scale(number, tmp_path, load_kernel, energy_benchmark):
    done = Path(os.environ["HOME"], "done")
    if not done.exists() and os.environ["GPUENERGY_EMULATED_HOST"] == "h1":
        done.touch()
        ACTION
    assert tmp_path.is_dir()
    energy_benchmark(load_kernel(SOURCE, **LAUNCH), workload=SCALE)
"""


def test_several_gpus_of_a_host_have_a_worker_each(
    hosts: Hosts, run_fleet: Run, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_scale=TWO_ITEMS.replace("ACTION", "None"))
    hosts.add("h1")
    fleet = hosts.text("h1")
    result = run_fleet(fleet, "--powercap", "current", "--gpu-device", "emulated:h200x2")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["fleet: *: 2 workers: h1 (2)"])
    assert len({json.loads(line)["gpu_uuid"] for line in hosts.measured("h1")}) == 2


def test_a_worker_that_is_killed_is_replaced(
    hosts: Hosts, run_fleet: Run, pytester: pytest.Pytester
) -> None:
    action = "os.kill(os.getpid(), signal.SIGKILL)"
    pytester.makepyfile(test_scale=TWO_ITEMS.replace("ACTION", action))
    hosts.add("h1")
    result = run_fleet(hosts.text("h1"), "--powercap", "current")
    result.stdout.fnmatch_lines(["*node down: h1 was lost*", "replacing crashed worker *"])
    assert "INTERNALERROR" not in result.stdout.str()
    assert len({json.loads(line)["node_id"] for line in hosts.measured("h1")}) == 2


def test_a_host_that_is_lost_for_good_ends_a_run_that_has_no_other(
    hosts: Hosts, run_fleet: Run, pytester: pytest.Pytester
) -> None:
    vanish = (
        'Path(os.environ["HOME"]).rename(os.environ["HOME"] + "-gone"); os.kill(os.getpid(), 9)'
    )
    pytester.makepyfile(test_scale=TWO_ITEMS.replace("ACTION", vanish))
    hosts.add("h1")
    result = run_fleet(hosts.text("h1"), "--powercap", "current")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "INTERNALERROR" not in result.stdout.str()
    result.stdout.fnmatch_lines(
        [
            "fleet: left out: h1: its *: ssh: Could not resolve hostname h1.",
            "*no worker of the fleet is left: *--gpuenergy-resume*",
        ]
    )


def test_a_run_goes_on_without_a_host_that_is_lost(
    hosts: Hosts, run_fleet: Run, pytester: pytest.Pytester
) -> None:
    """The first item of h1 is lost with it; whoever is left measures the others."""
    vanish = (
        'Path(os.environ["HOME"]).rename(os.environ["HOME"] + "-gone"); os.kill(os.getpid(), 9)'
    )
    module = TWO_ITEMS.replace("ACTION", vanish).replace("range(2)", "range(8)")
    pytester.makepyfile(test_scale=module)
    hosts.add("h1", "h2")
    result = run_fleet(hosts.text("h1", "h2"), "--powercap", "current", "--dist", "load")
    assert "INTERNALERROR" not in result.stdout.str()
    result.stdout.fnmatch_lines(["fleet: left out: h1: its *"])
    assert result.parseoutcomes()["passed"] == 7
    assert len(hosts.measured("h2")) == 7


def test_an_interrupt_reaches_the_workers_which_restore_the_limit(
    hosts: Hosts, run_fleet: Run, pytester: pytest.Pytester
) -> None:
    waits = f"os.kill({os.getpid()}, signal.SIGINT); signal.pause()"
    module = TWO_ITEMS.replace("ACTION", waits).replace(
        "tmp_path, load", "tmp_path, powercap, load"
    )
    pytester.makepyfile(test_scale=module)
    hosts.add("h1")
    result = run_fleet(hosts.text("h1"), "--powercap", "1")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    (state,) = (hosts.folder / "h1" / "state" / "emulated").glob("GPU-*.json")
    assert (hosts.folder / "h1" / "done").exists()
    assert json.loads(state.read_text())["limit_mw"] == 700_000
    assert not list((hosts.folder / "h1" / "state").glob("leases/*"))
