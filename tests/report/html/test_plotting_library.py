"""The plotting library of the pages that need one, bundled once and kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_gpuenergy.report import check_html, vega_script
from pytest_gpuenergy.support import InputError

vl_convert = pytest.importorskip("vl_convert", reason="needs vl-convert-python")


def test_without_the_plotting_library_there_is_advice(monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(InputError, match=r"pip install 'pytest-gpuenergy\[html\]'"):
        check_html()


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the plotting library by one that is bundled instantly."""
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda **_: "vega = '\u00b5';\r\n")
    return tmp_path / "cache"


@pytest.mark.usefixtures("own_cache")
def test_the_plotting_library_is_bundled_once(monkeypatch):
    page = vega_script()
    monkeypatch.setattr(vl_convert, "javascript_bundle", None)
    assert vega_script() == page


@pytest.mark.parametrize("damage", [b"", b"\xff", b"0\nalert(1)", b"\n"])
def test_a_damaged_copy_of_the_plotting_library_is_made_again(own_cache, damage):
    page = vega_script()
    (kept,) = own_cache.rglob("*.js")
    whole = kept.read_bytes()
    kept.write_bytes(damage)
    assert vega_script() == page
    assert kept.read_bytes() == whole


def test_without_a_cache_the_page_is_made_too(own_cache):
    own_cache.write_text("no folder")
    assert "vega = '\u00b5';" in vega_script()
