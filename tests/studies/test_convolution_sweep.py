"""The sweep of convolutions stores what it measures, with a card that is not there."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import convolution_sweep
import pytest
from convolution_results import read_layers
from convolution_sweep import CARD, drawn_layers, kindred_layers, offered, swept_layers

from pytest_gpuenergy.workloads import CONV_LAYOUTS, Conv2d

LAYERS = "case5,drawn11"


class Pools:
    """Compilers that compile nothing."""

    def __init__(self, _architecture: str) -> None:
        self.submitted = 0

    def submit(self, _kernel: Any) -> Future[str]:
        future: Future[str] = Future()
        future.set_result("binary")
        return future

    def close(self) -> None:
        pass


@pytest.fixture
def sweep(monkeypatch, tmp_path):
    """Return a function that sweeps two layers, with errors as given, and returns the rows."""
    torch, cupy, pynvml = MagicMock(), MagicMock(), MagicMock()
    cupy.cuda.driver.CUDADriverError = type("CUDADriverError", (Exception,), {})
    torch.__version__ = "2.11"
    torch.backends.cudnn.version.return_value = 91900
    torch.cuda.get_device_properties.return_value.name = "NVIDIA H200"
    torch.cuda.Event.return_value.elapsed_time.return_value = 0.2
    reads = iter(range(1 << 30))
    pynvml.nvmlDeviceGetTotalEnergyConsumption = lambda _: next(reads) // 3 * 70_000
    pynvml.nvmlSystemGetDriverVersion.return_value = "580"
    pynvml.nvmlDeviceGetTemperature.return_value = pynvml.nvmlDeviceGetClockInfo.return_value = 50
    for name, module in {"torch": torch, "cupy": cupy, "pynvml": pynvml}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(convolution_sweep, "CompilerPools", Pools)
    monkeypatch.setattr(convolution_sweep, "bind", lambda *_: [lambda: None])
    monkeypatch.setattr(convolution_sweep, "_HEATING_S", 0.0)

    def run(error: float, *options: str) -> tuple[Path, list[dict[str, Any]]]:
        monkeypatch.setattr(convolution_sweep.Tensors, "error", lambda *_: error)
        path = tmp_path / "trials.json.gz"
        words = [str(path), "--layers", LAYERS, "--few", "2", *options]
        assert convolution_sweep.main(words) == 0
        return path, json.loads(gzip.decompress(path.read_bytes()))["rows"]

    return run


def test_right_kernels_are_timed_beside_cudnn(sweep):
    path, rows = sweep(1e-9, "--modes", "3xtf32,float16,bfloat16", "--seconds", "0.001")
    assert not any("fault" in row for row in rows)
    layers = read_layers([path])
    assert len(layers) == 12
    assert {layer.about["driver"] for layer in layers} == {"580"}
    measured = {
        (layer.conv.mode, layer.conv.layout) for layer in layers if "mj" in layer.kernels[0]
    }
    assert measured == set(itertools.product(("3xtf32", "float16", "bfloat16"), CONV_LAYOUTS))


@pytest.mark.parametrize("error", [1.0, math.nan])
def test_wrong_kernels_have_no_time(sweep, error):
    _, rows = sweep(error, "--modes", "tf32")
    kernels = [row for row in rows if "template" in row]
    assert kernels
    assert all("above the bound" in row["fault"] and "us" not in row for row in kernels)


def test_earlier_kernels_are_tried_again_and_none_early_on_request(sweep, tmp_path):
    path, rows = sweep(1e-9, "--modes", "tf32")
    earlier = path.rename(tmp_path / "earlier.json.gz")
    again, more = sweep(1e-9, "--modes", "tf32", "--again", str(earlier), "--late")
    assert any(row["numbers"]["early"] for row in rows if row.get("template") == "implicit")
    assert not any(row["numbers"]["early"] for row in more if row.get("template") == "implicit")
    assert len(read_layers([again])) == 4


def test_what_there_was_no_time_for_is_named(sweep):
    _, rows = sweep(1e-9, "--modes", "tf32", "--budget", "0")
    assert [row["missed"] for row in rows] == ["case5 in tf32", "drawn11 in tf32"]


def test_kernels_are_chosen_beforehand(sweep, tmp_path):
    path, none = sweep(1e-9, "--modes", "tf32", "--brief", "--choose")
    chosen = path.rename(tmp_path / "chosen.json.gz")
    _, rows = sweep(1e-9, "--modes", "tf32", "--brief", "--full", "case", "--chosen", str(chosen))
    tried = [row for row in rows if "template" in row]
    assert [row["numbers"] for row in tried] == [row["numbers"] for row in none]
    assert {row["layout"] for row in none} == {"nhwc"}
    assert not any("us" in row for row in none)


@pytest.mark.usefixtures("sweep")
def test_kernels_can_be_compiled_alone(tmp_path, capsys):
    words = [str(tmp_path / "none"), "--layers", "case5", "--few", "1", "--compile"]
    assert convolution_sweep.main(words) == 0
    assert "kernels in" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


def test_layers_are_drawn_once_for_all():
    assert drawn_layers() == drawn_layers()
    first, *_ = drawn_layers()
    assert [*first.shape.sizes.values()] == [2, 72, 65, 179, 176, 3, 3, 1, 3, 2]
    assert len({conv.shape for conv in swept_layers()}) == len(swept_layers()) == 179


def test_drawn_layers_are_of_the_kinds_that_lost():
    odd = [conv.shape for conv in kindred_layers() if conv.name.startswith("odd")]
    few = [conv.shape for conv in kindred_layers() if conv.name.startswith("few")]
    assert (len(odd), len(few)) == (5, 3)
    assert all(s.CI % 2 for s in odd)
    assert all(s.CI <= 4 and s.W >= 300 for s in few)


def test_kernels_of_each_way_to_copy_are_tried():
    conv = Conv2d.of("c", 1, 28, 28, 32, 3, 7, 7, 2, 3, mode="float16")
    numbers = [one.numbers for one in offered(conv) if one.template == "implicit"]
    assert {(n["packed"], n["unrolled"]) for n in numbers} == {(0, 0), (1, 0), (1, 1), (1, 2)}
    assert {n["early"] for n in numbers if n["packed"]} == {0, 1}
    assert all(one.resident(conv, CARD) for one in offered(conv))
