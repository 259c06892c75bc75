"""What the tests of searches share."""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from kernel_specs import optimize, write


class Searched(NamedTuple):
    """A search of `kernel_specs.SCALE` for the smallest EDP that nothing has disturbed.

    Attributes:
        out: its folder, not to be changed.
        printed: on standard output.
    """

    out: Path
    printed: str


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """A search, made once."""
    folder, printed = tmp_path_factory.mktemp("searched"), io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert optimize(write(folder), folder / "out", "--objective", "edp") == 0
    return Searched(folder / "out", printed.getvalue())


@pytest.fixture
def finished(searched: Searched, tmp_path: Path) -> Path:
    """A copy of its folder."""
    return shutil.copytree(searched.out, tmp_path / "finished", symlinks=True)
