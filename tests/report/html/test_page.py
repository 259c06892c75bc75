"""The page as text: self-contained, with names only as text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.report.html import html_page, write_html
from pytest_gpuenergy.report.html.charts import charts
from pytest_gpuenergy.report.store import load_report
from pytest_gpuenergy.support.errors import InputError, ReportError

vl_convert = pytest.importorskip("vl_convert", reason="the page's charts need vl-convert-python")
Make = Callable[..., Any]
HOSTILE = st.sampled_from(
    [
        "</script><script>pwned=1</script>",
        "<!--<script>",
        "]]>",
        "${alert(1)}",
        "$title",
        "\u2028\u2029",
        "\ud800",
        '"onload="pwned=1',
        "&lt;b&gt;",
    ]
) | st.text(max_size=20)


class Outline(HTMLParser):
    """Collects tags with their attributes, and the texts of scripts and the title."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, str] = {}
        self.inside = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

        self.inside = True

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 -- required by the base class
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            number = len(self.tags) - 1
            self.texts[number] = self.texts.get(number, "") + data

    def texts_of(self, tag: str) -> list[str]:
        return [self.texts.get(n, "") for n, (name, _) in enumerate(self.tags) if name == tag]

    @property
    def data(self) -> Any:
        return json.loads(self.texts_of("script")[0])


def test_nothing_is_fetched(report: Make, measured: Make) -> None:
    outline = Outline(html_page(report(measured(1))))
    attributes = {name for _, attributes in outline.tags for name in attributes}
    assert not attributes & {"src", "href", "action", "background", "data", "poster"}
    assert {tag for tag, _ in outline.tags} & {"link", "iframe", "object", "embed", "base"} == set()


def test_only_the_pages_own_scripts_may_run(report: Make, measured: Make) -> None:
    outline = Outline(html_page(report(measured(1))))
    policy = next(
        str(attributes["content"])
        for tag, attributes in outline.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    _, *scripts = outline.texts_of("script")
    digests = {hashlib.sha256(script.encode()).digest() for script in scripts}
    allowed = re.search(r"script-src ([^;]*);", policy)
    assert allowed is not None
    assert set(allowed[1].split()) == {
        f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests
    }
    assert "default-src 'none'" in policy


def test_the_title_names_gpu_and_run(report: Make, measured: Make) -> None:
    (title,) = Outline(html_page(report(measured(1)))).texts_of("title")
    assert title == "NVIDIA H200 (emulated), run 20260102T030405-abcdef"


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25
)
@given(HOSTILE, HOSTILE, HOSTILE)
def test_names_stay_data(report: Make, measured: Make, one: str, two: str, three: str) -> None:
    plain = Outline(html_page(report(measured(1))))
    item = measured(1, workload=one, validity=(two,), node_id=three)
    item = replace(item, kernel=replace(item.kernel, label=two, origin=three), cap=three)
    found = Outline(html_page(report(item, gpu_name=one, host=two, software={three: one})))
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in plain.tags]
    (row,) = found.data["rows"]
    shown = [
        name.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029") for name in (one, two, three)
    ]
    assert [row["workload"], row["kernel"], row["cap"]] == shown
    assert found.texts_of("script")[1:] == plain.texts_of("script")[1:]


def test_figures_beyond_all_numbers_have_no_place(report: Make, measured: Make) -> None:
    item = measured(1, time_ms=1e307, energy_mj=1.0)
    (row,) = Outline(html_page(report(item))).data["rows"]
    assert row["time_us"] is None
    assert row["energy_mj"] == 1.0


def test_the_front_is_sought_over_all_caps(report: Make, measured: Make) -> None:
    fast, slow = measured(1, 5, time_ms=1.0), measured(1, 1, time_ms=2.0)
    rows = Outline(html_page(report(fast, slow))).data["rows"]
    assert [row["pareto"] for row in rows] == [True, False]


def test_caps_are_ordered_by_watts(report: Make, measured: Make) -> None:
    data = Outline(html_page(report(measured(1, 5), measured(1, 1), measured(1, 3)))).data
    assert data["caps"] == ["200W", "450W", "700W"]


def test_every_flag_of_the_guide_is_explained(report: Make, measured: Make) -> None:
    guide = Path(__file__).parents[3] / "docs" / "reference" / "record.md"
    text = guide.read_text(encoding="utf-8")
    table = text.partition("| flag in `validity`")[2].partition("\n\n")[0]
    flags = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.M)))
    assert "host_gaps" in flags
    data = Outline(html_page(report(measured(1, validity=tuple(flags))))).data
    assert [one["flag"] for one in data["flags"] if not one["meaning"]] == []


def test_a_baseline_of_another_kind_is_refused(
    tmp_path: Path, report: Make, measured: Make
) -> None:
    path = tmp_path / "page.html"
    with pytest.raises(ReportError, match="compare runs of the same kind"):
        write_html(report(measured(1)), path, report(measured(1), emulated=False))
    assert not path.exists()


def test_without_the_plotting_library_there_is_advice(
    report: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(InputError, match=r"pip install 'pytest-gpuenergy\[html\]'"):
        html_page(report())


@pytest.mark.slow
@pytest.mark.parametrize("emulated", [True, False])
@pytest.mark.parametrize("caps", [1, 5])
def test_charts_are_valid_and_say_when_they_are_emulated(emulated: bool, caps: int) -> None:
    found = charts(emulated=emulated, caps=caps)
    specifications = [found["front"], found["edp"], found["efficiency"]]
    specifications += found["distribution"].values()
    assert len(specifications) == 8
    for specification in specifications:
        assert specification["title"]["text"].endswith("(emulated)") == emulated
        vl_convert.vegalite_to_vega(specification, vl_version="6.4")


def test_the_command_in_the_docs_writes_the_page_of_the_bundled_report(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    report = root / "bench/results/nvidia-h200-2026-11-22/report.json"
    assert main(["report", str(report), "--html", str(tmp_path / "h200.html")]) == 0
    page = Outline((tmp_path / "h200.html").read_text(encoding="utf-8"))
    assert page.data == Outline(html_page(load_report(report))).data
    assert len(page.data["rows"]) == 175


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the plotting library by one that is bundled instantly."""
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda **_: "vega = '\u00b5';\r\n")
    return tmp_path / "cache"


@pytest.mark.usefixtures("own_cache")
def test_the_plotting_library_is_bundled_once(
    report: Make, measured: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = html_page(report(measured(1)))
    monkeypatch.setattr(vl_convert, "javascript_bundle", None)
    assert html_page(report(measured(1))) == page


@pytest.mark.parametrize("damage", [b"", b"\xff", b"0\nalert(1)", b"\n"])
def test_a_damaged_copy_of_the_plotting_library_is_made_again(
    own_cache: Path, report: Make, measured: Make, damage: bytes
) -> None:
    page = html_page(report(measured(1)))
    (kept,) = own_cache.rglob("*.js")
    whole = kept.read_bytes()
    kept.write_bytes(damage)
    assert html_page(report(measured(1))) == page
    assert kept.read_bytes() == whole


def test_without_a_cache_the_page_is_made_too(
    own_cache: Path, report: Make, measured: Make
) -> None:
    own_cache.write_text("no folder")
    assert "vega = '\u00b5';" in html_page(report(measured(1)))
