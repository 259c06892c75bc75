"""The repository's own bench, run: from a record through TVM to a measurement."""

from __future__ import annotations

import csv
import json

import pytest
from hostile_records import LAMBDA

from pytest_gpuenergy.report import load_report

pytestmark = pytest.mark.tvm


def test_bundled_kernels_are_made_verified_and_measured(bench):
    bench.give_case7("mine", good=2)
    result = bench.run(
        "--records", "mine", "--powercap", "1,5", "--kernels", "top1", "--gpuenergy-json", "r.json"
    )
    result.assert_outcomes(passed=2)
    report = load_report(bench.path / "r.json")
    assert report.run.emulated
    low, high = report.measurements
    assert (low.workload.name, low.kernel.label, low.cap) == ("case7", "k01", "200W")
    assert (high.kernel.origin, high.kernel.rank) == ("tvm-metaschedule", 1)
    assert low.kernel.digest == high.kernel.digest
    assert low.correctness == high.correctness
    assert low.correctness is not None
    assert 0 < low.correctness.normwise_error < low.correctness.normwise_bound
    assert low.time_ms is not None
    assert low.gflops == pytest.approx(low.workload.flops / low.time_ms / 1e6)
    (folder,) = (bench.path / ".gpuenergy" / "runs").iterdir()
    with (folder / "csv" / "case7" / "all.csv").open() as table:
        header, row = csv.reader(table)
    assert (len(header), row[0]) == (16, "1")
    assert [cell != "" for cell in row[1::3]] == [True, False, False, False, True]


def test_a_layer_is_measured_under_its_own_name_with_records_of_its_shape(bench):
    bench.give_case7("mine", good=1)
    arguments = ["--records", "mine", "--powercap", "1", "--gpuenergy-json", "r.json"]
    bench.run(*arguments, "-k", "resnet09").assert_outcomes(passed=1, deselected=1)
    (measured,) = load_report(bench.path / "r.json").measurements
    assert (measured.workload.name, measured.kernel.label) == ("resnet09", "k01")
    assert measured.outcome == "correct"


def test_a_record_that_makes_no_kernel_fails_its_own_item_only(bench):
    bench.give_case7("mine", good=1, bad=1)
    result = bench.run("--records", "mine", "--powercap", "1")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["ERROR bench/test_conv2d.py::test_conv2d[[]case7-k02-200W] - *"])
    result.stdout.fnmatch_lines(["case7 kernel 2: *"])
    assert "conftest.py:" not in result.stdout.str()


def test_without_tvm_every_item_says_what_to_install(bench, monkeypatch, tmp_path, give_toolchain):
    monkeypatch.setenv("GPUENERGY_CACHE", str(tmp_path))
    give_toolchain(tmp_path / "emulated" / "host")
    monkeypatch.setattr("pytest_gpuenergy.tuners.tvm.kernel_store.installed_tvm", lambda: None)
    bench.give_case7("mine", good=1)
    result = bench.run("--records", "mine", "--powercap", "1")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["Making case7 kernel 1 from its record needs Apache TVM, which is not installed: *"]
    )
    assert "conftest.py:" not in result.stdout.str()


def test_a_record_that_is_a_program_is_refused_and_never_run(bench, monkeypatch):
    monkeypatch.setenv("SECRET", "well-kept")
    bench.give_case7("mine", good=2)
    (path,) = (bench.path / "mine").iterdir()
    text = path.read_text()
    assert '"threadIdx.x"' in text
    path.write_text(text.replace('"threadIdx.x"', json.dumps(LAMBDA)))
    result = bench.run("--records", "mine", "--powercap", "1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.re_match_lines(
        [r"ERROR: The record file .* in records\[0\] instruction \d+ of the trace \(Bind\) has .*"]
    )
    assert "well-kept" not in result.stdout.str() + result.stderr.str()


@pytest.mark.slow
def test_a_baseline_in_other_modes_is_compared_where_these_are_named(bench):
    bench.give_case7("mine", good=1)
    arguments = ["--records", "mine", "--powercap", "1"]
    bench.run(*arguments, "--gpuenergy-json", "r.json").assert_outcomes(passed=1)
    text = (bench.path / "r.json").read_text()
    report = json.loads(text)
    (plain,) = report["measurements"]
    other = json.loads(json.dumps(plain).replace("[case7-", "[case7_3xtf32-"))
    other["workload"]["name"] = "case7_3xtf32"
    other["workload"]["parameters"]["mode"] = "3xtf32"
    report["measurements"].append(other)
    (bench.path / "both.json").write_text(json.dumps(report))
    gone = "*1 of 2 missing*"
    result = bench.run(*arguments, "--gpuenergy-compare", "both.json")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line(gone)
    result = bench.run(*arguments, "--gpuenergy-compare", "both.json", "-k", "case7 or 3xtf32")
    result.stdout.fnmatch_lines([gone])
