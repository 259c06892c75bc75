"""A package that is installed but cannot be loaded is not reported as missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_gpuenergy.replay import check_packages
from pytest_gpuenergy.report import check_parquet
from pytest_gpuenergy.support import InputError, UnavailableError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages ``pyarrow`` and ``torch`` with a given text, found before the installed ones."""
    for name in ("pyarrow", "torch"):
        for loaded in [one for one in sys.modules if one.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_package_that_needs_a_newer_one_says_so(package):
    reason = "pyarrow requires NumPy 2.0 or newer, found 1.26.4"
    (package / "pyarrow.py").write_text(f"raise ImportError({reason!r})")
    with pytest.raises(InputError) as raised:
        check_parquet()
    assert str(raised.value) == (
        f"Parquet needs pyarrow, which is installed but cannot be loaded ({reason}): install what "
        "it asks for."
    )


def test_a_package_that_lacks_another_one_names_that(package):
    (package / "torch.py").write_text("import nosuchmodule")
    with pytest.raises(UnavailableError, match=r"needs torch, which .*: install nosuchmodule\."):
        check_packages("bloom-560m")


def test_a_package_that_is_missing_is_named_with_what_installs_it(package, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(package)])
    with pytest.raises(InputError, match=r"^Parquet needs pyarrow: pip install 'pytest-gpu"):
        check_parquet()
