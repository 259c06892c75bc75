"""Options, their ini twins, and the messages for invalid values."""

from __future__ import annotations

import re

import pytest

from pytest_gpuenergy.report import load_report

ONE = "450W"


def test_every_option_has_a_phrase_as_help(project):
    text = project.run("--help").stdout.str()
    group = text.partition("energy of GPU kernels:\n")[2].partition("\n\n")[0]
    helps = dict(re.findall(r"^  (--[\w-]+)(?:=\S+)?\s+(\S.*(?:\n {10,}.*)*)", group, re.M))
    assert len(helps) > 15  # tests/docs compares them, and their ini twins, with the page
    for phrase in helps.values():
        assert phrase[0].isupper()
        assert not phrase.endswith(".")


def test_the_device_can_be_named_in_the_ini_file(project):
    project.path.joinpath("pyproject.toml").write_text(
        '[tool.pytest.ini_options]\ngpu_device = "emulated:a30"\n'
    )
    project.run("--collect-only").stdout.fnmatch_lines(["gpuenergy: EMULATED NVIDIA A30: *"])


def test_the_command_line_comes_before_the_ini_file(project):
    project.ini('powercap = "2,current"')
    for arguments, caps in (((), ["325W", "current"]), (("--powercap", ONE), [ONE])):
        result = project.run("--collect-only", "-q", *arguments)
        assert re.findall(r"\[(.*)\]$", result.stdout.str(), re.M) == caps


@pytest.mark.slow
def test_paths_are_relative_to_the_ini_file_or_to_where_pytest_was_started(project, monkeypatch):
    project.ini('gpuenergy_json = "out/r.json"\ngpuenergy_csv = "csv"')
    folder = project.pytester.mkdir("below")
    monkeypatch.chdir(folder)
    project.run("--powercap", ONE, "..").assert_outcomes(passed=1)
    assert len(load_report(project.path / "out" / "r.json").measurements) == 1
    assert (project.path / "csv" / "scale" / "powercap3" / "results.csv").exists()
    project.run("--powercap", ONE, "--gpuenergy-json", "r.json", "..").assert_outcomes(passed=1)
    assert (folder / "r.json").exists()


