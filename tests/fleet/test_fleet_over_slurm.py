"""A run in tasks that Slurm places: each looks at its own GPU when it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    pass

ITEMS = """
import os
from pathlib import Path

import pytest

@pytest.mark.parametrize("number", range(4))
def test_item(number):
    assert os.environ["GPUENERGY_EMULATED_HOST"] != "h1"
"""


@pytest.mark.usefixtures("no_programs")
def test_without_slurm_one_sentence_says_so(run_fleet, pytester):
    pytester.makepyfile(test_item=ITEMS)
    result = run_fleet('slurm:"--partition gpu" x2')
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: srun is missing: run this where Slurm is installed."])


@pytest.mark.slow
def test_tasks_that_cannot_measure_or_start_are_left_out(hosts, run_fleet, pytester):
    (hosts.project / "test_scale.py").unlink()
    pytester.makepyfile(test_item=ITEMS)
    hosts.add("h1", GPUENERGY_EMULATED_FAULTS='{"any":"gpu_is_lost"}')
    hosts.add("h2")
    fleet = f'slurm:"--partition=gpu" x3 dir={hosts.folder / "h2" / "project"}'
    result = run_fleet(fleet, "--gpu-device", "emulated", "--powercap", "current")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["fleet: slurm:*: 3 workers: slurm (3)"])
    result.stdout.fnmatch_lines_random(
        [
            "fleet: left out: slurm: *GPU is lost*",
            "fleet: left out: slurm: its * srun: error: Unable to allocate resources: *",
        ]
    )


@pytest.mark.slow
def test_a_search_takes_the_places_that_slurm_gives_it(search, hosts):
    hosts.add("h1", "h2")
    fleet = f'slurm:"--partition=gpu" x3 dir={hosts.folder / "h1" / "project"} wait=60'
    search.run(fleet)
    assert [one["outcome"] for one in search.trials] == ["timed"] * 4
    assert len({one["gpu"] for one in search.trials}) == 2
    told = "\n".join(search.told)
    assert "fleet: left out: slurm: srun: error: Unable to allocate resources" in told
    assert "2 GPUs: h1 (1), h2 (1)" in told or "2 GPUs: h2 (1), h1 (1)" in told
