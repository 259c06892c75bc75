"""Formats of other tools: ``best_perf.txt``, Bencher and github-action-benchmark."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.record import (
    FIGURES,
    Interval,
    KernelInfo,
    Measurement,
    RunInfo,
    Window,
    WorkloadInfo,
)
from pytest_gpuenergy.report import (
    Report,
    bencher_json,
    github_action_json,
    write_best_perf,
    write_json,
)
from pytest_gpuenergy.workloads import CASES, Conv2d

Measured = Callable[..., Measurement]
Make = Callable[..., Report]


@pytest.fixture
def contender(measured: Measured) -> Measured:
    """A measurement of a contender in a product of 64 x 32 x 16."""

    def make(
        name: str, mode: str = "float32", *, n: object = 32, time_ms: float = 0.5, **changes: Any
    ) -> Measurement:
        suffix = "" if mode == "float32" else f"_{mode}"
        parameters: dict[str, Any] = {"kind": "gemm", "M": 64, "N": n, "K": 16, "layout": "nn"}
        workload = WorkloadInfo(f"gemm_64x{n}x16_nn{suffix}", {**parameters, "mode": mode}, 1, 1)
        kernel = KernelInfo(name, "0" * 64, "template", None, {"tile_m": 64})
        one = measured(None, 3, time_ms=time_ms, workload=workload.name)
        return replace(one, workload=workload, kernel=kernel, **changes)

    return make


@pytest.fixture
def report(run_info: Callable[..., RunInfo]) -> Make:
    def make(*measurements: Measurement, **changes: Any) -> Report:
        return Report(run_info(**changes), tuple(measurements))

    return make


def best_perf(report: Report) -> dict[str, str]:
    """The texts of the files by their folders."""
    with tempfile.TemporaryDirectory() as folder:
        written = write_best_perf(report, Path(folder))
        return {path.parent.name: path.read_text() for path in written}


def ranks(text: str) -> list[tuple[str, ...]]:
    """Rank, contender and mode of each line."""
    return [tuple(line.split()[2:5]) for line in text.splitlines() if not line.startswith("#")]


def test_each_size_has_a_text(report, contender):
    found = best_perf(report(contender("template"), contender("tvm", n=8), contender("tvm")))
    assert list(found) == ["M=64_N=32_K=16", "M=64_N=8_K=16"]
    assert len(ranks(found["M=64_N=32_K=16"])) == 2


@pytest.mark.parametrize(
    ("more", "folder"),
    [
        ({"B": 4}, "M=64_N=32_K=16_B=4"),
        ({"groups": "60,0,4"}, "M=64_N=32_K=16_groups=60.0.4"),
        ({"groups": ",".join(["1"] * 64)}, "M=64_N=32_K=16_groups=64h*"),
        ({"groups": "../60"}, None),
        ({"groups": "60,"}, None),
        ({"B": "4"}, None),
    ],
)
def test_batches_and_groups_have_texts_of_their_own(report, contender, more, folder):
    one = contender("template")
    several = replace(one.workload, parameters={**one.workload.parameters, **more})
    found = best_perf(report(replace(one, workload=several)))
    assert [fnmatch(name, folder or "") for name in found] == [True] * (folder is not None)


def test_the_fastest_is_first(report, contender):
    found = report(contender("a", time_ms=0.3), contender("b", time_ms=0.2), contender("c"))
    (text,) = best_perf(found).values()
    assert ranks(text) == [("1", "b", "float32"), ("2", "a", "float32"), ("3", "c", "float32")]


def test_gpu_models_are_ranked_apart(report, contender, run_info):
    both = (contender("a", time_ms=0.1), contender("b", gpu_uuid="GPU-2", time_ms=0.5))
    other = run_info(gpu_name="NVIDIA A30", gpu_uuid="GPU-2").station
    mixed = replace(report(*both), stations=(run_info().station, other))
    ((text,)) = best_perf(mixed).values()
    tables = text.split("\n\n")
    assert [table.split(" (")[0] for table in tables] == ["# NVIDIA H200", "# NVIDIA A30"]
    assert list(map(ranks, tables)) == [[("1", "a", "float32")], [("1", "b", "float32")]]


def test_modes_are_ranked_apart_unless_they_are_as_exact(report, contender):
    found = report(
        contender("a"),
        contender("a", "3xtf32", time_ms=0.4),
        contender("a", "tf32", time_ms=0.1),
    )
    (text,) = best_perf(found).values()
    assert ranks(text) == [("1", "a", "3xtf32"), ("2", "a", "float32"), ("1", "a", "tf32")]


def test_convolutions_are_ranked_alike(report, measured):
    def layer(mode: str, layout: str, time_ms: float) -> Measurement:
        workload = CASES["case2"]
        assert isinstance(workload, Conv2d)
        varied = workload.varied(mode=mode, layout=layout)
        one = measured(None, 3, time_ms=time_ms, workload=varied.name)
        info = WorkloadInfo(varied.name, dict(varied.parameters), 1, 1)
        return replace(one, workload=info, kernel=KernelInfo("k01", "0" * 64, "template"))

    rows = [
        *(layer("float32", "nchw", 0.5), layer("3xtf32", "nchw", 0.4)),
        *(layer("tf32", "nchw", 0.2), layer("3xtf32", "nhwc", 0.3)),
    ]
    ((size, text),) = best_perf(report(*rows)).items()
    assert size == "N=1_H=68_W=68_CO=256_CI=128_KH=3_KW=3_strides=1_padding=1"
    found = [tuple(line.split()[place] for place in (0, 2, 4)) for line in text.splitlines()[2:]]
    assert found == [
        ("case2", "1", "3xtf32"),
        ("case2", "2", "float32"),
        ("case2", "1", "tf32"),
        ("case2_nhwc", "1", "3xtf32"),
    ]


def test_leading_dimensions_keep_no_mode_apart_that_is_as_exact(report, contender):
    plain, split = contender("a"), contender("b", "3xtf32", time_ms=0.4)
    rows = [
        replace(one, workload=replace(one.workload, name=f"{one.workload.name}_lda20"))
        for one in (plain, split)
    ]
    (text,) = best_perf(report(*rows)).values()
    assert ranks(text) == [("1", "b", "3xtf32"), ("2", "a", "float32")]


def test_caps_are_in_their_order(report, contender):
    rows = [contender("a", cap=f"{watts}W", power_limit_w=watts) for watts in (450, 700, 200)]
    (text,) = best_perf(report(*rows)).values()
    assert [line.split()[1] for line in text.splitlines()[2:]] == ["200W", "450W", "700W"]


def test_what_failed_has_no_rank(report, contender):
    none = dict.fromkeys(FIGURES)
    failed = replace(contender("a"), outcome="correctness", error="C is wrong.", **none)
    (text,) = best_perf(report(failed, contender("b"))).values()
    assert ranks(text) == [("1", "b", "float32"), ("-", "a", "float32")]
    assert text.splitlines()[-1].endswith("correctness: C is wrong.")


def test_a_line_has_figures_flags_and_the_configuration(report, contender):
    one = contender(
        "a", time_ms=0.5, gflops=2000.0, gflops_per_w=8.0, validity=("drift",), cap_binding=True
    )
    (text,) = best_perf(report(one)).values()
    words = text.splitlines()[-1].split()
    assert words[5:7] == ["2", "0.5"]
    assert words[9:] == ["0.008", "drift,held-back-by-the-cap", "tile_m=64"]


def test_emulated_figures_say_so(report, contender):
    for emulated in (True, False):
        (text,) = best_perf(report(contender("a"), emulated=emulated)).values()
        assert ("emulated" in text.splitlines()[0]) is emulated


@pytest.mark.parametrize("n", ["../x", True, None])
def test_what_has_no_sizes_is_left_out(report, contender, n):
    assert best_perf(report(contender("a", n=n))) == {}


def test_the_command_writes_them(tmp_path, report, contender, measured):
    write_json(report(contender("a"), measured()), tmp_path / "r.json")
    arguments = ["report", str(tmp_path / "r.json"), "--best-perf", str(tmp_path / "out")]
    assert main(arguments) == 0
    (written,) = (tmp_path / "out").rglob("*.*")
    assert written == tmp_path / "out" / "M=64_N=32_K=16" / "best_perf.txt"


def test_all_that_may_be_the_fastest_share_the_first_rank(report, contender):
    trials = (Window(1.0, 200.0, 2000, 1.0),) * 7
    made = [
        contender(name, time_ms=t, trials=trials, time_ms_ci95=Interval(t * 0.99, t * 1.01))
        for name, t in (("a", 0.2), ("b", 0.2001), ("c", 0.3))
    ]
    (text,) = best_perf(report(*made)).values()
    assert [(rank, name) for rank, name, _ in ranks(text)] == [("1=", "a"), ("1=", "b"), ("3", "c")]


NAME = "bench/test_conv2d.py::test_conv2d[case1-k01-450W]"

BENCHER = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "additionalProperties": {
            "type": "object",
            "properties": {
                "value": {"type": "number"},
                "lower_value": {"type": "number"},
                "upper_value": {"type": "number"},
            },
            "required": ["value"],
            "additionalProperties": False,
        },
    },
}
"""The Metric Format as documented by Bencher."""

GITHUB_ACTION = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "unit": {"type": "string"},
            "value": {"type": "number"},
            "range": {"type": "string"},
            "extra": {"type": "string"},
        },
        "required": ["name", "unit", "value"],
        "additionalProperties": False,
    },
}
"""The format of custom tools as documented by github-action-benchmark."""


def test_bencher_gets_each_measure_with_its_interval(report, measured):
    item = measured(time_ms_ci95=Interval(0.4, 0.75), energy_mj_ci95=Interval(90.0, 110.0))
    document = json.loads(bencher_json(report(item, emulated=False)))
    jsonschema.validate(document, BENCHER)
    assert document == {
        NAME: {
            "latency": {"value": 5e5, "lower_value": 4e5, "upper_value": 7.5e5},
            "energy-mj": {"value": 100.0, "lower_value": 90.0, "upper_value": 110.0},
            "edp-mj-ms": {"value": 50.0},
        }
    }


def test_github_action_gets_figures_with_units(report, measured):
    item = measured(energy_mj_ci95=Interval(90.0, 110.0))
    entries = json.loads(github_action_json(report(item, emulated=False)))
    jsonschema.validate(entries, GITHUB_ACTION)
    assert [(one["name"], one["unit"], one["value"]) for one in entries] == [
        (f"{NAME} time", "ms", 0.5),
        (f"{NAME} energy", "mJ", 100.0),
        (f"{NAME} EDP", "mJ·ms", 50.0),
    ]
    assert entries[1]["range"] == "± 10"


@pytest.mark.parametrize("view", [bencher_json, github_action_json])
def test_only_clean_figures_are_told(report, measured, failed, view):
    flagged = measured(2, validity=("temperature_drift",))
    assert len(json.loads(view(report(flagged, failed(3))))) == 0


@pytest.mark.parametrize("view", [bencher_json, github_action_json])
def test_emulated_figures_are_named_so(report, measured, view):
    assert f'"{NAME} (emulated)' in view(report(measured(1)))


def test_a_figure_beyond_all_numbers_is_left_out(report, measured):
    item = measured(time_ms=1e307, energy_mj=1.0)
    (measures,) = json.loads(bencher_json(report(item))).values()
    assert sorted(measures) == ["edp-mj-ms", "energy-mj"]


def test_long_names_are_cut_to_what_bencher_takes(report, measured):
    item = measured(node_id="n" * 5000)
    (name,) = json.loads(bencher_json(report(item)))
    assert len(name) == 1024
