"""The host in place of a GPU, for replays of a model itself.

As a script, it is a rank of such a replay: ``python replay_on_host.py replay RUN``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_gpuenergy.engine import Harness
from pytest_gpuenergy.record import Interval, KernelInfo
from pytest_gpuenergy.replay import ALONE, Ranks

KILLED_AFTER = "KILLED_AFTER"
"""Set to ``RANK:N``: this rank is killed once it has measured N times."""


def host_stands_in(
    patch: pytest.MonkeyPatch, after: Callable[[int], object] = lambda _: None
) -> list[str]:
    """Let calls run on the host, and give them made-up figures.

    Args:
        patch: undoes it.
        after: called after each run with how many there were.

    Returns:
        The keys of what will have been measured.
    """
    import torch.cuda

    from pytest_gpuenergy import devices
    from pytest_gpuenergy.replay import host_operators, read_profile
    from pytest_gpuenergy.replay.play import live, replay_run, turns

    labels: list[str] = []

    def measure(
        self: Harness, repeater: Any, workload: Any, subject: Any, kind: str, **_options: object
    ) -> Any:
        with repeater():
            labels.append(str(workload.parameters["replays"]))
        after(len(labels))
        draft = self._draft(subject, KernelInfo(subject.label, "", kind), workload)
        draft = replace(draft, time_ms=1.0, energy_mj=2.0, raw_energy_mj=2.0, edp_mj_ms=2.0)
        draft = replace(draft, power_w=2.0, gflops=0.0, gflops_per_w=0.0)
        return replace(draft, energy_mj_ci95=Interval(1.9, 2.1))

    def repeat(turns: Any, multiple: int, *, most: Any, **_options: object) -> Any:
        most(1.0)
        for _ in range(multiple):
            turns[0]()
        return SimpleNamespace(start=lambda: None, stop=lambda: None)

    def planner(
        _device: object, folder: Path, cache: Any, export: str = "", ranks: Ranks = ALONE
    ) -> Any:
        source = replay_run.replay_source(read_profile(folder), export)
        return live.live_planner("cpu", cache, source, ranks)

    def launched(events: Any) -> list[Any]:
        """Return what operators did, without views of results, which launch nothing on a GPU."""
        found = host_operators(events)
        views = {number for number, one in enumerate(found) if one.name == "aten::set_"}
        views |= {number - 1 for number in views if found[number - 1].name == "aten::empty"}
        return [one for number, one in enumerate(found) if number not in views]

    patch.setattr(replay_run, "choose_planner", planner)
    patch.setattr(devices, "GraphRepeater", repeat)
    patch.setattr(Harness, "measure_callable", measure)
    patch.setattr(turns, "launches", launched)
    patch.setattr(torch.cuda, "_sleep", lambda _cycles: None)
    l2 = SimpleNamespace(L2_cache_size=1000)
    patch.setattr(torch.cuda, "get_device_properties", lambda _: l2)
    return labels


def main() -> int:
    """Run a command as one rank, which has an emulated GPU and computes on the host."""
    from pytest_gpuenergy import cli
    from pytest_gpuenergy.replay.play import replay_run

    rank, _, number = os.environ.get(KILLED_AFTER, "-1:0").partition(":")

    def after(runs: int) -> None:
        if os.environ["RANK"] == rank and runs > int(number):
            os.kill(os.getpid(), signal.SIGKILL)

    joined = replay_run.joined
    with pytest.MonkeyPatch.context() as patch:
        host_stands_in(patch, after)
        patch.setattr(
            replay_run, "device_word", lambda _spec, own, count: (f"emulated:h200x{count}", own)
        )
        patch.setattr(replay_run, "joined", lambda count, _device: joined(count, "cpu"))
        return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
