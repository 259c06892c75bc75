"""The comparison of depthwise layers with cuDNN, on cards and a PyTorch of our own."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import depthwise
import numpy as np
import pytest
from fake_torch import Torch
from msgspec.structs import replace
from unmarked_gpu import unmarked_gpu

from pytest_gpuenergy.engine import station
from pytest_gpuenergy.pytest_plugin import session
from pytest_gpuenergy.record import Interval, KernelInfo, Measurement, Window, WorkloadInfo
from pytest_gpuenergy.support import plain
from pytest_gpuenergy.workloads import Conv2d

EMULATED = ("--gpu-device", "emulated", "--trials", "2")
SMALL = Conv2d.of("dw01", 1, 6, 6, 4, 4, 3, 3, 1, 1, 1, 4)


@pytest.fixture(autouse=True)
def own_surroundings(machine_apart: None) -> None:
    """No test here waits for another run's GPU."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one layer, and it is small."""
    monkeypatch.setattr(depthwise, "LAYERS", (SMALL,))


def test_the_layers_are_those_of_both_networks():
    assert len(depthwise.LAYERS) == 18
    assert all(one.shape.groups == one.shape.CI == one.shape.CO for one in depthwise.LAYERS)
    assert len({one.shape for one in depthwise.LAYERS}) == 18


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_on_an_emulated_gpu_only_our_kernel_is_measured(tmp_path, capsys):
    command = ["--json", str(tmp_path / "d.json"), *EMULATED]
    assert depthwise.main(command) == 0
    shown = capsys.readouterr().out
    assert "| dw01 | 6 x 6 x 4 | 1 | " in shown
    assert "cuDNN needs an NVIDIA GPU, and this one is emulated" in shown
    written = (tmp_path / "d.json").read_text()
    (layer,) = json.loads(written)["layers"].values()
    assert layer["search"]["recipes"][0]["template"] == "depthwise"

    assert depthwise.main(command) == 0  # nothing is measured again
    assert (tmp_path / "d.json").read_text() == written
    assert depthwise.main([*command, "--gpu-device", "emulated:a100"]) == 2
    assert "has results of NVIDIA H200, not of NVIDIA A100" in capsys.readouterr().err


class HostCupy(ModuleType):
    """As much of CuPy as a launch takes: kernels are computed by NumPy."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.asarray, self.empty = np.asarray, np.empty
        self.launched: list[Any] = []

    def RawModule(self, *, code: str, **_options: object) -> Any:  # noqa: N802 -- CuPy's name
        assert "depthwise(" in code

        def launch(grid: object, block: object, tensors: Any, *, shared_mem: int) -> None:
            self.launched.append((grid, block, shared_mem))
            data, weight, output = tensors
            output[:] = SMALL.reference({"data": data, "weight": weight})["output"]

        return SimpleNamespace(get_function=lambda _: launch)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_on_a_card_both_sides_are_verified_and_measured_alike(tmp_path, monkeypatch, capsys):
    cupy, torch = HostCupy(), Torch()
    torch.module.backends.cudnn.is_available = lambda: True
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "torch", torch.module)
    path = tmp_path / "d.json"
    with unmarked_gpu(monkeypatch, 0.02, 400.0):
        monkeypatch.setattr(station, "open_device", session.open_device)
        assert depthwise.main(["--json", str(path), *EMULATED]) == 0
    (layer,) = json.loads(path.read_text())["layers"].values()
    labels = [one["kernel"]["label"] for one in layer["measurements"]]
    assert labels == ["cudnn-contiguous", "ours-1", "cudnn-channels_last"]
    assert all(one["correctness"] and one["time_ms"] for one in layer["measurements"])
    assert cupy.launched
    assert {name for name, *_ in torch.calls} == {"contiguous", "channels_last"}
    assert "cuDNN / ours is 1.0" in capsys.readouterr().out


def measured(label: str, time_us: float, power_w: float = 200.0) -> Measurement:
    """The figures are invented, to half a percent."""
    time_ms = time_us / 1e3
    energy_mj = time_ms * power_w
    return Measurement(
        node_id=label,
        workload=WorkloadInfo("dw01", {}, 10**6, 10**6),
        kernel=KernelInfo(label, "", "callable"),
        outcome="correct",
        cap="current",
        time_ms=time_ms,
        energy_mj=energy_mj,
        edp_mj_ms=energy_mj * time_ms,
        power_w=power_w,
        gflops=1.0,
        gflops_per_w=1.0,
        time_ms_ci95=Interval(0.995 * time_ms, 1.005 * time_ms),
        energy_mj_ci95=Interval(0.995 * energy_mj, 1.005 * energy_mj),
        trials=(Window(1.0, power_w, 1, 1.0),) * 50,
    )


def test_the_fastest_of_each_side_count(tmp_path, capsys):
    rows = [
        measured("cudnn-contiguous", 4.0),
        measured("cudnn-channels_last", 3.0),
        measured("ours-1", 2.0),
        measured("ours-2", 1.5, power_w=250.0),
        replace(measured("ours-3", 1.0), time_ms=None, energy_mj=None, error="It failed."),
    ]
    about = {"gpu": "Some GPU", "emulated": False, "started": "2026-01-01", "software": {}}
    layer = {"notes": "a flag", "measurements": [plain(one) for one in rows]}
    content = {"bench": "depthwise", "about": about, "layers": {"dw01": layer}}
    (tmp_path / "d.json").write_text(json.dumps(content))
    assert depthwise.main(["--json", str(tmp_path / "d.json"), "--table"]) == 1  # layers are left
    shown = capsys.readouterr().out
    row = next(line for line in shown.splitlines() if line.startswith("| dw01"))
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[3:6] == ["1.50", "3.00", "2.00x"]
    low, high = map(float, cells[6].split(" to "))
    assert 1.97 <= low < 2.0 < high <= 2.03
    assert cells[7:10] == ["0.375", "0.600", "1.60x"]
    assert cells[11] == "a flag"
    assert "time: cuDNN / ours is 2.000x (geometric mean of 1), 2.000x at least." in shown
