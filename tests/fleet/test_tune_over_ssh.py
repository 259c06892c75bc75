"""Searches on the GPUs of hosts that ssh reaches, none of which sees another's files."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from processes import has_ended
from tuning_fakes import WordForm, WordProposer, WordSpace

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.engine.claim import Settings
from pytest_gpuenergy.fleet.search_team import claim_fleet
from pytest_gpuenergy.fleet.spec import parse_fleet
from pytest_gpuenergy.kernels.kernel import Kernel, Launch
from pytest_gpuenergy.support.errors import DeviceError
from pytest_gpuenergy.tuning.space import Feedback
from pytest_gpuenergy.tuning.tuner import Tuner, TuneSettings
from pytest_gpuenergy.workloads import Conv2d, Workload

if TYPE_CHECKING:
    from conftest import Hosts

pytestmark = pytest.mark.slow
ONE = Conv2d.of("one", 1, 4, 4, 1, 1, 1, 1, 1, 0)
TEXT = """
extern "C" __global__ void k(const float* data, const float* weight, float* output) {
  output[threadIdx.x] = data[threadIdx.x] * weight[0];  // WORD
}
"""


@dataclass(frozen=True)
class Form(WordForm):
    """Recipes of which something happens when a trial of theirs is logged."""

    happens: Mapping[str, Callable[[], object]] = field(default_factory=dict)

    def with_time(self, recipe: str, time_ms: float | None) -> str:
        self.happens.get(self.identity(recipe), lambda: None)()
        return super().with_time(recipe, time_ms)


class Space(WordSpace):
    """Kernels of one text."""

    def propose(self, folder: Path, known: Callable[[], Sequence[Feedback]]) -> WordProposer:
        return WordProposer(self.batches, kernel_of)

    def kernel(self, recipe: str) -> Kernel:
        return kernel_of(self.form.identity(recipe))


def kernel_of(word: str) -> Kernel:
    launch = Launch("k", (1, 1, 1), (16, 1, 1), ("data", "weight", "output"))
    return Kernel(TEXT.replace("WORD", word), (launch,))


@dataclass
class Search:
    """A search of four kernels over hosts, of which parts can be made to fail.

    Attributes:
        happens: what happens when the trial of a number has been logged.
    """

    hosts: Hosts
    folder: Path
    happens: dict[str, Callable[[], object]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    stop: Event = field(default_factory=Event)

    def run(self, *names: str, powercap: str = "current", wait: str = "60") -> None:
        fleet = parse_fleet(f"{self.hosts.text(*names)} wait={wait}", "--fleet")
        form = Form(happens=self.happens)

        def space(workload: Workload) -> Space:
            return Space(workload, [["0", "1", "2", "3"]], form=form)

        with ExitStack() as stack:
            settings = Settings(powercap, "current", False)
            found = claim_fleet(stack, fleet, "emulated", settings, self.told.append, "--fleet")
            tuner = Tuner(
                device=found.devices[0],
                make_space=space,
                folder=self.folder,
                settings=TuneSettings(4, 1, energy=False, resume=True),
                confirm=found.confirm(energy=False),
                tell=self.told.append,
                live=None,
                stop=self.stop,
                team=found.team,
                devices=found.devices,
                far=True,
            )
            assert len([*tuner.tune([ONE])]) == 1

    @property
    def trials(self) -> list[dict[str, Any]]:
        path = self.folder / "one" / "raw" / "trials.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def pid(self, host: str) -> int:
        """Of the process that a host has begun last."""
        return int((self.hosts.folder / host / "pids").read_text().split()[-1])

    def kill(self, host: str) -> None:
        os.kill(self.pid(host), signal.SIGKILL)

    def lose(self, host: str) -> None:
        """Let a host vanish."""
        pid = self.pid(host)
        (self.hosts.folder / host).rename(self.hosts.folder / f"{host}-gone")
        os.kill(pid, signal.SIGKILL)

    def limit_w(self, host: str) -> float:
        (state,) = (self.hosts.folder / host / "state" / "emulated").glob("GPU-*.json")
        return float(json.loads(state.read_text())["limit_mw"]) / 1e3


@pytest.fixture
def search(hosts: Hosts, tmp_path: Path) -> Search:
    return Search(hosts, tmp_path)


def test_tune_times_candidates_on_all_hosts_and_confirms_on_the_first(
    hosts: Hosts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_a_process_that_dies_is_replaced_and_its_candidate_tried_elsewhere(search: Search) -> None:
    search.hosts.add("h1", "h2")
    search.happens["0"] = lambda: search.kill("h2")
    search.run("h1", "h2", powercap="300W")
    assert [one["outcome"] for one in search.trials] == ["timed"] * 4
    assert not any("goes on without" in line for line in search.told)
    (lost,) = [line for line in search.told if line.startswith("fleet: h2")]
    assert " was lost: " in lost
    assert search.limit_w("h2") == 700


def test_a_search_goes_on_without_a_host_that_is_lost(search: Search) -> None:
    search.hosts.add("h1", "h2")
    search.happens["0"] = lambda: search.lose("h2")
    search.run("h1", "h2", powercap="300W")
    assert [one["outcome"] for one in search.trials] == ["timed"] * 4
    assert len({one["gpu"] for one in search.trials}) == 1
    told = "\n".join(search.told)
    assert "goes on without h2" in told
    assert "ssh: Could not resolve hostname h2." in told
    assert "was set to 300W: the next run there restores it" in told
    assert search.limit_w("h1") == 700
    assert search.limit_w("h2-gone") == 300


def test_a_search_that_has_lost_all_hosts_is_continued_on_others(search: Search) -> None:
    search.hosts.add("h1", "h2")
    search.happens["1"] = lambda: search.lose("h1")
    with pytest.raises(DeviceError, match="Could not resolve hostname h1"):
        search.run("h1")
    assert len(search.trials) == 2
    search.happens.clear()
    search.run("h2")
    assert [one["outcome"] for one in search.trials] == ["timed"] * 4


def test_a_stopped_search_keeps_its_trials_and_leaves_hosts_as_they_were(search: Search) -> None:
    search.hosts.add("h1")
    search.happens["1"] = search.stop.set
    with pytest.raises(KeyboardInterrupt):
        search.run("h1", powercap="300W")
    assert 2 <= len(search.trials) < 4
    assert has_ended(search.pid("h1"))
    assert search.limit_w("h1") == 700
    assert not list((search.hosts.folder / "h1" / "state").glob("leases/*"))
