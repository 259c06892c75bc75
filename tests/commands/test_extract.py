"""`gpuenergy extract` as a user calls it."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from command_outcomes import ended
from profiler_traces import GEMM, lasting, launch, layer, operator, write

from pytest_gpuenergy.cli import main

COPY = lasting("gpu_memcpy", "Memcpy HtoD", 0.0, 5.0, bytes=64)
TWO_LAYERS = [*layer(), *layer(ts=100.0, correlation=2), *launch("=odd", 200.0, 240.0, 3), COPY]


def printed(*words: object) -> str:
    return ended(0, "extract", *words).out


def lines(path: str) -> list[Any]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no plots, which take most of the time of a command, and which one test looks at."""
    monkeypatch.setattr("pytest_gpuenergy.replay.extract.timeline.draw", lambda *_: None)


@pytest.fixture
def trace(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undrawn: None,  # noqa: ARG001 -- it patches the drawing
) -> Path:
    monkeypatch.chdir(tmp_path)
    return write(tmp_path / "model.pt.trace.json", TWO_LAYERS)


def test_it_writes_launches_unique_kernels_and_signatures(trace):
    assert "4 launches of 3 unique kernels" in printed(str(trace), "--out", "run")
    launches = lines("run/kernel_launch_params.jsonl")
    unique = lines("run/unique_kernels_compute.jsonl")
    signatures = json.loads(Path("run/kernel_signatures.json").read_text())["signatures"]
    assert len(launches) == 4
    assert {one["kernel"] for one in launches} == {one["id"] for one in unique}
    assert [one["kernel"] for one in signatures] == [one["id"] for one in unique]
    assert unique[0]["name"] == GEMM
    assert unique[0]["calls"] == 2


