"""The charts of a trace: a page that runs no code but its own, and pictures."""

from __future__ import annotations

import json
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from profiler_traces import lasting, launch, layer, write

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.replay import chart_specs, extract_kernels, write_results

pytest.importorskip("vl_convert", reason="needs vl-convert")

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028"


class Page(HTMLParser):
    """The tags of a page, and the data between those of its JSON block."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.json = ""
        self._in_json = False
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._in_json = ("type", "application/json") in attrs

    def handle_data(self, data: str) -> None:
        self.json += data if self._in_json else ""

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002
        self._in_json = False


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results for two layers, the first of them in the prefill, and a launch with any name."""
    folder = tmp_path_factory.mktemp("drawn")
    prefill = lasting("user_annotation", "prefill", 0.0, 90.0)
    layers = [*layer(), *layer(ts=100.0, correlation=2, dur=15.0)]
    write(folder / "trace.json", [prefill, *layers, *launch(HOSTILE, 200, 205, 3)])
    (folder / "power.csv").write_text("timestamp_us,power_w\n20.0,90\n140.0,300\n")
    assert main(["extract", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def specs(drawn: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Page(drawn / "gantt.html").json)
    return found


def test_a_chart_of_many_streams_has_a_bounded_height(tmp_path):
    launches = [
        launch("k", 9.0 * number, 9.0 * number, number, stream=number) for number in range(400)
    ]
    trace = write(tmp_path / "trace.json", [event for one in launches for event in one])
    assert chart_specs(extract_kernels(trace))["gantt"]["height"] == 8000


@pytest.mark.slow  # the first picture takes 1.5 s
def test_a_launch_is_a_bar_on_the_line_of_its_stream(specs):
    first, second, _ = specs["gantt"]["vconcat"][0]["data"]["values"]
    assert first["lane"] == "GPU 0, stream 7"
    assert (first["begin"], second["begin"]) == (0.0, pytest.approx(0.1))
    assert second["end"] - second["begin"] == pytest.approx(0.015)


@pytest.mark.slow
def test_the_power_is_below_the_launches_on_the_same_axis(specs):
    _, power = specs["gantt"]["vconcat"]
    assert specs["gantt"]["resolve"] == {"scale": {"x": "shared"}}
    found = [(one["time"], one["power"]) for one in power["data"]["values"]]
    assert found == [(pytest.approx(-0.02), 90.0), (pytest.approx(0.1), 300.0)]


def test_the_power_ends_where_the_timeline_does(tmp_path):
    write(tmp_path / "trace.json", [*layer(), *layer(ts=100.0, correlation=2)])
    (tmp_path / "power.csv").write_text("timestamp_us,power_w\n20.0,90\n140.0,300\n")
    _, power = chart_specs(extract_kernels(tmp_path), max_launches=1)["gantt"]["vconcat"]
    assert len(power["data"]["values"]) == 1


@pytest.mark.slow
def test_the_breakdown_sums_up_phases(specs):
    sums_ms = Counter[str]()
    for one in specs["breakdown"]["data"]["values"]:
        sums_ms[one["phase"]] += one["ms"]
    assert sums_ms == {"prefill": pytest.approx(0.005), "unknown": pytest.approx(0.02)}


@pytest.mark.slow
def test_a_name_does_not_become_code(drawn, specs):
    found = Page(drawn / "gantt.html")
    assert "img" not in found.tags
    assert found.tags.count("script") == 3
    *_, row = specs["gantt"]["vconcat"][0]["data"]["values"]
    assert row["name"].startswith("</script>")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gantt.png", "breakdown.png"])
def test_pictures_are_drawn(drawn, name):
    assert (drawn / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_long_timeline_says_what_it_leaves_out(tmp_path):
    written = [one for number in range(1, 6) for one in launch("k", number, 9 * number, number)]
    found = extract_kernels(write(tmp_path / "trace.json", written))
    write_results(found, tmp_path, "model", print, max_launches=2)
    spec = json.loads(Page(tmp_path / "gantt.html").json)["gantt"]
    assert len(spec["data"]["values"]) == 2
    assert "leaves out the last 3 launches" in (tmp_path / "gantt.html").read_text()


def test_without_the_plotting_library_everything_else_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    trace = write(tmp_path / "trace.json", layer())
    assert main(["extract", str(trace), "--out", str(tmp_path)]) == 0
    assert "There are no charts." in capsys.readouterr().err
    assert (tmp_path / "kernel_signatures.json").is_file()
    assert not (tmp_path / "gantt.html").exists()
