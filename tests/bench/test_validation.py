"""The validation bench, run on the emulated GPU, and the commands that read what it wrote."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import table
from bench_folder import INI, ROOT
from record import OURS, Attempt, Part, Reference, Span, Validated, Validation, read_validation

from pytest_gpuenergy.support import InputError

pytestmark = pytest.mark.slow

RUN = {
    "gpu_name": "NVIDIA H200",
    "gpu_uuid": "GPU-1",
    "emulated": False,
    "power_limit_w": 700.0,
    "software": {"driver": "580.0"},
    "settings": {},
}


def attempt(energy_mj: float, half: float = 1.0, protocol: str = OURS) -> Attempt:
    span = Span(energy_mj - half, energy_mj + half)
    return Attempt(
        protocol,
        energy_mj,
        2.0,
        2.3,
        {"time": Span(1.9, 2.1), "energy": span, "edp": Span(2 * span.low, 2 * span.high)},
        {"heat": 1.0},
        0.999,
        40,
    )


def validation(*, repeats: tuple[float, ...] = ()) -> Validation:
    validated = Validated(
        "axpy",
        "axpy-axpy",
        Reference(100.0, 2.0, 50.0, 12.0, 0.001, (40, 41), (Part(99.9, 1.99), Part(100.1, 2.01))),
        (attempt(101.5), replace(attempt(90.0, protocol="classic"), intervals=None, busy=None)),
        tuple(map(attempt, repeats)),
    )
    return Validation(RUN, (validated,))


@pytest.fixture
def bench(pytester: pytest.Pytester) -> pytest.Pytester:
    heated = INI.replace('gpuenergy_preheat = "0"', "")  # the figures are those of a warm card
    (pytester.path / "pyproject.toml").write_text(heated)
    shutil.copytree(
        ROOT / "bench" / "validation",
        pytester.path / "bench" / "validation",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copy(ROOT / "conftest.py", pytester.path)
    return pytester


def run(bench: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    words = ("--powercap", "current", "--validation-json", "v.json", *arguments)
    return bench.runpytest_inprocess("bench/validation", "-k", "axpy or lcg or cover", *words)


def test_own_kernels_are_right_and_their_intervals_honest(bench):
    run(bench, "--validation-repeats", "2").assert_outcomes(passed=3, deselected=10)
    found = read_validation(bench.path / "v.json")
    assert found.run["emulated"] is True
    axpy, lcg = found.kernels
    assert (axpy.name, len(axpy.repeats), lcg.name, len(lcg.repeats)) == ("axpy", 2, "lcg", 0)
    for kernel in found.kernels:
        assert kernel.reference.seconds == pytest.approx(12.0, abs=3.2)
        assert len(kernel.reference.parts) == 6
        assert kernel.ours.scatter is not None
        assert 0 < kernel.ours.scatter["time"] < kernel.ours.scatter["energy"] < 0.02
        assert [one.protocol for one in kernel.attempts] == [
            OURS,
            "single launches",
            "cold window",
            "classic",
        ]
        assert abs(kernel.error(kernel.ours, "energy")) < 0.01
        single = kernel.attempts[1]
        assert kernel.error(single, "time") > 1  # what a host adds to a launch of a few us


def test_a_budget_ends_the_run_and_keeps_what_there_is(bench):
    result = run(bench, "--validation-repeats", "0", "--validation-budget-s", "1", "-rs")
    result.assert_outcomes(passed=1, skipped=2, deselected=10)
    result.stdout.fnmatch_lines(["*s of 1 s have passed*"])
    assert [one.name for one in read_validation(bench.path / "v.json").kernels] == ["axpy"]


def test_a_file_is_read_as_it_was_written(tmp_path):
    written = validation(repeats=(99.5, 103.0))
    written.write(tmp_path / "v.json")
    assert read_validation(tmp_path / "v.json") == written


def test_a_kernel_measured_again_replaces_what_it_had():
    first = validation()
    again = replace(first.kernels[0], kernel="axpy-k02")
    assert first.with_kernel(again).kernels == (again,)


@pytest.mark.parametrize("text", ["", "[]", '{"kind": "gpuenergy-validation"}', '{"kind": 1}'])
def test_another_file_is_refused(tmp_path, text):
    path = tmp_path / "v.json"
    path.write_text(text)
    with pytest.raises(InputError, match="was not written by --validation-json"):
        read_validation(path)


def test_intervals_that_hold_the_reference_are_counted():
    (kernel,) = validation(repeats=(99.5, 100.5, 103.0)).kernels
    assert kernel.covered("energy") == 2
    assert kernel.covered("time") == 3


def test_the_table_has_errors_seconds_and_coverage(tmp_path, capsys):
    validation(repeats=(99.5, 103.0)).write(tmp_path / "v.json")
    assert table.main([str(tmp_path / "v.json")]) == 0
    out = capsys.readouterr().out
    assert "| axpy | 100 mJ at 50 W, 2000 µs | 99.90% | +1.50%, +0.00%, 2.3 s |" in out
    assert "-10.00%, +0.00%, 2.3 s" in out
    assert "energy: 1 of 2 intervals hold the reference (50.0%)" in out
    assert "| axpy | +0.10% | 0.707% | 2 of 2 |" in out
    # 101.5 as the first item, then 99.5 and 103.0
    assert "standard deviation between items of a kernel 1.756%" in out


def test_a_file_without_the_references_parts_is_read(tmp_path, capsys):
    path = tmp_path / "v.json"
    validation(repeats=(99.5,)).write(path)
    content = json.loads(path.read_text())
    del content["kernels"][0]["reference"]["parts"]
    del content["kernels"][0]["attempts"][0]["scatter"]
    path.write_text(json.dumps(content))
    assert table.main([str(path)]) == 0
    assert "| axpy | +0.10% |  | 1 of 1 |" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "start"), [("p.svg", b"<svg"), ("p.png", b"\x89PNG")])
def test_the_plot_is_drawn(tmp_path, name, start):
    pytest.importorskip("vl_convert", reason="drawing needs vl-convert-python")
    validation().write(tmp_path / "v.json")
    assert table.main([str(tmp_path / "v.json"), "--plot", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_bytes().startswith(start)


def test_a_plot_of_another_kind_is_refused(tmp_path, capsys):
    validation().write(tmp_path / "v.json")
    assert table.main([str(tmp_path / "v.json"), "--plot", "p.gif"]) == 2
    assert "ends in .svg or .png" in capsys.readouterr().err
