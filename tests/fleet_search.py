"""Searches of four kernels over a fleet, of which parts can be made to fail."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from processes import stop
from tuning_fakes import WordForm, WordProposer, WordSpace

from pytest_gpuenergy.engine import Settings
from pytest_gpuenergy.fleet import claim_fleet, parse_fleet
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.tuning import Tuner, TuneSettings
from pytest_gpuenergy.workloads import Conv2d, Workload

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

    def propose(self, *_: object) -> WordProposer:
        return WordProposer(self.batches, kernel_of)

    def kernel(self, recipe: str) -> Kernel:
        return kernel_of(self.form.identity(recipe))


def kernel_of(word: str) -> Kernel:
    launch = Launch("k", (1, 1, 1), (16, 1, 1), ("data", "weight", "output"))
    return Kernel(TEXT.replace("WORD", word), (launch,))


@dataclass
class Search:
    """A search.

    Attributes:
        place: has a folder for each host.
        folder: of the results.
        happens: what happens when the trial of a number has been logged.
    """

    place: Path
    folder: Path
    happens: dict[str, Callable[[], object]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    stop: Event = field(default_factory=Event)

    def run(self, named: str, powercap: str = "current") -> None:
        """Search over the fleet of this name."""
        fleet = parse_fleet(named, "--fleet")
        form = Form(happens=self.happens)

        def space(workload: Workload) -> Space:
            return Space(workload, [["0", "1", "2", "3"]], form=form)

        with ExitStack() as stack:
            settings = Settings(powercap, "current", False)
            found = claim_fleet(stack, fleet, "emulated", settings, self.told.append, "--fleet")
            tuner = Tuner(
                gpus=found,
                make_space=space,
                folder=self.folder,
                settings=TuneSettings(4, 1, energy=False, resume=True),
                tell=self.told.append,
                live=None,
                stop=self.stop,
            )
            assert len([*tuner.tune([ONE])]) == 1

    @property
    def trials(self) -> list[dict[str, Any]]:
        path = self.folder / "one" / "raw" / "trials.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def pid(self, host: str) -> int:
        """Of the process that a host has begun last."""
        return int((self.place / host / "pids").read_text().split()[-1])

    def kill(self, host: str) -> None:
        os.kill(self.pid(host), signal.SIGKILL)

    def lose(self, host: str) -> None:
        """Let a host vanish, whose process does not see that its files are gone."""
        pid = self.pid(host)
        stop(pid)
        (self.place / host).rename(self.place / f"{host}-gone")
        os.kill(pid, signal.SIGKILL)

    def limit_w(self, host: str) -> float:
        (state,) = (self.place / host / "state" / "emulated").glob("GPU-*.json")
        return float(json.loads(state.read_text())["limit_mw"]) / 1e3
