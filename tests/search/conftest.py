"""What the tests of searches share."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from kernel_specs import optimize, write

from pytest_gpuenergy.emulator import EmulatedDevice

_BEYOND_MODEL = EmulatedDevice.beyond_model


class Searched(NamedTuple):
    """A search of `kernel_specs.SCALE` for the smallest EDP that nothing has disturbed.

    Attributes:
        out: its folder, not to be changed.
        printed: on standard output.
    """

    out: Path
    printed: str


@contextlib.contextmanager
def claimable() -> Iterator[None]:
    """Let gains be claimed by the emulated GPU's figures, as if they were a real card's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EmulatedDevice, "beyond_model", lambda *_: None)
        yield


@pytest.fixture(scope="package", autouse=True)
def _claimable() -> Iterator[None]:
    with claimable():
        yield


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """A search, made once."""
    folder, printed = tmp_path_factory.mktemp("searched"), io.StringIO()
    with contextlib.redirect_stdout(printed), claimable():
        assert optimize(write(folder), folder / "out", "--objective", "edp") == 0
    return Searched(folder / "out", printed.getvalue())


@pytest.fixture
def finished(searched: Searched, tmp_path: Path) -> Path:
    """A copy of its folder."""
    return shutil.copytree(searched.out, tmp_path / "finished", symlinks=True)


@pytest.fixture
def real_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gains are claimed as on the emulated GPU."""
    monkeypatch.setattr(EmulatedDevice, "beyond_model", _BEYOND_MODEL)