UP_TO = "up to 1000000."
UNWRITABLE = "cannot be written (*): choose a writable path."
NO_CAP = "names no power cap: give a list such as 1,300W, all or current, or leave it out."
TABLE = "this GPU's table has the caps 1 to 5 (200 W, 325 W, 450 W, 575 W, 700 W); write"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--gpu-device=emulated:nosuch", "There is no emulated GPU 'nosuch': choose one of h200*."),
        (
            "--gpu-device=foo",
            "--gpu-device 'foo' is not understood: give auto, an index such as 0, a UUID such as "
            "GPU-..., or emulated*.",
        ),
        ("--gpu-device=emulated:h200x99", "* 'emulated:h200x99' asks for 99 GPUs: choose 1 to 16."),
        *(
            (
                f"--gpuenergy-timeout={text}",
                f"--gpuenergy-timeout '{text}' is not a number of seconds above 0, {UP_TO}",
            )
            for text in ("x", "-1", "nan", "1e9")
        ),
        ("--gpuenergy-lock-wait=-1", f"* '-1' is not a number of seconds from 0 {UP_TO}"),
        ("--gpuenergy-anchor=inf", f"* 'inf' is not a number of seconds from 0 {UP_TO}"),
        ("--gpuenergy-preheat=warm", f"* 'warm' is not a number of seconds from 0 {UP_TO}"),
        ("--gpuenergy-cache=warm", "* 'warm' is not understood: give hot or cold."),
        (
            "--gpuenergy-sort=beauty",
            "--gpuenergy-sort 'beauty' is not understood: give rank, name, time, energy, edp, "
            "power, gflops, gflops_per_w.",
        ),
        ("--gpuenergy-boards=sometimes", "* 'sometimes' is not understood: give auto or *"),
        ("--gpuenergy-order=random", "* 'random' is not understood: give interleaved or file."),
        *(
            (f"--gpuenergy-seed={text}", "* is not a whole number from 0 to 4294967295.")
            for text in ("-1", "1.5", "x", "4294967296", "9" * 99, "٣")
        ),
        ("--gpuenergy-allow=clouds", "* 'clouds' is not *: choose from board, driver, clocks."),
        ("--gpuenergy-json=parts.py/r.json", f"*/parts.py/r.json {UNWRITABLE}"),
        ("--gpuenergy-csv=parts.py/csv", f"*/parts.py/csv {UNWRITABLE}"),
        ("--gpuenergy-html=parts.py/r.html", f"*/parts.py/r.html {UNWRITABLE}"),
        ("--gpuenergy-json=folder", "*/folder cannot be written (it is a folder): *."),
        ("--gpuenergy-json parts.py", "*/parts.py is source text, which would be lost: choose *."),
        ("--gpuenergy-html=-", "- names no file: give the path of one; *."),
        (
            "--gpuenergy-fleet=",
            "--gpuenergy-fleet '': it is empty, or a quotation is *",
        ),
        (
            "--gpuenergy-json=a --gpuenergy-html=a",
            "--gpuenergy-json */a and --gpuenergy-html */a conflict: give each a path of its own.",
        ),
        (
            "--gpuenergy-json=a --gpuenergy-csv=a",
            "--gpuenergy-json */a and --gpuenergy-csv */a conflict: *.",
        ),
        (
            "--gpuenergy-json=.gpuenergy/runs/x/run.json",
            "*/run.json is where a run stores its measurements: choose another path for the view.",
        ),
        (
            "--gpuenergy-json=b.json --gpuenergy-compare=b.json",
            "--gpuenergy-json */b.json is also an input, and would be overwritten: choose *.",
        ),
        ("--powercap=", f"--powercap '' {NO_CAP}"),
        ("--powercap=,,", f"--powercap ',,' {NO_CAP}"),
        (
            "--powercap=1,",
            "--powercap '' is not understood: give a list of indices such as 1, watts such as "
            "300W, all, or current.",
        ),
        ("--smclock=fast", "--smclock 'fast' is not understood: *"),
        ("--smclock=", "--smclock '' names no clock: *"),
        # What only the card can tell is refused at collection, once and not by module.
        ("--powercap=9", f"--powercap 9: {TABLE} 9W for watts."),
        ("--powercap=300", f"--powercap 300: {TABLE} 300W for watts."),
        ("--powercap=50W", "--powercap 50W: this GPU accepts 200 W to 700 W."),
        (
            "--powercap=50W test_scale.py::test_scale",  # collected within another collector
            "--powercap 50W: this GPU accepts 200 W to 700 W.",
        ),
        ("--smclock=1501MHz", "--smclock 1501MHz: 1501 MHz is none of * 1500 MHz and 1515 MHz *."),
    ],
)
def test_a_bad_value_is_refused_in_one_sentence(project, arguments, sentence):
    project.pytester.mkdir("folder")
    project.module("def test_other(powercap):\n    pass\n", name="test_other")
    error = project.refused(*arguments.split())
    error.fnmatch_lines([f"ERROR: {sentence}"])
    assert len(error.str().strip().split("\n")) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("no_gpu")
def test_an_index_without_a_gpu_is_refused_where_a_device_is_needed(project):
    result = project.run_apart("--gpu-device", "7")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --gpu-device 7*GPU*: *."])
    project.module("def test_plain():\n    pass\n")
    project.run("--gpu-device", "7").assert_outcomes(passed=1)


@pytest.mark.slow
def test_without_a_compiler_the_run_ends_with_one_sentence(project, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(project.pytester.mkdir("empty")))
    result = project.run_apart()
    assert result.ret != pytest.ExitCode.OK
    text = result.stdout.str() + result.stderr.str()
    assert text.count("install g++ or clang++, or name one in $CXX.") == 1
    assert "Traceback" not in text
    assert not project.runs
