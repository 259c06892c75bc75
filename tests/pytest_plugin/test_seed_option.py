"""``--gpuenergy-seed``, by which inputs of a verification are repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuenergy.engine import seeds
from pytest_gpuenergy.pytest_plugin import declared_options

if TYPE_CHECKING:
    from conftest import Project

ONE = ("--powercap", "450W")


def seeds_of(project: Project, *arguments: str) -> tuple[int, ...]:
    project.run(*ONE, *arguments).assert_outcomes(passed=1)
    (measurement,) = project.stored().measurements
    assert measurement.correctness is not None
    return measurement.correctness.seeds


@pytest.mark.slow
def test_a_drawn_seed_is_recorded(project: Project) -> None:
    found = seeds_of(project)
    assert found[:2] == (0, 1)
    assert found[2] > 1


@pytest.mark.slow
def test_a_seed_is_repeated_and_recorded_with_the_options(project: Project) -> None:
    assert seeds_of(project, "--gpuenergy-seed", "4711") == (0, 1, 4711)
    assert project.stored().run.options["gpuenergy-seed"] == "4711"


@pytest.mark.slow
def test_the_ini_file_can_give_one(project: Project) -> None:
    project.ini('gpuenergy_seed = "12"')
    assert seeds_of(project) == (0, 1, 12)


@pytest.mark.slow
def test_a_kernel_that_is_wrong_for_a_seed_names_it(project: Project) -> None:
    project.module(
        (project.path / "test_scale.py")
        .read_text()
        .replace("SOURCE, **", 'SOURCE.replace("factor * x[i]", "fminf(factor * x[i], 9)"), **')
    )
    result = project.run(*ONE, "--gpuenergy-seed", "99")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*elements of y * wrong (seed 99)*"])


@pytest.mark.parametrize("text", ["-1", "1.5", "x", "4294967296", "9" * 99, "٣"])
def test_what_is_no_seed_is_refused(project: Project, text: str) -> None:
    result = project.run(*ONE, f"--gpuenergy-seed={text}")
    assert result.ret == 4
    result.stderr.fnmatch_lines(
        ["*--gpuenergy-seed * is not a whole number from 0 to 4294967295.*"]
    )


def test_every_seed_that_can_be_drawn_can_be_repeated() -> None:
    assert declared_options.MAX_SEED == seeds.MAX_SEED
