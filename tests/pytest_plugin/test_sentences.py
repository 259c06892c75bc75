"""Errors of ours in tests: the place and one sentence, not a traceback of our modules."""

from __future__ import annotations

import pytest

BARE = """
from parts import LAUNCH, SOURCE

def test_bare(load_kernel, energy_benchmark):
    energy_benchmark(load_kernel(SOURCE, **LAUNCH))
"""


def failure_of(result: pytest.RunResult) -> list[str]:
    """The lines between the heading of the failure and the next section."""
    lines = result.stdout.lines
    start = next(i for i, line in enumerate(lines) if line.startswith("____"))
    end = next(i for i, line in enumerate(lines) if i > start and line.startswith("===="))
    return [line for line in lines[start + 1 : end] if line.strip()]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("energy_benchmark(load_kernel(SOURCE, **LAUNCH))", "energy_benchmark needs workload=*"),
        ("energy_benchmark(lambda: 0, label=3)", "energy_benchmark does not accept label=3*"),
        (
            "energy_benchmark(lambda: 0, bound='x')",
            "A call of energy_benchmark has the bound 'x': give a number*",
        ),
        ("energy_benchmark(42)", "energy_benchmark does not measure 42: give a kernel*"),
        (
            "energy_benchmark(load_kernel(SOURCE, **LAUNCH), workload='scale')",
            "energy_benchmark does not accept workload='scale': give a workload*",
        ),
        ("load_kernel('no.cu', **LAUNCH)", "*no.cu*"),
        ("load_kernel(SOURCE, entry='nothing', grid=1, block=1, arguments=())", "*nothing*"),
        ("Contract('', (), None, flops=1)", "*"),
        ("Conv2d.of('stem', 1, 0, 0, 1, 1, 1, 1, 1, 0)", "*"),
        ("Conv2d.of('stem', 'x')", "*"),
    ],
)
def test_an_error_in_a_test_is_one_sentence_with_its_place(project, body, sentence):
    project.module(
        f"""
        from parts import LAUNCH, SOURCE
        from pytest_gpuenergy.workloads import Contract, Conv2d

        def test_bad(load_kernel, energy_benchmark):
            {body}
        """
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    (line,) = failure_of(result)
    assert line.startswith("test_scale.py:5: ")
    result.stdout.fnmatch_lines([f"test_scale.py:5: {sentence}", "FAILED *test_bad - Failed: *"])


def test_an_error_in_a_fixture_of_the_users_is_one_sentence(project):
    project.module(
        """
        import pytest

        @pytest.fixture
        def kernel(load_kernel):
            return load_kernel("no.cu", entry="f", grid=1, block=1, arguments=())

        def test_it(kernel):
            pass
        """
    )
    result = project.run()
    result.assert_outcomes(errors=1)
    (line,) = failure_of(result)
    assert line.startswith("test_scale.py:5: ")


def test_an_error_in_a_test_module_is_one_sentence(project):
    project.module(
        """
        from pytest_gpuenergy.workloads import find_workload

        LAYER = find_workload("case99")
        """
    )
    result = project.run()
    result.assert_outcomes(errors=1)
    (line,) = failure_of(result)
    assert line.startswith("test_scale.py:3: There is no workload 'case99': choose one of ")


def test_tb_asks_for_the_traceback(project):
    project.module(BARE)
    result = project.run("--tb", "long")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *InputError: energy_benchmark needs workload=*"])


def test_errors_of_others_keep_their_traceback(project):
    project.module("def test_it(gpu):\n    raise ValueError('mine')\n")
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([">*raise ValueError('mine')", "E *ValueError: mine"])


def test_an_error_that_is_expected_is_not_touched(project):
    project.module(
        """
        import pytest
        from pytest_gpuenergy.support.errors import InputError

        @pytest.mark.xfail(raises=InputError)
        def test_it(load_kernel):
            load_kernel("no.cu", entry="f", grid=1, block=1, arguments=())
        """
    )
    project.run().assert_outcomes(xfailed=1)


def test_junit_has_the_sentence(project):
    project.module(BARE)
    project.run("--junitxml", "j.xml")
    text = (project.path / "j.xml").read_text()
    assert 'message="Failed: test_scale.py:4: energy_benchmark needs workload=... to' in text


@pytest.mark.slow
def test_workers_of_xdist_send_the_sentence(project):
    project.module(BARE)
    result = project.run("-p", "xdist", "-n1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["test_scale.py:4: energy_benchmark needs workload=*"])
