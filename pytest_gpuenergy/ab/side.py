"""One side of a comparison of revisions: the energy items that pytest verified and exported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_gpuenergy.ab.exhibit import Exhibit, load_exhibits, load_problems
from pytest_gpuenergy.ab.revisions import PytestRun
from pytest_gpuenergy.support import GpuEnergyError, InputError, is_folder


@dataclass(frozen=True)
class Side:
    """A revision's name in messages and its exported energy items; empty if it has none."""

    title: str
    exhibits: tuple[Exhibit, ...]


def load_side(folder: Path, title: str, done: PytestRun) -> Side:
    """Read what the pytest run ``done`` exported to ``folder``.

    Raises:
        InputError: none of its energy items can be exported, or the files are damaged.
        GpuEnergyError: the run as a whole failed, or all of its energy items failed before they
            could be exported.
    """
    exhibits = load_exhibits(folder)
    if problems := load_problems(folder):
        raise GpuEnergyError(f"At {title}: {' '.join(problems)}")
    if exhibits or not is_folder(folder):
        return Side(title, exhibits)
    if done.failed:
        raise GpuEnergyError(f"No kernel could be verified at {title}:\n{done.end}")
    raise InputError(
        f"None of the energy items at {title} can be exported: pass kernels to energy_benchmark, "
        "because callables cannot be compared between revisions. pytest -rs lists what is skipped."
    )


def check_sides(base: Side, head: Side) -> None:
    """Check that both revisions have energy items.

    Raises:
        InputError: one or both have none.
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
        f"Among the selected tests, {full.title} has energy items but {empty.title} has none: "
        "choose revisions that both have the bench, and paths that exist in both."
    )
