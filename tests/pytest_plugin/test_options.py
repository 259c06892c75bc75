"""Options, their ini twins, and the messages for invalid values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from pytest_gpuenergy.report import load_report

if TYPE_CHECKING:
    from conftest import Project

NAMES = (
    "--gpu-device",
    "--powercap",
    "--smclock",
    "--strict-powercap",
    "--gpuenergy-json",
    "--gpuenergy-csv",
    "--gpuenergy-html",
    "--gpuenergy-sort",
    "--gpuenergy-durations",
    "--gpuenergy-resume",
    "--gpuenergy-timeout",
    "--gpuenergy-lock-wait",
    "--gpuenergy-cache",
    "--gpuenergy-order",
    "--gpuenergy-preheat",
    "--gpuenergy-anchor",
    "--gpuenergy-boards",
    "--gpuenergy-seed",
    "--gpuenergy-export",
    "--gpuenergy-verify-only",
    "--gpuenergy-compare",
    "--gpuenergy-fail",
    "--gpuenergy-strict",
    "--gpuenergy-session-sd",
    "--gpuenergy-allow",
    "--gpuenergy-fleet",
)
ONE = "450W"


@pytest.fixture
def help_text(project: Project) -> str:
    return project.run("--help").stdout.str()


def test_every_option_is_in_the_group_with_a_phrase_as_help(help_text: str) -> None:
    group = help_text.partition("energy of GPU kernels:\n")[2].partition("\n\n")[0]
    helps = dict(re.findall(r"^  (--[\w-]+)(?:=\S+)?\s+(\S.*(?:\n {10,}.*)*)", group, re.M))
    assert sorted(helps) == sorted(NAMES)
    for text in helps.values():
        assert text[0].isupper()
        assert not text.endswith(".")


def test_every_option_has_an_ini_twin(help_text: str) -> None:
    for name in NAMES:
        assert re.search(rf"^  {name[2:].replace('-', '_')} \(", help_text, re.M), name


def test_the_device_can_be_named_in_the_ini_file(project: Project) -> None:
    project.path.joinpath("pyproject.toml").write_text(
        '[tool.pytest.ini_options]\ngpu_device = "emulated:a30"\n'
    )
    project.run("--collect-only").stdout.fnmatch_lines(["gpuenergy: EMULATED NVIDIA A30: *"])


def test_the_command_line_comes_before_the_ini_file(project: Project) -> None:
    project.ini('powercap = "all"')
    result = project.run("--collect-only", "-q", "--powercap", ONE)
    result.stdout.fnmatch_lines(["test_scale.py::test_scale[[]450W]", "", "1 test collected*"])


def test_caps_can_be_named_in_the_ini_file(project: Project) -> None:
    project.ini('powercap = "2,current"')
    assert _ids(project.run("--collect-only", "-q")) == ["325W", "current"]


def test_reports_can_be_named_in_the_ini_file_relative_to_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.ini('gpuenergy_json = "out/r.json"\ngpuenergy_csv = "csv"')
    monkeypatch.chdir(project.pytester.mkdir("below"))
    project.run("--powercap", ONE, "..").assert_outcomes(passed=1)
    assert len(load_report(project.path / "out" / "r.json").measurements) == 1
    assert (project.path / "csv" / "scale" / "powercap3" / "results.csv").exists()


def test_a_path_on_the_command_line_is_relative_to_where_pytest_was_started(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project.path / "below"
    folder.mkdir()
    monkeypatch.chdir(folder)
    project.run("--powercap", ONE, "--gpuenergy-json", "r.json", "..").assert_outcomes(passed=1)
    assert (folder / "r.json").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--gpu-device", "emulated:nosuch"),
            "There is no emulated GPU 'nosuch': choose one of h200, *.",
        ),
        (
            ("--gpu-device", "foo"),
            "--gpu-device 'foo' is not understood: give auto, an index such as 0, "
            "a UUID such as GPU-..., or emulated*.",
        ),
        (
            ("--gpu-device", "emulated:h200x99"),
            "--gpu-device 'emulated:h200x99' asks for 99 GPUs: choose 1 to 16.",
        ),
        (
            ("--gpuenergy-timeout", "x"),
            "--gpuenergy-timeout 'x' is not a number of seconds above 0, up to 1000000.",
        ),
        (
            ("--gpuenergy-timeout", "-1"),
            "--gpuenergy-timeout '-1' is not a number of seconds above 0, up to 1000000.",
        ),
        (
            ("--gpuenergy-timeout", "nan"),
            "--gpuenergy-timeout 'nan' is not a number of seconds above 0, up to 1000000.",
        ),
        (
            ("--gpuenergy-timeout", "1e9"),
            "--gpuenergy-timeout '1e9' is not a number of seconds above 0, up to 1000000.",
        ),
        (
            ("--gpuenergy-lock-wait", "-1"),
            "--gpuenergy-lock-wait '-1' is not a number of seconds from 0 up to 1000000.",
        ),
        (
            ("--gpuenergy-anchor", "inf"),
            "--gpuenergy-anchor 'inf' is not a number of seconds from 0 up to 1000000.",
        ),
        (
            ("--gpuenergy-cache", "warm"),
            "--gpuenergy-cache 'warm' is not understood: give hot or cold.",
        ),
        (
            ("--gpuenergy-sort", "beauty"),
            "--gpuenergy-sort 'beauty' is not understood: give rank, name, time, energy, edp, "
            "power, gflops, gflops_per_w.",
        ),
        (
            ("--gpuenergy-order", "random"),
            "--gpuenergy-order 'random' is not understood: give interleaved or file.",
        ),
        (
            ("--gpuenergy-json", "parts.py/r.json"),
            "*/parts.py/r.json cannot be written (*): choose a writable path.",
        ),
        (
            ("--gpuenergy-csv", "parts.py/csv"),
            "*/parts.py/csv cannot be written (*): choose a writable path.",
        ),
        (
            ("--gpuenergy-html", "parts.py/r.html"),
            "*/parts.py/r.html cannot be written (*): choose a writable path.",
        ),
        (
            ("--gpuenergy-json", "a", "--gpuenergy-html", "a"),
            "--gpuenergy-json */a and --gpuenergy-html */a conflict: give each a path of its own.",
        ),
        (
            ("--gpuenergy-json", "a", "--gpuenergy-csv", "a"),
            "--gpuenergy-json */a and --gpuenergy-csv */a conflict: *.",
        ),
        (
            ("--gpuenergy-json", ".gpuenergy/runs/x/run.json"),
            "*/run.json is where a run stores its measurements: choose another path for the view.",
        ),
        (
            ("--gpuenergy-json", "b.json", "--gpuenergy-compare", "b.json"),
            "--gpuenergy-json */b.json is also an input, and would be overwritten: "
            "choose another path.",
        ),
        *(
            (
                ("--powercap", text),
                f"--powercap {text!r} names no power cap: give a list such as 1,300W, all or "
                "current, or leave it out.",
            )
            for text in ("", " ", " ,,")
        ),
        (
            ("--powercap", "1,"),
            "--powercap '' is not understood: give a list of indices such as 1, "
            "watts such as 300W, all, or current.",
        ),
        (("--gpuenergy-json", "folder"), "*/folder cannot be written (it is a folder): *."),
    ],
)
def test_a_bad_value_is_refused_before_collection(
    project: Project, arguments: tuple[str, ...], sentence: str
) -> None:
    project.pytester.mkdir("folder")
    result = project.run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert not result.stdout.str()
    result.stderr.fnmatch_lines([f"ERROR: {sentence}"])
    assert len(result.stderr.str().split("\n")) <= 3
    assert not project.runs


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--powercap", "9"),
            "--powercap 9: this GPU's table has the caps 1 to 5 "
            "(200 W, 325 W, 450 W, 575 W, 700 W); write 9W for watts.",
        ),
        (
            ("--powercap", "300"),
            "--powercap 300: this GPU's table has the caps 1 to 5 "
            "(200 W, 325 W, 450 W, 575 W, 700 W); write 300W for watts.",
        ),
        (("--powercap", "50W"), "--powercap 50W: this GPU accepts 200 W to 700 W."),
    ],
)
def test_a_cap_that_there_is_not_is_refused_at_collection(
    project: Project, arguments: tuple[str, ...], sentence: str
) -> None:
    project.module("def test_other(powercap):\n    pass\n", name="test_other")
    result = project.run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.stderr.str().split() == f"ERROR: {sentence}".split()  # once, not by module
    _assert_nothing_was_done(project, result)


@pytest.mark.slow
@pytest.mark.usefixtures("no_gpu")
def test_an_index_without_a_gpu_is_refused(project: Project) -> None:
    result = project.run_apart("--gpu-device", "7")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --gpu-device 7*GPU*: *."])
    _assert_nothing_was_done(project, result)


def test_an_ini_option_that_names_no_cap_is_refused(project: Project) -> None:
    project.ini('powercap = ","')
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --powercap ',' names no power cap: *"])


def test_a_bad_value_in_the_ini_file_is_refused_too(project: Project) -> None:
    project.ini('gpuenergy_timeout = "soon"')
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --gpuenergy-timeout 'soon' is not a number of seconds above 0, up to 1000000."]
    )


@pytest.mark.slow
@pytest.mark.usefixtures("no_gpu")
def test_a_bad_device_harms_no_project_that_asks_for_none(project: Project) -> None:
    project.module("def test_plain():\n    pass\n")
    project.run("--gpu-device", "7").assert_outcomes(passed=1)


@pytest.mark.slow
def test_without_a_compiler_the_run_ends_with_one_sentence(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(project.pytester.mkdir("empty")))
    result = project.run_apart()
    assert result.ret != pytest.ExitCode.OK
    text = result.stdout.str() + result.stderr.str()
    assert text.count("install g++ or clang++, or name one in $CXX.") == 1
    assert "Traceback" not in text
    assert not project.runs


@pytest.mark.slow
def test_a_kernel_that_hangs_fails_after_the_timeout(project: Project) -> None:
    project.module(
        """
        from parts import LAUNCH, SCALE, SOURCE

        def test_hangs(powercap, load_kernel, energy_benchmark):
            source = SOURCE.replace("y[i] =", "for (volatile int k = 0; k < 1;) {} y[i] =")
            energy_benchmark(load_kernel(source, **LAUNCH), workload=SCALE)
        """
    )
    result = project.run("--powercap", ONE, "--gpuenergy-timeout", "0.5")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["timeout: *0.5 s*"])
    assert [m.outcome for m in project.stored().measurements] == ["timeout"]


def _ids(result: pytest.RunResult) -> list[str]:
    return re.findall(r"\[(.*)\]$", result.stdout.str(), re.M)


def _assert_nothing_was_done(project: Project, result: pytest.RunResult) -> None:
    assert result.parseoutcomes().get("passed", 0) == 0
    assert "Traceback" not in result.stdout.str() + result.stderr.str()
    assert "/_pytest/" not in result.stdout.str()
    assert not project.runs
