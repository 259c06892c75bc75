"""The page as text: self-contained, with names only as text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec.structs import replace

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.report import html_page, load_report, write_html
from pytest_gpuenergy.support import ReportError

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

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The measurements, which the page has by column."""
        columns = {name: values_of(column) for name, column in self.data["rows"]["columns"].items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def values_of(column: Any) -> list[Any]:
    if isinstance(column, list):
        return column
    return [column["words"][place] for place in column["at"]]


def test_nothing_is_fetched(report, measured):
    outline = Outline(html_page(report(measured(1))))
    attributes = {name for _, attributes in outline.tags for name in attributes}
    assert not attributes & {"src", "action", "background", "data", "poster"}
    links = [str(a["href"]) for _, a in outline.tags if "href" in a]
    assert all(link.startswith("#") for link in links)
    assert {tag for tag, _ in outline.tags} & {"link", "iframe", "object", "embed", "base"} == set()


def test_only_the_pages_own_scripts_may_run(report, measured):
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


def test_the_title_names_gpu_and_run(report, measured):
    (title,) = Outline(html_page(report(measured(1)))).texts_of("title")
    assert title == "NVIDIA H200 (emulated), run 20260102T030405-abcdef"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HOSTILE, HOSTILE, HOSTILE)
def test_names_stay_data(report, measured, one, two, three):
    plain = Outline(html_page(report(measured(1))))
    item = measured(1, workload=one, validity=(two,), node_id=three)
    item = replace(item, kernel=replace(item.kernel, label=two, origin=three), cap=three)
    found = Outline(html_page(report(item, gpu_name=one, host=two, software={three: one})))
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in plain.tags]
    (row,) = found.rows
    shown = [
        name.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029") for name in (one, two, three)
    ]
    assert [row["workload"], row["kernel"], row["cap"]] == shown
    assert found.texts_of("script")[1:] == plain.texts_of("script")[1:]


def test_figures_beyond_all_numbers_have_no_place(report, measured):
    item = measured(1, time_ms=1e307, energy_mj=1.0)
    (row,) = Outline(html_page(report(item))).rows
    assert row["time_us"] is None
    assert row["energy_mj"] == 1.0


def test_the_front_is_sought_over_all_caps(report, measured):
    fast, slow = measured(1, 5, time_ms=1.0), measured(1, 1, time_ms=2.0)
    rows = Outline(html_page(report(fast, slow))).rows
    assert [row["pareto"] for row in rows] == [True, False]


def test_caps_are_ordered_by_watts(report, measured):
    data = Outline(html_page(report(measured(1, 5), measured(1, 1), measured(1, 3)))).data
    assert data["caps"] == ["200W", "450W", "700W"]


def test_every_flag_of_the_guide_is_explained(report, measured):
    guide = Path(__file__).parents[3] / "docs" / "reference" / "record.md"
    text = guide.read_text(encoding="utf-8")
    table = text.partition("| flag in `validity`")[2].partition("\n\n")[0]
    flags = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", table, re.M)))
    assert "host_gaps" in flags
    data = Outline(html_page(report(measured(1, validity=tuple(flags))))).data
    assert [one["flag"] for one in data["flags"] if not one["meaning"]] == []


def test_a_baseline_of_another_kind_is_refused(tmp_path, report, measured):
    path = tmp_path / "page.html"
    with pytest.raises(ReportError, match="compare runs of the same kind"):
        write_html(report(measured(1)), path, report(measured(1), emulated=False))
    assert not path.exists()


def test_the_page_needs_no_plotting_library(report, measured, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert len(Outline(html_page(report(measured(1)))).rows) == 1


def test_what_the_page_says_can_be_found_without_seeing_it(report, measured):
    outline = Outline(html_page(report(measured(1))))
    ids = {attributes.get("id") for _, attributes in outline.tags}
    named = [a["aria-labelledby"] for _, a in outline.tags if "aria-labelledby" in a]
    assert len(named) == sum(tag == "section" for tag, _ in outline.tags)
    assert set(named) <= ids
    assert ("html", {"lang": "en"}) in outline.tags
    skip = next(a for _, a in outline.tags if a.get("class") == "skip")
    assert str(skip["href"]).removeprefix("#") in ids
    assert any(a.get("aria-live") == "polite" for _, a in outline.tags)


def test_there_are_styles_for_phones_dark_rooms_and_paper(report, measured):
    (style,) = Outline(html_page(report(measured(1)))).texts_of("style")
    for media in ("(max-width: 700px)", "(prefers-color-scheme: dark)", "print"):
        assert f"@media {media}" in style


def test_the_command_in_the_docs_writes_the_page_of_the_bundled_report(tmp_path):
    root = Path(__file__).parents[3]
    report = root / "bench/results/nvidia-h200-2026-11-22/report.json"
    assert main(["report", str(report), "--html", str(tmp_path / "h200.html")]) == 0
    page = Outline((tmp_path / "h200.html").read_text(encoding="utf-8"))
    assert page.data == Outline(html_page(load_report(report))).data
    assert len(page.rows) == 175
    assert len((tmp_path / "h200.html").read_bytes()) < 300_000
