"""NVIDIA's heuristics may choose the first trials of a search, and may fail without harm.

The package is not installed here: its licence is not free. A module of the same name and the same
interface (version 0.1.0.27) stands for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.tuners import TEMPLATE_FORM, advise_tiles, template_space
from pytest_gpuenergy.workloads import Gemm

GEMM = Gemm("g", 512, 384, 256, mode="bfloat16")  # there are more tiles of float32
MODULE = """
import os
from enum import IntEnum
from types import SimpleNamespace

NvMatmulHeuristicsTarget = IntEnum("Target", "CUTLASS CUTLASS3")
NvMatmulHeuristicsNvidiaGpu = IntEnum("Gpu", "H100_SXM H100_PCIE H200_SXM A100_SXM_80GB")
NvMatmulHeuristicsMatmulLayout = IntEnum("Layout", "NN_ROW_MAJOR NT_ROW_MAJOR TN_ROW_MAJOR")

class NvMatmulHeuristicsInterfaceEx:
    def __init__(self, backend, gpu):
        self.about = f"{backend.name} {gpu.name}"

    def makeNvMatmulHeuristicsProblem(self, m, n, k, layout):
        return f"{m} {n} {k} {layout.name}"

    def get(self, problem, count, precision):
        ANSWER

def kernel(m, n, runtime):
    return {"kernel": SimpleNamespace(cta_tile_m=m, cta_tile_n=n), "runtime": runtime}
"""
SAY = 'raise ValueError(f"{self.about} {precision} {problem}")'
TILES = (
    "return [kernel(64, 64, 3e-6), kernel(7, 7, 1e-6), kernel(32, 64, 2e-6), kernel(64, 64, 4e-6)]"
)

Install = Callable[[str], None]


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are proposed, and not run."""
    monkeypatch.setattr(EmulatedDevice, "prepare", lambda *_: None)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package that answers so."""

    def install(answer: str) -> None:
        (tmp_path / "nvMatmulHeuristics.py").write_text(MODULE.replace("ANSWER", answer))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return install


def test_without_the_package_there_is_no_advice(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", None)
    assert advise_tiles(GEMM, "NVIDIA H200", 90) == ((), "")


def test_the_fastest_tiles_come_first_and_each_once(install):
    install(TILES)
    assert advise_tiles(GEMM, "NVIDIA H200", 90) == (((7, 7), (32, 64), (64, 64)), "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "layout", "name", "capability", "asked"),
    [
        ("float32", "nn", "NVIDIA H200", 90, "CUTLASS H200_SXM SSS 512 384 256 NN_ROW_MAJOR"),
        ("bfloat16", "nt", "NVIDIA H200", 90, "CUTLASS3 H200_SXM BSB 512 384 256 TN_ROW_MAJOR"),
        ("3xtf32", "nn", "NVIDIA H100 80GB HBM3", 90, "CUTLASS3 H100_SXM TSS"),
        ("float16", "tn", "NVIDIA H200", 90, "CUTLASS3 H200_SXM HSH 512 384 256 NT_ROW_MAJOR"),
        ("tf32", "nn", "NVIDIA H100 PCIe", 90, "CUTLASS3 H100_PCIE TSS"),
        ("float16", "nn", "NVIDIA A100-SXM4-80GB", 80, "CUTLASS A100_SXM_80GB HSH"),
    ],
)
def test_it_is_asked_for_the_product_on_the_card(install, mode, layout, name, capability, asked):
    install(SAY)
    product = Gemm("g", 512, 384, 256, layout, mode)
    assert (
        f"nvidia-matmul-heuristics failed: ValueError: {asked}"
        in (advise_tiles(product, name, capability)[1])
    )


def test_a_card_that_it_does_not_know_is_named(install):
    install(TILES)
    problem = advise_tiles(GEMM, "Tesla V100-SXM2-16GB", 70)[1]
    assert problem == "nvidia-matmul-heuristics does not know Tesla V100-SXM2-16GB"


def test_a_library_that_ends_its_process_does_not_end_ours(install):
    install("os.abort()")
    assert "nvidia-matmul-heuristics failed" in advise_tiles(GEMM, "NVIDIA H200", 90)[1]


def test_another_version_of_it_gives_no_advice(install):
    install('return [{"kernel": None, "runtime_s": 1.0}]')
    assert advise_tiles(GEMM, "NVIDIA H200", 90) == (
        (),
        "nvidia-matmul-heuristics failed: KeyError: 'runtime'",
    )


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_compiled")
def test_a_search_begins_with_its_tiles(install, tmp_path):
    install(TILES)
    with open_device("emulated:h200") as device:
        space = template_space(GEMM, device)
        proposer = space.propose(tmp_path, lambda: ())
        found = [TEMPLATE_FORM.parameters(one.recipe) for one in proposer.take(16, Event())]
    assert space.effort.endswith("; first 2 with the tiles of nvidia-matmul-heuristics")
    assert [(one.tile_m, one.tile_n) for one in found[:2]] == [(32, 64), (64, 64)]
    assert len(found) == 4


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_compiled")
def test_a_search_goes_on_without_its_tiles(install, tmp_path):
    install("os.abort()")
    with open_device("emulated:h200") as device:
        space = template_space(GEMM, device)
        found = space.propose(tmp_path, lambda: ()).take(4, Event())
    assert "; nvidia-matmul-heuristics failed: " in space.effort
    assert len(found) == 4
