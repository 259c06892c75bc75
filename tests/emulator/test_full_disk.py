"""A disk that is full while a kernel is compiled: the disk is named, and no kernel is blamed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pytest_gpuenergy.emulator import KernelText, Toolchain
from pytest_gpuenergy.support import DeviceError, KernelFault

TEXT = KernelText('extern "C" __global__ void f(float* y) { y[0] = 1.0f; }', ["f"])


@pytest.fixture
def tools(tmp_path: Path) -> Toolchain:
    (tmp_path / "host").mkdir()
    return Toolchain("g++", "g++ 12", "key", tmp_path / "host")


def says(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the compiler fail with these words."""
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr=f"kernel.cpp:1:1: {words}\n")
    monkeypatch.setattr(
        "pytest_gpuenergy.emulator.host.toolchain.run_compiler", lambda *_, **__: failed
    )


@pytest.mark.parametrize("words", ["No space left on device", "Disk quota exceeded"])
def test_a_full_disk_is_named(
    tools: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    says(f"fatal error: error writing to /x.s: {words}", monkeypatch)
    with pytest.raises(DeviceError, match=rf"^{tmp_path} cannot be written \({words}\): free some"):
        tools.compile(TEXT, ["plain"], tmp_path / "program")
    assert [path.name for path in tmp_path.iterdir()] == ["host"]


def test_an_error_of_the_kernel_is_the_kernels(
    tools: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says("error: 'no_such' was not declared", monkeypatch)
    with pytest.raises(KernelFault, match="no_such"):
        tools.compile(TEXT, ["plain"], tmp_path / "program")
