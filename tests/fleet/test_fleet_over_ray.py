"""A run over Ray's own local cluster: several nodes of one machine, an emulated GPU each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Hosts

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_folder")]
PATIENCE_S = 300.0
ITEMS = """
import os
import signal
from pathlib import Path

import pytest
from parts import LAUNCH, SCALE, SOURCE

HOME = Path(os.environ["HOME"])

@pytest.mark.parametrize("number", range(6))
def test_item(number, powercap, load_kernel, energy_benchmark):
    energy_benchmark(load_kernel(SOURCE, **LAUNCH), workload=SCALE)
    (HOME / "begun").touch()
    if HOME.name == "n2":
        signal.pause()  # until its node is killed
"""


@pytest.fixture(scope="module")
def head() -> Iterator[Any]:
    """A head without GPUs, where Ray would look for them first; a second in one process crashes."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
    yield made
    made.shutdown()


@pytest.fixture
def cluster(head: Any, hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The head, to which a test adds nodes of its own."""
    monkeypatch.chdir(hosts.project)
    monkeypatch.setenv("RAY_ADDRESS", head.address)
    yield head
    for one in list(head.worker_nodes):
        head.remove_node(one)


def node(cluster: Any, hosts: Hosts, name: str) -> Any:
    """Add a node with a home, a state and a cache of its own."""
    home = hosts.folder / name
    shutil.copytree(hosts.cache / "emulated", home / "cache" / "emulated")
    own = {"HOME": home, "GPUENERGY_STATE": home / "state", "GPUENERGY_CACHE": home / "cache"}
    variables = {name: str(path) for name, path in own.items()}
    variables["GPUENERGY_EMULATED_HOST"] = name
    return cluster.add_node(num_cpus=1, num_gpus=1, env_vars=variables)


def kept(hosts: Hosts, name: str) -> list[dict[str, Any]]:
    """What a node has measured, as it has kept it."""
    files = (hosts.folder / name).glob("state/fleet/*/.gpuenergy/runs/*/measurements.jsonl")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_a_node_that_is_killed_loses_nothing_but_its_item(cluster, hosts, pytester):
    (hosts.project / "test_scale.py").unlink()
    pytester.makepyfile(test_item=ITEMS)
    node(cluster, hosts, "n1")
    doomed = node(cluster, hosts, "n2")
    words = ("-p", "xdist", "-v", "--dist", "load", "--powercap", "1")
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", *words, "--gpuenergy-fleet", f"ray wait={PATIENCE_S:g}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline_s = time.monotonic() + PATIENCE_S
    while not (hosts.folder / "n2" / "begun").exists():
        assert run.poll() is None
        assert time.monotonic() < deadline_s
        os.sched_yield()
    cluster.remove_node(doomed, allow_graceful=False)
    # Another worker finds a place when the one on n1 has ended, if it is needed.
    output, _ = run.communicate(timeout=PATIENCE_S)
    assert "fleet: ray wait=300: 2 workers: n" in output
    assert "n2 was lost" in output
    assert "INTERNALERROR" not in output
    measured = {name: kept(hosts, name) for name in ("n1", "n2")}
    assert {record["power_limit_w"] for record in measured["n1"]} == {200}
    assert {record["gpu_uuid"] for record in measured["n1"]}.isdisjoint(
        record["gpu_uuid"] for record in measured["n2"]
    )
    done = {record["node_id"] for records in measured.values() for record in records}
    assert len(done) == 6


def test_a_search_goes_on_when_its_node_is_killed(cluster, hosts, search):
    node(cluster, hosts, "n1")
    doomed = node(cluster, hosts, "n2")
    search.happens["0"] = lambda: cluster.remove_node(doomed, allow_graceful=False)
    search.run("ray wait=30")
    assert [one["outcome"] for one in search.trials] == ["timed"] * 4
    told = "\n".join(search.told)
    assert "fleet: ray wait=30: 2 GPUs: n" in told
    assert "fleet: n2 (GPU-" in told
    assert " was lost: Ray lost the worker: " in told
