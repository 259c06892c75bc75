"""``--gpuenergy-seed``, by which inputs of a verification are repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def test_a_drawn_seed_is_recorded(project):
    found = seeds_of(project)
    assert found[:2] == (0, 1)
    assert found[2] > 1


def test_a_seed_is_repeated_and_recorded_with_the_options(project):
    assert seeds_of(project, "--gpuenergy-seed", "4711") == (0, 1, 4711)
    assert project.stored().run.options["gpuenergy-seed"] == "4711"


def test_a_kernel_that_is_wrong_for_a_seed_names_it(project):
    project.bench('SOURCE.replace("factor * x[i]", "fminf(factor * x[i], 9)")')
    result = project.run(*ONE, "--gpuenergy-seed", "99")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*elements of y * wrong (seed 99)*"])


def test_every_seed_that_can_be_drawn_can_be_repeated():
    assert declared_options.MAX_SEED == seeds.MAX_SEED
