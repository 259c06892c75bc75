"""One side of a comparison of revisions: the energy items that pytest verified and exported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_gpuenergy.ab.exhibit import Exhibit, load_exhibits, load_problems
from pytest_gpuenergy.ab.revisions import PytestRun
from pytest_gpuenergy.support.errors import GpuEnergyError, InputError


@dataclass(frozen=True)
class Side:
    """A revision, by a title for messages, and its energy items; none when it collected none."""

    title: str
    exhibits: tuple[Exhibit, ...]


def load_side(folder: Path, title: str, done: PytestRun) -> Side:
    """What the run ``done`` has exported to ``folder``.

    Raises:
        InputError: its energy items are of kinds that cannot be exported, or damaged.
        GpuEnergyError: the run as a whole failed, or each of its energy items before it could be
            exported.
    """
    exhibits = load_exhibits(folder)
    if problems := load_problems(folder):
        raise GpuEnergyError(f"At {title}: {' '.join(problems)}")
    if exhibits or not folder.is_dir():
        return Side(title, exhibits)
    if done.failed:
        raise GpuEnergyError(f"No kernel could be verified at {title}:\n{done.end}")
    raise InputError(
        f"None of the energy items at {title} can be exported: give kernels to energy_benchmark, "
        "as callables cannot be compared between revisions, and see pytest -rs for what it skips."
    )


def check_sides(base: Side, head: Side) -> None:
    """Make sure that both revisions have energy items.

    Raises:
        InputError: one has none, or neither.
    """
    if base.exhibits and head.exhibits:
        return
    if not base.exhibits and not head.exhibits:
        raise InputError(
            f"Neither {base.title} nor {head.title} has an energy item among the selected tests: "
            "name the folder or file of the bench, as in gpuenergy ab main HEAD bench -k case1."
        )
    full, empty = (base, head) if base.exhibits else (head, base)
    raise InputError(
        f"Of the selected tests {full.title} has energy items, and {empty.title} has none: "
        "choose revisions that both have the bench, and name paths that are the same in both."
    )
