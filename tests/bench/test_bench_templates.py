"""The repository's own bench runs the records of a template like those of TVM, and without TVM."""

from __future__ import annotations

import pytest

from pytest_gpuenergy.report import load_report
from pytest_gpuenergy.tuners import TEMPLATE_FORM, DepthwiseParameters
from pytest_gpuenergy.tuning import Record, RecordFile, dump_records, file_name
from pytest_gpuenergy.workloads import Conv2d

LAYER = Conv2d.of("depthwise", 1, 8, 8, 4, 4, 3, 3, 1, 1, 1, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["--case", "depthwise"],
        pytest.param(["--network", "project"], marks=pytest.mark.thorough),
    ],
    ids=["case", "network"],
)
def test_a_layer_in_groups_is_measured_from_its_records(bench, words, monkeypatch):
    monkeypatch.setattr("pytest_gpuenergy.tuners.tvm.kernel_store.installed_tvm", lambda: None)
    with (bench.path / "pyproject.toml").open("a") as stream:
        stream.write("[tool.gpuenergy.workloads]\ndepthwise = [1, 8, 8, 4, 4, 3, 3, 1, 1, 1, 4]\n")
    recipes = [DepthwiseParameters(threads_x=8, rows=rows) for rows in (1, 2)]
    records = [
        Record(rank, "fastest", TEMPLATE_FORM.with_time(TEMPLATE_FORM.recipe(one), 0.1 * rank))
        for rank, one in enumerate(recipes, start=1)
    ]
    made = {"gpuenergy": "0.1.0"}
    file = RecordFile(
        LAYER, TEMPLATE_FORM.tuner, "NVIDIA H200", "580.1", made, "2026-01-01", 9, 9, tuple(records)
    )
    dump_records(file, bench.path / "mine" / file_name(LAYER, TEMPLATE_FORM.variant))
    result = bench.run(*words, "--records", "mine", "--powercap", "1", "--gpuenergy-json", "r.json")
    result.assert_outcomes(passed=2)
    first, second = load_report(bench.path / "r.json").measurements
    assert (first.kernel.label, second.kernel.label) == ("k01", "k02")
    assert (first.workload.name, first.kernel.origin) == ("depthwise", "template")
