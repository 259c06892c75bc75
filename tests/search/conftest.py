"""Fixtures of the tests of searches."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel_specs import Searched, optimize, write

from pytest_gpuenergy.emulator import EmulatedDevice

_BEYOND_MODEL = EmulatedDevice.beyond_model


@contextlib.contextmanager
def proving() -> Iterator[None]:
    """Let the emulated GPU's figures prove gains, as if they were a real card's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmulatedDevice, "beyond_model", lambda *_: None)
        yield


@pytest.fixture(scope="package", autouse=True)
def _proving() -> Iterator[None]:
    with proving():
        yield


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """Return a search that is made once per session."""
    folder, printed = tmp_path_factory.mktemp("searched"), io.StringIO()
    with contextlib.redirect_stdout(printed), proving():
        assert optimize(write(folder), folder / "out", "--objective", "edp") == 0
    return Searched(folder / "out", printed.getvalue())


@pytest.fixture
def finished(searched: Searched, tmp_path: Path) -> Path:
    """Return a copy of the folder of that search."""
    return shutil.copytree(searched.out, tmp_path / "finished", symlinks=True)


@pytest.fixture
def without_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the emulated GPU's figures as they are: they prove no gain."""
    monkeypatch.setattr(EmulatedDevice, "beyond_model", _BEYOND_MODEL)