def test_the_table_of_launches_has_no_formulas(trace):
    main(["extract", str(trace), "--out", "run"])
    with Path("run/kernel_launch_params.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["name"] for row in rows if "odd" in row["name"]] == ["'=odd"]
    assert rows[1]["grid"] == "4x2x1"


def test_without_a_folder_it_writes_to_one_named_after_the_trace(trace):
    assert main(["extract", str(trace)]) == 0
    assert Path("model-kernels/kernel_signatures.json").is_file()


def test_the_folder_of_a_run_gets_its_files_beside_the_trace(tmp_path):
    write(tmp_path / "plain.json", TWO_LAYERS)
    packed = gzip.compress((tmp_path / "plain.json").read_bytes())
    (tmp_path / "trace.json.gz").write_bytes(packed)
    assert main(["extract", str(tmp_path)]) == 0
    assert (tmp_path / "unique_kernels_compute.jsonl").is_file()


def test_a_script_gets_a_summary(trace):
    found = json.loads(printed(str(trace), "--json"))
    assert found["unique_kernels"] == 3
    assert [one["category"] for one in found["categories"]] == ["product", "other", "copy"]
    assert found["folder"] == "model-kernels"


def test_what_cannot_be_replayed_is_listed_with_its_reason(trace, capsys):
    main(["extract", str(trace)])
    assert "25.0% of the GPU time: it is not known which operator" in capsys.readouterr().out


class TestPower:
    """The folder of a run with ``power.csv``."""

    @pytest.fixture
    def run(
        self,
        tmp_path: Path,
        undrawn: None,  # noqa: ARG002 -- it patches the drawing
    ) -> Path:
        """A prefill of 30 ms and a decode phase of 400 ms."""
        write(
            tmp_path / "trace.json",
            [
                lasting("user_annotation", "prefill", 0.0, 1000.0),
                *layer(dur=30_000.0),
                lasting("user_annotation", "decode 1", 40_000.0, 500.0),
                *layer(ts=40_000.0, correlation=2, dur=400_000.0),
            ],
        )
        rows = [f"{20_000.0 * number},{300 + number % 2}" for number in range(24)]
        (tmp_path / "power.csv").write_text("\n".join(["timestamp_us,power_w", *rows, ""]))
        return tmp_path

    def test_each_long_phase_has_a_line(self, run):
        shown = printed(str(run))
        assert "power: prefill took 30 ms, less than the 100 ms that a mean takes" in shown
        assert "power: decode 300.5 W as profiled, the mean of 17 samples" in shown

    def test_a_script_gets_the_same(self, run):
        found = json.loads(printed(str(run), "--json"))["phase_powers"]
        assert [(one["phase"], one["samples"]) for one in found] == [("prefill", 0), ("decode", 17)]

    def test_a_damaged_curve_gets_one_sentence(self, run):
        (run / "power.csv").write_text("timestamp_us,power_w\nsoon,300\n")
        assert "delete the file, or profile again" in ended(2, "extract", str(run)).err

    def test_a_trace_by_itself_has_no_power(self, run, tmp_path):
        assert "power:" not in printed(str(run / "trace.json"), "--out", str(tmp_path / "other"))


class TestKernelList:
    """A folder with a file of unique kernels and no trace."""

    @pytest.fixture
    def run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.chdir(tmp_path)
        lines = [
            {"kernel_name": GEMM, "operator": "aten::addmm", "count": 3, "total_time_ms": 6},
            {"kernel_name": "odd", "duration": 2000.0, "grid": "large"},
        ]
        lines[0] |= {"shapes": [[8], [8]], "dtypes": ["float"] * 2, "strides": [[1], [1]]}
        text = "\n".join(map(json.dumps, lines))
        (tmp_path / "bloom_unique_kernels_compute.jsonl").write_text(text)
        return tmp_path

    def test_it_is_extracted_as_far_as_it_goes(self, run):
        shown = printed(str(run))
        assert "? launches of 2 unique kernels took 8.000 ms" in shown
        assert "so there is no timeline" in shown
        assert "can be replayed: 75.0% of the GPU time\n" in shown
        assert "grid is not understood in 1 line, such as line 2" in shown
        signatures = json.loads((run / "kernel_signatures.json").read_text())
        assert (signatures["launches"], signatures["busy_us"]) == (None, None)
        assert [one["tier"] for one in signatures["signatures"]] == [2, None]
        product, odd = lines(str(run / "unique_kernels_compute.jsonl"))
        assert (product["calls"], product["total_us"]) == (3, 6000.0)
        assert (odd["calls"], odd["grid"], odd["operator"]) == (None, None, None)

    def test_no_launches_and_no_timeline_are_written(self, run):
        pytest.importorskip("vl_convert", reason="needs vl-convert")
        assert main(["extract", str(run), "--out", "out"]) == 0
        assert {one.name for one in Path("out").iterdir()} == {
            "breakdown.png",
            "kernel_signatures.json",
            "unique_kernels_compute.jsonl",
        }

    def test_the_file_may_be_named_itself(self, run):
        name = "bloom_unique_kernels_compute"
        found = json.loads(printed(str(run / f"{name}.jsonl"), "--json"))
        assert found["folder"] == f"{name}-kernels"
        assert found["launches"] is None
        assert len(found["notes"]) == 1

    def test_of_two_such_files_one_is_to_be_named(self, run):
        (run / "other_unique_kernels_compute.jsonl").write_text("")
        assert "name one of them" in ended(2, "extract", str(run)).err

    def test_a_trace_comes_first(self, run):
        write(run / "trace.json", TWO_LAYERS)
        assert "4 launches of 3 unique kernels" in printed(str(run))

    def test_a_replay_says_what_is_missing(self, run):
        assert "has unique kernels and no profile.json, without" in ended(2, "replay", str(run)).err


def test_names_that_no_picture_may_have_are_drawn_with_blanks(tmp_path):
    pytest.importorskip("vl_convert", reason="needs vl-convert")
    name = "kernel\x1b[31m\x07\ud800"
    trace = write(
        tmp_path / "trace.json", [operator("aten::\x00mm", 0, 30), *launch(name, 1, 2, 1)]
    )
    assert main(["extract", str(trace), "--out", str(tmp_path / "out")]) == 0
    assert all((tmp_path / f"out/{plot}.png").is_file() for plot in ("gantt", "breakdown"))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("trace.json", b'{"traceEvents": [', "not a trace of PyTorch's profiler"),
        ("trace.json", b"{}", "traceEvents"),
        ("trace.json", b'{"traceEvents": [{"ts": "soon"}]}', "ts is a string"),
        ("trace.json.gz", gzip.compress(b'{"traceEvents": []}')[:20], "cannot be decompressed"),
        ("trace.json", b'{"traceEvents": []}', "ran on a GPU"),
        ("other.json", b"{}", "has no trace.json.gz"),
    ],
    ids=["truncated", "foreign", "text", "packed", "empty", "folder"],
)
def test_what_is_no_trace_gets_one_sentence(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    error = ended(2, "extract", str(tmp_path if name == "other.json" else tmp_path / name)).err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "kernel_signatures.json").exists()
