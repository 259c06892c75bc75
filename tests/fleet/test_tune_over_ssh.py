"""Searches on the GPUs of hosts that ssh reaches, none of which sees another's files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from processes import has_ended

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.support import DeviceError

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.slow


def test_tune_times_candidates_on_all_hosts_and_confirms_on_the_first(hosts, tmp_path, capsys):
    hosts.add("h1", "h2")
    what = ("gemm", "tune", "MNK=16 layout=nt mode=float32", "--trials", "2", "--keep", "1")
    where = ("--gpu-device", "emulated", "--fleet", hosts.text("h1", "h2", "h3"))
    assert main([*what, "--out", str(tmp_path), *where, "--powercap", "300W"]) == 0
    (path,) = tmp_path.glob("*/raw-template/trials.jsonl")
    trials = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({one["gpu"] for one in trials}) == 2
    (file,) = tmp_path.glob("*.json")
    (record,) = json.loads(file.read_text())["records"]
    assert record["measured"]["power_limit_w"] == 300
    told = capsys.readouterr().err
    assert "fleet: left out: h3: ssh: Could not resolve hostname h3." in told
    assert "2 GPUs: h1 (1), h2 (1)" in told


def test_a_process_that_dies_is_replaced(search, hosts):
    hosts.add("h1", "h2")
    search.happens["0"] = lambda: search.kill("h2")
    search.run(hosts.text("h1", "h2"), powercap="300W")
    assert [one["outcome"] for one in search.trials] == ["timed"] * 4
    assert not any("goes on without" in line for line in search.told)
    (lost,) = [line for line in search.told if line.startswith("fleet: h2")]
    assert " was lost: " in lost
    assert search.limit_w("h2") == 700


def test_a_search_goes_on_without_a_host_that_is_lost(search, hosts):
    hosts.add("h1", "h2")
    search.happens["0"] = lambda: search.lose("h2")
    search.run(hosts.text("h1", "h2"), powercap="300W")
    assert [one["outcome"] for one in search.trials] == ["timed"] * 4
    assert len({one["gpu"] for one in search.trials}) == 1
    told = "\n".join(search.told)
    assert "goes on without h2" in told
    assert "ssh: Could not resolve hostname h2." in told
    assert "was set to 300W: the next run there restores it" in told
    assert search.limit_w("h1") == 700
    assert search.limit_w("h2-gone") == 300


@pytest.mark.thorough
def test_a_search_that_has_lost_all_hosts_is_continued_on_others(search, hosts):
    hosts.add("h1", "h2")
    search.happens["1"] = lambda: search.lose("h1")
    with pytest.raises(DeviceError, match="Could not resolve hostname h1"):
        search.run(hosts.text("h1"))
    assert 2 <= len(search.trials) < 4  # the host may have timed the next one meanwhile
    search.happens.clear()
    search.run(hosts.text("h2"))
    assert [one["outcome"] for one in search.trials] == ["timed"] * 4


def test_a_stopped_search_keeps_its_trials_and_leaves_hosts_as_they_were(search, hosts):
    hosts.add("h1")
    search.happens["1"] = search.stop.set
    with pytest.raises(KeyboardInterrupt):
        search.run(hosts.text("h1"), powercap="300W")
    assert 2 <= len(search.trials) < 4
    assert has_ended(search.pid("h1"))
    assert search.limit_w("h1") == 700
    assert not list((hosts.folder / "h1" / "state").glob("leases/*"))
