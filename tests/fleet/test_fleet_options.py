"""``--gpuenergy-fleet`` with other options, and where nothing can be used: one sentence."""

from __future__ import annotations

import pytest

OWN = ("-p", "xdist", "--gpuenergy-fleet")


@pytest.fixture
def passing(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile("def test_of_somebody_else():\n    pass")
    return pytester


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("k8s:x",), "give ray, *"),
        (("ssh:a", "-n", "2"), "leave out -n and --tx"),
        (("ssh:a", "--tx", "popen"), "leave out -n and --tx"),
        (("ssh:a", "--pdb"), "--pdb"),
        (("ssh:a", "-p", "no:xdist"), "pip install pytest-xdist"),
        (("ssh:a", "--gpu-device", "0"), "--gpu-device 0 names a GPU of one host"),
        (("ssh:a", "--powercap", ""), "names no power cap"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[1:]) or "text",
)
def test_a_contradiction_is_wrong_usage(
    passing: pytest.Pytester, arguments: tuple[str, ...], said: str
) -> None:
    result = passing.runpytest_inprocess(*OWN, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{said}*"])


@pytest.mark.usefixtures("no_ssh")
def test_a_fleet_without_a_usable_gpu_is_refused_with_the_reasons(
    passing: pytest.Pytester,
) -> None:
    result = passing.runpytest_inprocess(*OWN, "ssh:a,b")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: *ssh:a,b: no GPU of this fleet can be used. a: no route. b: no route."]
    )


def test_an_empty_option_switches_the_ini_file_off(passing: pytest.Pytester) -> None:
    passing.makeini("[pytest]\ngpuenergy_fleet = ssh:a,b")
    passing.runpytest_inprocess(*OWN, "").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("option", "shown"),
    [("--collect-only", "*test_of_somebody_else*"), ("--markers", "*energy_budget*")],
)
def test_what_only_shows_something_needs_no_fleet(
    passing: pytest.Pytester, option: str, shown: str
) -> None:
    result = passing.runpytest_inprocess(*OWN, "ssh:a,b", option)
    assert result.ret == 0
    result.stdout.fnmatch_lines([shown])


def test_a_run_outside_the_project_is_refused(passing: pytest.Pytester) -> None:
    inner = passing.mkdir("project")
    (inner / "pytest.ini").write_text("[pytest]\n")
    (inner / "test_it.py").write_text("def test_it():\n    pass\n")
    result = passing.runpytest_inprocess(*OWN, "ssh:a", "project/test_it.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *inside the project: change to {inner}."])
