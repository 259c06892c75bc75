"""`gpuenergy advise` on reports."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_outcomes import ended
from msgspec.structs import replace

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.record import Interval, Measurement, StationInfo
from pytest_gpuenergy.report import Report, write_json

Make = Callable[..., Any]


def printed(*words: object) -> str:
    return ended(0, "advise", *words).out


def refused(*words: object) -> str:
    return ended(2, "advise", *words).err


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sweep(at_clock: Make) -> list[Measurement]:
    """Two layers of ResNet under two caps and at a clock, two kernels each."""
    rows = []
    for layer in ("resnet03", "resnet06"):
        for rank in (1, 2):
            for (cap, clock), (time_ms, energy_mj) in {
                (3, None): (0.55, 90.0),
                (5, None): (0.50, 100.0),
                (5, 1500): (0.51, 70.0),
            }.items():
                rows.append(
                    at_clock(
                        *(rank, cap, clock),
                        workload=layer,
                        time_ms=time_ms * (1 + rank / 10),
                        energy_mj=energy_mj,
                    )
                )
    return rows


@pytest.fixture
def write(report: Make, project: Path) -> Callable[..., str]:
    """Write a report of the measurements given; returns its path."""

    def make(*rows: Measurement, stations: tuple[StationInfo, ...] = (), **run: Any) -> str:
        path = project / "sweep.json"
        made: Report = replace(report(*rows, **run), stations=stations)
        write_json(made, path)
        return str(path)

    return make


Capture = pytest.CaptureFixture[str]


def test_the_terminal_has_the_setpoint_the_saving_and_the_kernels(write, sweep):
    heading, advice, *lines = printed(write(*sweep)).splitlines()
    assert heading == "NVIDIA H200 (emulated), run 20260102T030405-abcdef: least EDP"
    assert advice == "all 2 workloads together: 700W-1500MHz"
    assert lines[0].startswith("  time +2.0 % (+1.")
    assert lines[1].startswith("  energy -30.0 % (-30.")
    assert lines[3] == (
        "  1.12 ms ±0.14 %, 140 mJ ±0.14 %, 157 mJ·ms ±0.2 %; "
        "at the baseline 700W 1.10 ms ±0.14 %, 200 mJ ±0.14 %, 220 mJ·ms ±0.2 %"
    )
    rows = [line.split() for line in lines]
    assert "resnet03 1 k01 561 µs ±0.2 % 70.0 mJ ±0.2 %" in [" ".join(row) for row in rows]
    assert lines[-3] == "each workload by itself" or lines[-4] == "each workload by itself"


def test_a_narrow_terminal_is_not_exceeded(write, sweep, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, printed(write(*sweep)).splitlines())) <= 50


def test_json_has_everything(write, sweep):
    options = ["--slower-by", "5%", "--weights", "resnet03=3", "--json", "-"]
    document = json.loads(printed(write(*sweep), *options))
    assert (document["objective"], document["slower_by"]) == ("energy", 0.05)
    assert document["emulated"] is True
    assert document["weights"] == {"resnet03": 3.0, "resnet06": 1.0}
    whole = document["whole"]
    assert (whole["setpoint"], whole["sm_clock_mhz"], whole["exact"]) == (
        "700W-1500MHz",
        1500,
        True,
    )
    assert whole["energy_mj"] == pytest.approx(4 * 70.0)
    low, high = whole["changes"]["energy"]["interval"]
    assert whole["changes"]["energy"]["change"] == pytest.approx(-0.3)
    assert low < -0.3 < high
    assert whole["baseline"]["setpoint"] == "700W"
    assert whole["too_slow"] == ["450W"]
    assert [one["kernel"] for one in whole["kernels"]] == ["k01", "k01"]
    assert [one["workloads"] for one in document["workloads"]] == [["resnet03"], ["resnet06"]]
    assert document["apart"]["energy"]["change"] == pytest.approx(-0.3)


def test_markdown_is_escaped(write, at_clock):
    rows = [at_clock(1, 5, workload="a|<b>"), at_clock(1, 3, workload="a|<b>", energy_mj=50.0)]
    out = printed(write(*rows), "--md", "-")
    assert out.startswith("# NVIDIA H200 (emulated), run")
    assert "<b>" not in out
    assert "energy -50.0 %" in out


def test_a_network_names_the_layers_that_are_missing(write, sweep):
    assert (
        "without a clean measurement, and not in the sums: resnet01, resnet02, resnet04, resnet05, "
        "resnet07 and 13 more"
    ) in printed(write(*sweep), "--network", "resnet")


def test_a_case_is_advised_alone(write, sweep):
    out = printed(write(*sweep), "--case", "resnet06")
    assert "resnet06: 700W-1500MHz" in out
    assert "by itself" not in out


def test_without_a_common_setpoint_each_is_advised_by_itself(write, at_clock):
    rows = [
        at_clock(1, 3, workload="case1"),
        at_clock(1, 5, workload="case2"),
    ]
    out = ended(1, "advise", write(*rows)).out
    assert "no setpoint has a clean measurement of every workload" in out
    assert (
        "setpoints that lack workloads, and are no choice for all: 450W (case2), 700W (case1)"
        in out
    )
    assert "450W" in out.splitlines()[-2]


def test_runs_are_merged(sweep, report, project):
    write_json(report(*sweep[:6], run_id="a"), project / "a.json")
    write_json(report(*sweep[6:], run_id="b"), project / "b.json")
    assert "all 2 workloads together" in printed("a.json", "b.json")


H100 = StationInfo("GPU-9", "NVIDIA H100", "h", "sm_90", True, {}, {})


def test_gpu_models_are_never_mixed(write, report, sweep, at_clock):
    other = at_clock(1, 1, workload="resnet03", gpu_uuid="GPU-9")
    path = write(*sweep, other, stations=(report().run.station, H100))
    error = refused(path)
    assert "several GPU models (NVIDIA H200 (emulated), NVIDIA H100 (emulated))" in error
    assert printed(path, "--gpu", "h100").startswith("NVIDIA H100 (emulated), run")
    assert "names 2 of the GPU models" in refused(path, "--gpu", "NVIDIA")


def test_of_runs_on_several_models_those_on_the_named_one_are_merged(sweep, report, project):
    write_json(report(*sweep, run_id="a"), project / "a.json")
    write_json(report(*sweep, run_id="b", gpu_name="NVIDIA H100"), project / "b.json")
    assert "several GPU models (NVIDIA H200 (emulated), NVIDIA H100 (em" in refused(
        "a.json", "b.json"
    )
    assert printed("a.json", "b.json", "--gpu", "h200").startswith(
        "NVIDIA H200 (emulated), run a: "
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--slower-by", "five"], "--slower-by 'five' is not understood"),
        (["--slower-by", "5%", "--objective", "edp"], "leave out --objective edp"),
        (["--weights", "resnet03"], "--weights 'resnet03' is not understood"),
        (["--weights", "resnet03=0"], "'resnet03=0' is not understood"),
        (["--weights", "resnet03=nan"], "'resnet03=nan' is not understood"),
        (["--weights", "resnet03=1e400"], "'resnet03=1e400' is not understood"),
        (["--weights", "resnet03=1,resnet03=2"], "names 'resnet03' twice"),
        (["--weights", ","], "--weights is empty"),
        (["--weights", "resnet99=2"], "of which there is no clean measurement"),
        (["--baseline", "300W"], "choose one of 450W, 700W-1500MHz, 700W"),
        (["--case", "case1"], "Nothing in this report is called 'case1'"),
        (["--gpu", "h100"], "names 0 of the GPU models"),
    ],
)
def test_what_is_not_understood_is_said(write, sweep, options, said):
    error = refused(write(*sweep), *options)
    assert said in error
    assert error.count("\n") == 1


def test_without_clean_figures_there_is_no_advice(write, at_clock, failed):
    rows = [at_clock(1, 5, validity=("legacy",)), replace(failed(2), node_id="other")]
    assert "(1 flagged legacy, 1 failed)" in refused(write(*rows))
    assert "None of the 0 measurements" in refused(write())


def test_figures_with_wide_intervals_are_used(write, sweep):
    noisy = [replace(m, validity=("interval_wide", "not_settled")) for m in sweep]
    assert "left out" not in printed(write(*noisy))
    drifting = replace(sweep[0], validity=("interval_wide", "drift"))
    assert "left out: 1 flagged drift" in printed(write(drifting, *sweep[1:]))


def test_intervals_without_bounds_are_no_error(write, sweep):
    ends = Interval(0.0, 1e50)
    wide = [replace(m, time_ms_ci95=ends, energy_mj_ci95=ends, edp_mj_ms_ci95=ends) for m in sweep]
    assert "as good within noise" in printed(write(*wide))
    assert main(["advise", write(*wide), "--json", "-"]) == 0


def test_workloads_that_share_a_name_are_told_apart(write, sweep):
    padded = {"kind": "conv2d", "padding": "1"}
    rows = [
        replace(m, workload=replace(m.workload, name="layer", parameters=padded))
        if m.workload.name == "resnet06"
        else replace(m, workload=replace(m.workload, name="layer"))
        for m in sweep
    ]
    lines = printed(write(*rows)).splitlines()
    assert (
        "layer stands for several workloads, which count as such: give each a name of " in lines[1]
    )
    assert lines[2].startswith("all 2 workloads together: ")
    for name in ("layer (padding none)", "layer (padding 1)"):
        assert sum(line.strip().startswith(f"{name} ") for line in lines) == 2


def test_what_is_not_exact_or_not_sure_is_said(write, at_clock, monkeypatch):
    monkeypatch.setattr("pytest_gpuenergy.advice.solve.MAX_STATES", 1)
    rng = random.Random(2)
    rows = [
        at_clock(
            *(rank, 5),
            workload=f"w{layer}",
            time_ms=rng.uniform(1.0, 1.2),
            energy_mj=rng.uniform(100.0, 200.0),
            half=0.01,
        )
        for layer in range(6)
        for rank in range(8)
    ]
    out = printed(write(*rows), "--slower-by", "2%")
    assert re.search(
        r"other kernels might take up to [0-9.]+ % less: the search was cut short", out
    )
    assert "the slowdown may be more than 2 %, within noise" in out


def test_an_output_does_not_overwrite_the_input(write, sweep):
    path = write(*sweep)
    before = Path(path).read_bytes()
    assert main(["advise", path, "--json", path]) == 2
    assert Path(path).read_bytes() == before
