"""The host in the place of a GPU, for tests that replay a model itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_gpuenergy.engine.harness import Harness
from pytest_gpuenergy.record.estimate import Interval
from pytest_gpuenergy.record.infos import KernelInfo


def host_stands_in(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the host stand in for a GPU; the labels of what will have been measured."""
    import torch.cuda

    from pytest_gpuenergy.devices.cuda import graphs
    from pytest_gpuenergy.replay import live, plan
    from pytest_gpuenergy.replay.launches import host_operators
    from pytest_gpuenergy.replay.profiling import read_profile

    labels: list[str] = []

    def measure(self: Harness, repeater: Any, workload: Any, subject: Any, kind: str) -> Any:
        with repeater():
            labels.append(str(workload.parameters["replays"]))
        draft = self._draft(subject, KernelInfo(subject.label, "", kind), workload)
        draft = replace(draft, time_ms=1.0, energy_mj=2.0, raw_energy_mj=2.0, edp_mj_ms=2.0)
        draft = replace(draft, power_w=2.0, gflops=0.0, gflops_per_w=0.0)
        return replace(draft, energy_mj_ci95=Interval(1.9, 2.1))

    def repeat(turns: Any, multiple: int, **_options: object) -> Any:
        for _ in range(multiple):
            turns[0]()
        return SimpleNamespace(start=lambda: None, stop=lambda: None)

    def planner(_device: object, folder: Path, cache: Any, export: str = "") -> plan.Planner:
        return live.live_planner("cpu", cache, plan.source_of(read_profile(folder), export))

    monkeypatch.setattr(plan, "planner_for", planner)
    monkeypatch.setattr(graphs, "GraphRepeater", repeat)
    monkeypatch.setattr(Harness, "measure_callable", measure)
    monkeypatch.setattr(live, "launches", host_operators)
    l2 = SimpleNamespace(L2_cache_size=1000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: l2)
    return labels
