"""Machine code as text, with a program in place of nvdisasm."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from pytest_gpuenergy.devices import sass_listing


@pytest.fixture
def nvdisasm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that says how many bytes it is given."""
    path = tmp_path / "bin/nvdisasm"
    path.parent.mkdir()
    path.write_text('#!/bin/sh\nwc -c < "$2"\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return path


def cubin(folder: Path, size: int) -> Path:
    """The first bytes of a file that has 2 program headers of 56 bytes from byte 88 to 200."""
    content = bytearray(200)
    struct.pack_into("<Q", content, 32, 88)
    struct.pack_into("<HH", content, 54, 56, 2)
    path = folder / "kernel.cubin"
    path.write_bytes(content[:size])
    return path


@pytest.mark.usefixtures("nvdisasm")
@pytest.mark.parametrize(("size", "given"), [(200, 200), (199, 200), (198, 198), (9, 9)])
def test_only_a_byte_that_is_missing_is_added(tmp_path: Path, size: int, given: int) -> None:
    assert sass_listing(cubin(tmp_path, size)) == f"{given}\n"


def test_what_nvdisasm_refuses_has_no_listing(tmp_path: Path, nvdisasm: Path) -> None:
    nvdisasm.write_text("#!/bin/sh\nexit 1\n")
    assert sass_listing(cubin(tmp_path, 200)) is None


@pytest.mark.usefixtures("nvdisasm")
def test_a_missing_file_has_no_listing(tmp_path: Path) -> None:
    assert sass_listing(tmp_path / "nothing.cubin") is None


def test_without_nvdisasm_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sass_listing(cubin(tmp_path, 200)) is None
