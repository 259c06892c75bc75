"""`gpuenergy report`: merging runs and writing views."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_outcomes import ended
from msgspec.structs import replace
from report_fixtures import a_run

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.record import KernelInfo, Measurement, WorkloadInfo
from pytest_gpuenergy.report import RunFolder, load_report

K01 = Measurement(
    node_id="bench.py::test[case1-k01-300W]",
    workload=WorkloadInfo("case1", {}, 100, 10),
    kernel=KernelInfo("k01", "0" * 64, "file", rank=1),
    outcome="correct",
    cap="300W",
    cap_index=3,
    power_limit_w=300.0,
    time_ms=0.5,
    energy_mj=100.0,
    edp_mj_ms=50.0,
    power_w=200.0,
    gflops=20.0,
    gflops_per_w=0.1,
)
K02 = replace(
    K01, node_id="bench.py::test[case1-k02-300W]", kernel=KernelInfo("k02", "1" * 64, "file", 2)
)


def printed(*words: object) -> str:
    return ended(0, "report", *words).out


def refused(*words: object) -> str:
    return ended(2, "report", *words).err


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_run(project: Path, name: str, *measurements: Measurement, **changes: object) -> Path:
    run = a_run(run_id=name, started=name, **changes)
    folder = RunFolder.create(project, run)
    for measurement in measurements:
        folder.append(measurement)
    return folder.path


def test_the_latest_run_is_summed_up(project):
    make_run(project, "a", K01)
    make_run(project, "b", K02)
    shown = printed()
    assert shown.startswith("NVIDIA H200 (emulated), run b\ncase1 at 300W (emulated)")
    assert "k02" in shown
    assert "k01" not in shown


def test_runs_are_merged_into_one_report(project):
    first = make_run(project, "a", K01, K02)
    second = make_run(project, "b", replace(K02, time_ms=0.25, edp_mj_ms=25.0))
    assert main(["report", str(first), str(second), "--json", "all.json"]) == 0
    merged = load_report(project / "all.json")
    assert [m.kernel.label for m in merged.measurements] == ["k01", "k02"]
    assert merged.measurements[1].time_ms == 0.25


def test_a_run_of_this_project_can_be_named_by_its_id(project):
    make_run(project, "a", K01)
    make_run(project, "b")
    assert "k01" in printed("a")


def test_json_can_go_to_the_terminal(project):
    make_run(project, "a", K01)
    document = json.loads(printed("--json", "-"))
    assert document["schema_version"] == 1
    assert [m["node_id"] for m in document["measurements"]] == [K01.node_id]


def test_markdown_can_go_to_the_terminal(project):
    make_run(project, "a", K01)
    assert printed("--md", "-").startswith("# NVIDIA H200 (emulated), run a\n")


def test_views_are_written_from_a_json_report(project):
    make_run(project, "a", K01)
    assert main(["report", "a", "--json", "a.json"]) == 0
    assert main(["report", "a.json", "--csv", "csv", "--md", "a.md"]) == 0
    assert (project / "csv/case1/powercap3/results.csv").read_text() == (
        "id,perf(GFLOP/s),energy(mJ),EDP(ms*mJ)\n1,20.0,100.0,50.0\n"
    )
    assert "k01" in (project / "a.md").read_text()


def test_a_run_without_measurements_is_refused(project):
    make_run(project, "a")
    assert "Run a has no measurements, so there is nothing to report" in refused("--json", "a.json")
    assert not (project / "a.json").exists()


WRONG = replace(
    K01,
    outcome="correctness",
    error="1 of 4 elements is wrong.",
    **dict.fromkeys(("time_ms", "energy_mj", "edp_mj_ms", "power_w", "gflops", "gflops_per_w")),
)


@pytest.mark.parametrize("option", ["--csv", "--bencher", "--gha"])
def test_a_view_of_figures_is_refused_where_no_kernel_has_any(project, capsys, option):
    make_run(project, "a", WRONG)
    assert main(["report", option, "out"]) == 2
    said = f"{option} has figures only, and none of the 1 kernels has any (1 of 4 elements"
    assert said in capsys.readouterr().err
    assert not (project / "out").exists()


def test_failed_kernels_alone_are_still_shown(project):
    make_run(project, "a", WRONG)
    assert "correctness: 1 of 4 elements is wrong." in printed()


YOLO = replace(
    K01,
    node_id="bench.py::test[yolo00-k01-300W]",
    workload=WorkloadInfo("yolo00", {}, 100, 10),
    kernel=KernelInfo("k01", "abcdef012345" + "0" * 52, "file", rank=1),
)


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (["--case", "case1"], ["case1/k01", "case1/k02"]),
        (["--case", "1"], ["case1/k01", "case1/k02"]),
        (["--case", "all"], ["case1/k01", "case1/k02"]),
        (["--network", "yolo"], ["yolo00/k01"]),
        (["--network", "yolo,cases"], ["case1/k01", "case1/k02", "yolo00/k01"]),
        (["--network", "yolo", "--case", "case1-k02"], ["case1/k02", "yolo00/k01"]),
        (["--case", "k01"], ["case1/k01", "yolo00/k01"]),
        (["--case", "case1-k02,yolo00-k01-300W"], ["case1/k02", "yolo00/k01"]),
        (["--case", "bench.py::test[case1-k01-300W]"], ["case1/k01"]),
        (["--case", "test[case1-k01-300W]"], ["case1/k01"]),
        (["--case", "k02 at 300W"], ["case1/k02"]),
        (["--case", "CASE1"], ["case1/k01", "case1/k02"]),
        (["--case", "abcdef012345"], ["yolo00/k01"]),
    ],
)
def test_measurements_are_chosen_by_any_id_that_a_view_shows(project, words, chosen):
    make_run(project, "a", K01, K02, YOLO)
    assert main(["report", *words, "--json", "a.json"]) == 0
    found = load_report(project / "a.json").measurements
    assert [f"{m.workload.name}/{m.kernel.label}" for m in found] == chosen


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--case", ","], "--case and --network name nothing"),
        (["--network", ""], "--case and --network name nothing"),
        (["--case", "case7"], "Nothing in this report is called 'case7': it has case1, yolo00."),
        (["--case", "k0"], "called 'k0'"),
        (["--case", "case1,nothing"], "called 'nothing'"),
        (["--case", "\x1b[31m"], "Nothing in this report is called"),
        (["--network", "resnet"], "called 'resnet'"),
        (["--network", "nothing"], "There is no network 'nothing'"),
        (["--sort", "nothing"], "--sort 'nothing' is not understood: give rank, name, time"),
    ],
)
def test_a_choice_of_nothing_is_refused(project, words, said):
    make_run(project, "a", K01, YOLO)
    err = refused(*words)
    assert said in err
    assert err.count("\n") == 1


def test_the_summary_can_be_sorted(project):
    make_run(project, "a", K01, replace(K02, time_ms=0.25, edp_mj_ms=25.0))
    shown = printed("--sort", "time")
    assert shown.index("k02") < shown.index("k01")


@pytest.mark.parametrize("columns", ["40", "60", "80"])
def test_the_summary_is_as_wide_as_the_terminal(project, monkeypatch, columns):
    make_run(project, "a", K01, replace(K02, validity=("host_gaps", "temperature_drift")))
    monkeypatch.setenv("COLUMNS", columns)
    lines = printed().splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert "temperature_drift" in "\n".join(lines)


def test_without_any_run_there_is_advice():
    assert "run pytest first" in refused()


def test_runs_of_a_real_and_an_emulated_gpu_do_not_mix(project):
    make_run(project, "a", K01)
    make_run(project, "b", K01, emulated=False)
    assert "cannot be merged" in refused("a", "b")


def test_a_missing_run_is_one_sentence():
    assert refused("no-such-run") == (
        "gpuenergy: error: no-such-run does not exist: name a folder in .gpuenergy/runs, the id of "
        "one, or a JSON report.\n"
    )


@pytest.mark.parametrize(
    ("option", "name", "beginning"),
    [
        ("--tidy", "t.csv", "run_id,gpu_name,"),
        ("--md", "t.md", "# NVIDIA H200 (emulated), run a\n"),
        ("--bencher", "b.json", '{\n "bench.py::test[case1-k01-300W] (emulated)": {'),
        ("--gha", "g.json", '[\n {\n  "name": "bench.py::test[case1-k01-300W] (emulated) time"'),
    ],
)
def test_each_view_goes_to_a_file_or_to_the_terminal(project, option, name, beginning):
    make_run(project, "a", K01)
    assert main(["report", option, f"deep/{name}"]) == 0
    shown = printed(option, "-")
    assert shown.startswith(beginning)
    assert (project / "deep" / name).read_text(encoding="utf-8") == shown


def test_parquet_is_written(project):
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow", exc_type=ImportError)
    make_run(project, "a", K01)
    assert main(["report", "--parquet", "t.parquet"]) == 0
    assert (project / "t.parquet").read_bytes().startswith(b"PAR1")


def test_best_perf_of_other_workloads_is_refused(project):
    make_run(project, "a", K01)
    assert "this report has neither: omit --best-perf" in refused("--best-perf", "folder")


def test_the_schema_needs_no_run(project):
    assert json.loads(printed("--schema", "-"))["title"] == "Report of pytest-gpuenergy"
    assert list(project.iterdir()) == []


@pytest.mark.slow
def test_a_run_that_was_killed_can_be_looked_at(project):
    folder = make_run(project, "a", K01)
    with (folder / "measurements.jsonl").open("a") as file:
        file.write('{"node_id": "bench.py::test[case1-k02-3')
    outputs = {"--html": "p.html", "--tidy": "t.csv", "--md": "m.md", "--gha": "g.json"}
    assert main(["report", "a", *(word for pair in outputs.items() for word in pair)]) == 0
    for name in outputs.values():
        text = (project / name).read_text(encoding="utf-8")
        assert "k01" in text
        assert "k02" not in text


def test_the_page_shows_a_baseline(project):
    make_run(project, "before", replace(K01, energy_mj=90.0, edp_mj_ms=45.0))
    make_run(project, "now", K01)
    assert main(["report", "now", "--html", "p.html", "--baseline", "before"]) == 0
    data = shown_on(project / "p.html")
    energy = next(one for one in data["differences"] if one["metric"] == "energy")
    assert (energy["before"], energy["now"]) == (90.0, 100.0)
    assert {one["metric"] for one in data["verdicts"]["judgements"]} == {"time", "energy", "edp"}


def shown_on(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8")
    found = json.loads(text.partition('id="report-data">')[2].partition("</script>")[0])
    return dict(found)


def test_the_page_shows_the_trend_over_the_projects_runs(project):
    for name, energy in (("a", 90.0), ("b", 95.0), ("c", 100.0)):
        make_run(project, name, replace(K01, energy_mj=energy, edp_mj_ms=energy / 2))
    assert main(["report", "--html", "p.html", "--trend"]) == 0
    (one,) = shown_on(project / "p.html")["trend"]
    assert [run for run, _ in one["runs"]] == ["a", "b", "c"]
    assert one["metrics"]["energy"]["values"] == [90.0, 95.0, 100.0]


def test_the_page_shows_the_trend_over_the_runs_that_are_named(project):
    for name in ("a", "b", "c"):
        make_run(project, name, K01)
    assert main(["report", "c", "--html", "p.html", "--trend", "a"]) == 0
    (one,) = shown_on(project / "p.html")["trend"]
    assert [run for run, _ in one["runs"]] == ["a", "c"]


def test_a_trend_without_a_page_is_refused(project):
    make_run(project, "a", K01)
    assert "--trend is shown on the HTML page only: give --html too" in refused("--trend")


def test_the_page_is_not_written_over_a_run_of_the_trend(project):
    make_run(project, "a", K01)
    assert main(["report", "a", "--json", "a.json"]) == 0
    before = (project / "a.json").read_text()
    assert main(["report", "a", "--html", "a.json", "--trend", "a.json"]) == 2
    assert (project / "a.json").read_text() == before


@pytest.mark.parametrize("name", ["run.json", "measurements.jsonl", "anchors.jsonl"])
@pytest.mark.parametrize("option", ["--json", "--md", "--csv", "--schema"])
def test_no_view_takes_the_place_of_what_a_run_has_measured(project, name, option):
    folder = make_run(project, "a", K01)
    (folder / "anchors.jsonl").touch()
    before = (folder / name).read_text()
    assert "is where a run stores its measurements" in refused(option, str(folder / name))
    assert (folder / name).read_text() == before


def test_a_link_to_what_was_measured_is_no_place_for_a_view(project):
    lines = make_run(project, "a", K01) / "measurements.jsonl"
    before = lines.read_text()
    (project / "link.json").symlink_to(lines)
    assert main(["report", "--json", "link.json"]) == 2
    assert lines.read_text() == before


@pytest.mark.parametrize(
    "words",
    [
        ["--json", "v", "--md", "v"],
        ["--json", "v", "--csv", "v"],
        ["--tidy", "v", "--csv", "v/below"],
        ["--csv", "v/below/..", "--schema", "v"],
    ],
    ids=" ".join,
)
def test_each_view_needs_a_place_of_its_own(project, words):
    make_run(project, "a", K01)
    assert "conflict: give each a path of its own" in refused(*words)
    assert not (project / "v").exists()


def test_views_can_share_a_folder(project):
    make_run(project, "a", K01)
    assert main(["report", "--json", "out/r.json", "--csv", "out", "--md", "out/r.md"]) == 0
    assert (project / "out/case1/all.csv").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["report", "a.json", "--md", "a.json"],
        ["report", "a", "--html", "a.json", "--baseline", "a.json"],
        ["report", "copy", "--json", "copy/measurements.jsonl"],
        ["report", "old", "--md", "old/case1/powercap3/output_kernel1.txt"],
        ["compare", "a.json", "a", "--json", "a.json"],
        ["compare", "a", "a.json", "--md", "a.json"],
    ],
    ids=" ".join,
)
def test_what_is_read_is_not_replaced(project, words):
    folder = make_run(project, "a", K01)
    assert main(["report", "a", "--json", "a.json"]) == 0
    shutil.copytree(folder, "copy")
    output = project / "old/case1/powercap3/output_kernel1.txt"
    output.parent.mkdir(parents=True)
    output.write_text("GFLOP/s: 1\n")
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    assert "is also an input, and would be overwritten" in ended(2, *words).err
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("words", [["compare", "a", "a"], ["history"]], ids=lambda words: words[0])
def test_json_and_markdown_of_a_command_need_a_place_each(project, words):
    make_run(project, "a", K01)
    assert main([*words, "--json", "v", "--md", "v"]) == 2
    assert not (project / "v").exists()


def test_a_baseline_is_not_written_over_what_was_measured(project):
    lines = make_run(project, "a", K01) / "measurements.jsonl"
    before = lines.read_text()
    assert main(["baseline", "update", "--replace", "--to", str(lines)]) == 2
    assert lines.read_text() == before


def test_a_baseline_without_a_page_is_refused(project):
    make_run(project, "a", K01)
    assert "give --html too" in refused("--baseline", "a")


ROOT = Path(__file__).parent.parent.parent
REPORT = ROOT / "bench/results/nvidia-h200-2026-11-22/report.json"


def view(*options: str) -> str:
    return printed(str(REPORT), *options)


def test_the_summary_names_the_kernels_within_noise():
    text = view()
    assert "49.2 mJ ±0.72 % k03, k01 within noise at current" in text
    assert "5.61 mJ ±0.72 % k05 at current" in text  # certainly the least


def test_markdown_names_them_and_gives_every_figure_its_interval():
    text = view("--md", "-")
    assert "49.2 mJ ±0.72 % (k03, k01 within noise at current)" in text
    rows = [line for line in text.splitlines() if line.startswith(("| k0", "| k1", "| k2", "| *"))]
    assert len(rows) == 175
    assert all(row.count("±") == 3 for row in rows)


@pytest.mark.slow
def test_json_lists_them_and_can_be_read_again(tmp_path):
    text = view("--json", "-")
    case3 = next(one for one in json.loads(text)["best"] if one["workload"] == "case3")
    assert case3["energy"]["kernels"] == ["k03", "k01"]
    assert case3["time"]["kernels"] == ["k01"]
    assert set(case3["front"]) < set(case3["near_front"])
    again = tmp_path / "again.json"
    again.write_text(text, encoding="utf-8")
    assert printed(str(again), "--json", "-") == text


def test_the_tidy_table_has_the_standing_of_each_row():
    rows = list(csv.DictReader(io.StringIO(view("--tidy", "-"))))
    case3 = {row["kernel_label"]: row for row in rows if row["workload_name"] == "case3"}
    assert case3["k01"]["best_of"] == "time energy edp"
    assert case3["k03"]["best_of"] == "energy edp"
    assert case3["k01"]["pareto"] == "front"
    assert case3["k20"]["pareto"] == case3["k20"]["best_of"] == ""
    assert sum(row["pareto"] == "within noise" for row in case3.values()) == 1
