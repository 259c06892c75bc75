"""Simulates a run on a fleet: 64 GPUs on 8 hosts, 10 000 items, workers and hosts that are lost.

What is real: pytest's controller with its terminal, pytest-xdist's session and loop, our scheduler,
the record of workers, the gathering of measurements on disk, and the views that are written at the
end. What is not: the workers, which take virtual time for items, starts and messages. The CPU
time of the controller is measured and is part of the virtual time.

    python studies/fleet_simulation.py --items 10000 --json simulation.json
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import xdist.dsession
from simulated_fleet import FakeManager, Plan, World, measurement_of, run_info

from pytest_gpuenergy.report import RunFolder
from pytest_gpuenergy.support import encode


@dataclass
class Outcome:
    """What came of it; times in s of virtual time unless they are the controller's own."""

    items: int
    workers: int
    wall_s: float
    busy_share: float
    waiting_share: float
    tail_share: float
    measured: int
    doubled: int
    lost: int
    rerun: int
    controller_s: float
    controller_cpu_s: float
    end_s: float
    end_cpu_s: float
    peak_mib: float
    begin_mib: float
    exit_code: int
    problems: list[str] = field(default_factory=list)


class Watch:
    """Notes what the end of the session takes: views, gate, summary."""

    def __init__(self) -> None:
        self.end_s = self.end_cpu_s = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Any:
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        result = yield
        self.end_s += time.perf_counter() - began_s
        self.end_cpu_s += time.process_time() - began_cpu_s
        return result


def simulate(plan: Plan, folder: Path) -> Outcome:
    """Simulate ``plan`` in an empty folder."""
    world = World(plan)
    FakeManager.world = world
    begin_mib = _peak_mib()
    if plan.known:
        _earlier_run(world, folder)
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    options = ["-q", "--dist=load", "--tx=popen", "--gpu-device=emulated", f"--rootdir={folder}"]
    watch, said = Watch(), io.StringIO()
    with (
        mock.patch.object(xdist.dsession, "NodeManager", FakeManager),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(said),
    ):
        code = pytest.main(
            [*options, "-p", "no:benchmark", "-p", "no:cacheprovider"], plugins=[watch]
        )
    return _outcome(world, watch, int(code), folder, begin_mib, said.getvalue())


def _outcome(
    world: World, watch: Watch, code: int, folder: Path, begin_mib: float, said: str
) -> Outcome:
    run = sorted((folder / ".gpuenergy" / "runs").iterdir())[-1]
    stored = Counter(m.node_id for m in RunFolder(run).load().measurements)
    wall_s = max(node.gone_s or world.now_s for node in world.nodes)
    able = [node for node in world.nodes if node.ready_s and node.place not in world.unusable]
    ready_s = sum((node.gone_s or wall_s) - node.ready_s for node in able)
    # A GPU whose worker has ended because nothing was left for it idles until the last one ends.
    tail_s = sum(wall_s - node.gone_s for node in able if node.gone_s and node.shutting_down)
    whole_s = ready_s + tail_s
    lines = [line for line in said.splitlines() if line.startswith(("gpuenergy: e", "FAILED"))]
    return Outcome(
        items=len(world.ids),
        workers=len(world.nodes),
        wall_s=round(wall_s, 1),
        busy_share=round(world.busy_s / whole_s, 4),
        waiting_share=round((ready_s - world.busy_s) / whole_s, 4),
        tail_share=round(tail_s / whole_s, 4),
        measured=len(stored),
        doubled=sum(number > 1 for number in stored.values()),
        lost=len(set(world.ids) - stored.keys()),
        rerun=sum(number > 1 for number in world.began.values()),
        controller_s=round(world.controller_s, 2),
        controller_cpu_s=round(world.controller_cpu_s, 2),
        end_s=round(watch.end_s, 2),
        end_cpu_s=round(watch.end_cpu_s, 2),
        peak_mib=round(_peak_mib(), 1),
        begin_mib=round(begin_mib, 1),
        exit_code=code,
        problems=lines,
    )


def _earlier_run(world: World, folder: Path) -> None:
    """The run from which durations are known."""
    node = type("Node", (), {"world": world, "place": (0, 0)})()
    node.workerinput = {"gpuenergy_run_id": "20261124T000000-earlier"}
    earlier = RunFolder.create(folder, run_info(node))
    lines = b"".join(encode(measurement_of(one, node)) + b"\n" for one in world.ids)
    earlier.path_of("measurement").write_bytes(lines)


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    plan = Plan()
    for name, value in asdict(plan).items():
        if name != "known":
            parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--unknown", action="store_true", help="durations are not known before")
    parser.add_argument("--json", type=Path, help="append the outcome to this file, as a line")
    given = vars(parser.parse_args())
    path, unknown = given.pop("json"), given.pop("unknown")
    plan = Plan(**given, known=not unknown)
    os.environ["GPUENERGY_CAP_WRITES"] = "deny"
    with tempfile.TemporaryDirectory() as folder:
        found = simulate(plan, Path(folder))
    for name, value in asdict(found).items():
        print(f"{name:>14} {value}")
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps({**asdict(plan), **asdict(found)}) + "\n")
    return 0 if not (found.lost or found.doubled) else 1


if __name__ == "__main__":
    sys.exit(main())
