"""The bench of cuDNN: its items, its settings and its check, on a card and a PyTorch of our own."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import against_cudnn
import pytest
from bench_folder import INI, ROOT
from fake_torch import Torch
from unmarked_gpu import unmarked_gpu

from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.report import load_report

pytestmark = pytest.mark.slow

LAUNCHED_MS, POWER_W = 0.02, 400.0


class Peers:
    """``studies/peers`` beside the root ``conftest.py``."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester

    @property
    def path(self) -> Path:
        return self.pytester.path

    def run(self, *arguments: str, path: str = "studies/peers") -> pytest.RunResult:
        return self.pytester.runpytest_inprocess(path, "-rs", *arguments)

    def ids(self, *arguments: str) -> list[str]:
        lines = self.run("--collect-only", "-q", *arguments).stdout.lines
        return [line.partition("[")[2].removesuffix("]") for line in lines if "::" in line]

    def measured(self, *arguments: str) -> list[Measurement]:
        self.run("--gpuenergy-json", "r.json", *arguments)
        return list(load_report(self.path / "r.json").measurements)


@pytest.fixture
def peers(pytester: pytest.Pytester) -> Peers:
    (pytester.path / "pyproject.toml").write_text(INI)
    shutil.copytree(
        ROOT / "studies" / "peers",
        pytester.path / "studies" / "peers",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copy(ROOT / "conftest.py", pytester.path)
    return Peers(pytester)


@pytest.fixture
def real_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with unmarked_gpu(monkeypatch, LAUNCHED_MS, POWER_W):
        yield


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    found = Torch()
    monkeypatch.setitem(sys.modules, "torch", found.module)
    return found


def test_each_memory_format_of_each_workload_is_an_item(peers):
    ids = peers.ids("--powercap", "current")
    assert len(ids) == 14
    assert ids[:2] == ["case1-contiguous-current", "case1-channels_last-current"]


def test_tf32_is_asked_for(peers):
    ids = peers.ids("--powercap", "current", "--tf32", "-k", "case5")
    names = ("contiguous", "channels_last", "contiguous-tf32", "channels_last-tf32")
    assert ids == [f"case5-{name}-current" for name in names]


def test_it_is_collected_only_when_its_path_is_named(peers):
    result = peers.run("--collect-only", "-q", path="studies")
    assert not [line for line in result.stdout.lines if "::" in line]


def test_an_emulated_gpu_skips_it(peers):
    result = peers.run("--powercap", "1", "-k", "case7")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED * cuDNN needs an NVIDIA GPU, and this one is emulated"])


@pytest.mark.usefixtures("real_gpu")
def test_it_is_checked_and_measured_as_the_workload(peers, torch):
    plain, last = peers.measured("-k", "case7")
    assert (plain.workload.name, plain.kernel.label) == ("case7", "cudnn-contiguous")
    assert (last.workload.name, last.kernel.label) == ("case7", "cudnn-channels_last")
    assert plain.workload.flops == 2 * 14 * 14 * 256 * 256 * 9
    assert plain.time_ms == pytest.approx(LAUNCHED_MS, rel=0.01)
    assert plain.energy_mj == pytest.approx(LAUNCHED_MS * POWER_W, rel=0.02)
    assert plain.gflops == pytest.approx(plain.workload.flops / plain.time_ms / 1e6)
    assert plain.correctness is not None
    assert 0 < plain.correctness.normwise_error < plain.correctness.normwise_bound < 1e-4
    assert set(torch.calls) == {("contiguous", True, 0, False), ("channels_last", True, 0, False)}


@pytest.mark.usefixtures("real_gpu")
def test_tf32_has_a_bound_of_its_own(peers, torch):
    measured = peers.measured("-k", "case7 and tf32", "--tf32")
    assert [m.kernel.label for m in measured] == [
        "cudnn-contiguous-tf32",
        "cudnn-channels_last-tf32",
    ]
    assert all(tf32 for *_, tf32 in torch.calls)
    for m in measured:
        assert m.correctness is not None
        assert 1e-4 < m.correctness.normwise_error < m.correctness.normwise_bound < 3e-3


@pytest.mark.usefixtures("real_gpu", "torch")
def test_tf32_that_was_not_asked_for_is_found(peers, monkeypatch):
    monkeypatch.setattr(Torch, "tf32", True)
    result = peers.run("-k", "case7-contiguous")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*elements of result*wrong*"])


@pytest.mark.usefixtures("real_gpu")
def test_a_wrong_result_leaves_no_figure(peers, torch):
    torch.error = 0.1
    assert peers.measured("-k", "case7") == []


@pytest.mark.usefixtures("real_gpu", "torch")
def test_a_report_of_it_makes_the_table(peers, capsys):
    peers.measured("-k", "case7", "--tf32")
    capsys.readouterr()
    assert against_cudnn.main([str(peers.path / "r.json")]) == 0
    shown = capsys.readouterr().out
    assert "| case | cuDNN | cuDNN TF32 | cuDNN / ours |" in shown
    first, second, *_ = shown.partition("| case7 | ")[2].partition("\n")[0].split(" | ")
    assert [float(figure) for figure in (first, second)] == pytest.approx([20, 20], rel=0.01)
    assert "cannot be judged" in shown
