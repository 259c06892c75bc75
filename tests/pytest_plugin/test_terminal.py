"""The output of a run: header, figures of each item, summary, JUnit properties."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from points import each_once

from pytest_gpuenergy.pytest_plugin import Progress, left_out_lines

if TYPE_CHECKING:
    from conftest import Project

ONE = ("--powercap", "450W")
FIGURES = r"\d+(\.\d+)? (µs|ms) \d+(\.\d+)? (µJ|mJ|J) \d[\d.e-]* mJ·ms( \(emulated\))?"


def test_the_header_says_emulated_and_names_the_caps(project):
    project.run("--collect-only", "--powercap", "1,current").stdout.fnmatch_lines(
        [
            "gpuenergy: EMULATED NVIDIA H200: results are verified, "
            "time and energy are recorded or modelled",
            "gpuenergy: energy from the modelled energy counter; power caps: 200W, current",
        ]
    )


@pytest.mark.slow
@pytest.mark.usefixtures("no_gpu")
def test_the_header_says_that_no_gpu_was_found(project):
    project.run_apart("--gpu-device", "auto", "--collect-only").stdout.fnmatch_lines(
        ["gpuenergy: EMULATED NVIDIA H200 (no usable NVIDIA GPU found): *"]
    )


def test_a_run_without_our_items_says_and_leaves_nothing(project):
    project.module("def test_plain():\n    pass\n")
    result = project.run("-v")
    result.assert_outcomes(passed=1)
    assert "gpuenergy:" not in result.stdout.str()
    assert "= gpuenergy =" not in result.stdout.str()
    assert not (project.path / ".gpuenergy").exists()


@pytest.mark.slow
def test_verbose_words_hold_the_figures(project):
    result = project.run("-v")
    result.assert_outcomes(passed=5)
    lines = re.findall(r"^test_scale.py::test_scale\[\d+W\] (.*?) +\[", result.stdout.str(), re.M)
    assert len(lines) == 5
    flags = {m.cap: m.validity for m in project.stored().measurements}
    for line, validity in zip(lines, flags.values(), strict=True):
        assert re.fullmatch(("FLAGGED " if validity else "PASSED ") + FIGURES, line)
    assert any(line.startswith("PASSED") for line in lines)


@pytest.mark.slow
def test_a_measurement_that_is_not_clean_is_flagged(project, inject):
    inject(thermal_throttle=True)  # the card is hot
    result = project.run("-v", *ONE)
    result.assert_outcomes(passed=1)
    assert re.search(rf"test_scale\[450W\] FLAGGED {FIGURES}", result.stdout.str())
    result.stdout.fnmatch_lines(["1 of 1 measurements are flagged (see validity)"])
    (measurement,) = project.stored().measurements
    assert {"sw_thermal_slowdown", "hw_thermal_slowdown"} & set(measurement.validity)
    project.run(*ONE).stdout.re_match_lines([r"test_scale\.py ! +\[100%\]"])


@pytest.mark.slow
def test_the_summary_marks_the_pareto_front(project):
    project.bench(  # the wasteful one loads every element three hundred times more
        """SOURCE if label == "lean" else SOURCE.replace(
        "y[i] = factor * x[i];",
        "const volatile float* v = x; float z = 0; y[i] = factor * x[i];"
        "for (int k = 0; k < 300; ++k) z += v[(i + 32 * k) % 1024]; if (z == 12345.0f) y[i] = z;",
    )""",
        marks='@pytest.mark.parametrize("label", ["lean", "wasteful"])',
        arguments="label, powercap, ",
        more=", label=label",
    )
    result = project.run("--powercap", "700W")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "*= gpuenergy =*",
            "scale at 700W (emulated)*FLOP/byte",
            "  kernel * time * energy *EDP mJ·ms * power W * GFLOP/s % peak *GB/s GFLOP/s/W",
            "[*] lean *",
            "  wasteful *",
            "report: */report.json, CSV: */csv",
        ]
    )


def test_the_summary_names_what_failed(project):
    project.bench('SOURCE.replace("factor *", "nonsense *")', more=', label="broken"')
    project.run(*ONE).stdout.fnmatch_lines(
        ["*= gpuenergy =*", "scale at 450W (emulated)*", "  broken * compile: line 4: *"]
    )


def test_figures_are_junit_properties(project):
    project.run("--junitxml=junit.xml", *ONE).assert_outcomes(passed=1)
    document = ElementTree.parse(project.path / "junit.xml")
    found = {p.get("name"): p.get("value") for p in document.iter("property")}
    (measurement,) = project.report().measurements
    for name in ("time_ms", "energy_mj", "edp_mj_ms", "power_w"):
        assert float(str(found[name])) == getattr(measurement, name)
    assert float(str(found["enforced_power_limit_w"])) == 450.0
    assert found["emulated"] == "True"
    assert found["validity"] == " ".join(measurement.validity)
    assert re.fullmatch(FIGURES, str(found["gpuenergy"]))


def test_the_best_of_each_workload_is_told(project):
    project.run("--powercap", "1,5").stdout.fnmatch_lines(
        [
            "best of each workload (emulated)",
            "  workload  least time * least energy * least EDP * best cap  Pareto",
            "  scale     * at * mJ·ms * at * of 2",
        ]
    )


def test_durations_say_where_the_time_went(project):
    lines = ["wall time of 1 item: *"]
    lines += [f"  {name} *%" for name in ("compile", "verify", "load", "heat", "measure", "rest")]
    lines += ["slowest items", "* test_scale.py::test_scale[[]450W[]] (compile *, measure *)"]
    project.run("--gpuenergy-durations", *ONE).stdout.fnmatch_lines(lines)
    (measurement,) = project.report().measurements
    assert list(measurement.phases_s) == ["compile", "verify", "load", "heat", "measure"]
    assert 0 < sum(measurement.phases_s.values()) <= measurement.wall_s


@pytest.mark.slow
def test_a_long_run_tells_how_long_it_will_take_unless_it_is_quiet_or_not_ours(
    project, monkeypatch
):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("pytest_gpuenergy.pytest_plugin.outputs.INTERVAL_S", 0.0)
    monkeypatch.setattr("pytest_gpuenergy.pytest_plugin.outputs.LARGEST_ERROR", float("inf"))
    caps = ("--powercap", "200W,250W,300W,350W,400W,450W")
    project.run(*caps).stdout.fnmatch_lines(
        ["gpuenergy: 4 of 6 items, about * s left", "gpuenergy: 5 of 6 items, about * s left"]
    )
    assert " left" not in project.run("-q", *caps).stdout.str()
    project.module("def test_one():\n    pass\n\ndef test_two():\n    pass\n")
    assert " left" not in project.run().stdout.str()


def test_quiet_keeps_the_best_and_drops_the_words(project):
    result = project.run("-q", *ONE)
    result.assert_outcomes(passed=1)
    text = result.stdout.str()
    assert "PASSED" not in text
    assert "scale at 450W (emulated)" not in text  # the heading of the table of all kernels
    result.stdout.fnmatch_lines(
        ["best of each workload (emulated)", "  scale * at 450W * 1 of 1", "report: *", "1 passed*"]
    )


@pytest.fixture
def long_name(project: Project) -> None:
    """A project with a slow kernel, and one with a long name."""
    project.bench(
        """SOURCE.replace(
        "factor * x[i];", "factor * x[i]; for (int k = 0; k < 99; ++k) "
        "y[i] += x[(i + 32 * k) % 1024] - x[(i + 32 * k) % 1024];"
    ) if name == "slow" else SOURCE""",
        marks='@pytest.mark.parametrize("name", ["slow", "x" * 70])',
        arguments="name, powercap, ",
    )


@pytest.mark.slow
@pytest.mark.usefixtures("long_name")
@pytest.mark.parametrize(
    ("columns", "quiet"), each_once([40, 60, 80], {"all": ((),), "quiet": (("-q",),)})
)
def test_the_summary_is_as_wide_as_the_terminal(project, monkeypatch, columns, quiet):
    monkeypatch.setenv("COLUMNS", str(columns))
    result = project.run(*ONE, *quiet)
    result.assert_outcomes(passed=2)
    lines = result.stdout.str().partition("= gpuenergy =")[2].splitlines()[1:]
    tables = [line for line in lines if not line.startswith(("report: ", "CSV: ", "="))]
    assert len(tables) > 6
    assert max(map(len, tables)) <= columns


@pytest.mark.slow
@pytest.mark.usefixtures("long_name")
def test_the_summary_is_sorted_as_asked_for(project):
    for key, first in (("time", "scale-xx"), ("name", "scale-slow")):
        text = project.run(*ONE, "--gpuenergy-sort", key).stdout.str()
        table = text.partition("scale at 450W (emulated)")[2].splitlines()
        assert table[2][2:].startswith(first)


def progress(
    interval_s: float, item_s: list[float], total: int, skipped: int = 0
) -> list[str | None]:
    """The line after each item; the first ``skipped`` items are skipped."""
    now_s = 0.0
    shown = Progress(interval_s, lambda: now_s)
    lines = []
    for number, seconds in enumerate(item_s):
        now_s += seconds
        lines.append(shown.finish(total, skipped=number < skipped))
    return lines


@pytest.mark.parametrize(
    ("item_s", "total", "skipped", "lines"),
    [
        # The first waited for compilers, and a few more have to show how long the others take.
        (
            [60, 10, 10, 10, 10],
            10,
            0,
            [None, None, None, *(f"{n} of 10 items, about {10 * (10 - n)} s" for n in (4, 5))],
        ),
        ([1], 1, 0, [None]),
        ([0, 0, 30, 30, 30, 30], 8, 2, ["6 of 8 items, about 60 s"]),  # skipped items take no time
        ([1, 1], 5, 2, [None, None]),
    ],
)
def test_the_time_left_follows_from_the_items_so_far(item_s, total, skipped, lines):
    shown = progress(0.0, item_s, total, skipped)[-len(lines) :]
    assert shown == [line and f"gpuenergy: {line} left" for line in lines]


def test_no_time_is_told_until_it_is_known_how_long_the_items_take():
    uneven = [17.0, 6.0, 0.2, 12.0]
    assert progress(0.0, uneven, 6) == [None] * 4
    lines = progress(0.0, [*uneven, *[6.0, 5.0] * 8], 60)
    assert lines[:6] == [None] * 6
    assert lines[-1] == "gpuenergy: 20 of 60 items, about 3 min 44 s left"


def test_an_interval_passes_between_two_lines():
    told = [line is not None for line in progress(25.0, [10.0] * 10, 100)]
    assert told == [False, False, False, True, False, False, True, False, False, True]


def report(item: str, reason: str = "", when: str = "call") -> Any:
    node = f"bench/test_gemm.py::test_gemm[{item}-current]"
    return SimpleNamespace(nodeid=node, when=when, longrepr=("path", 1, f"Skipped: {reason}"))


def test_reasons_that_differ_in_names_and_numbers_are_told_once():
    skipped = [
        report("gemm_8x8x8_nn-tvm", "No records of gemm_8x8x8_nn."),
        report("own-tvm", "No records of own."),
        report("gemm_8x8x8_nn-cublas", "No nvmath."),
        report("gemm_9x9x9_nn-tvm", "No records of gemm_9x9x9_nn."),
        report("gemm_9x9x9_nn-cublas", "No nvmath."),
        report("gemm_9x9x9_nn_tf32-tvm", "TVM has no schedules in tf32."),
        report("gemm_9x9x9_nn_tf32-template", "The cap cannot be set.", when="setup"),
    ]
    passed = [
        report("gemm_8x8x8_nn-template"),
        report("gemm_1x1x1_nn-tvm"),
        SimpleNamespace(nodeid="test_other.py::test_a", when="call"),
    ]
    assert [*left_out_lines({"passed": passed, "skipped": skipped})] == [
        "tvm in 3 of 5 products: No records of gemm_8x8x8_nn.",
        "tvm in 1 of 5 products: TVM has no schedules in tf32.",
        "cublas in all 2 products: No nvmath.",
    ]
