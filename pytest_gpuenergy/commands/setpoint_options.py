"""The options of commands that measure at a setpoint, and the setpoints that they name."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, _ArgumentGroup
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpuenergy.control import Setpoint
    from pytest_gpuenergy.devices import Gpu


def add_clock_options(parser: ArgumentParser | _ArgumentGroup, *, several: bool) -> None:
    """Add ``--smclock`` and ``--allow``, for a command that has ``--powercap``.

    Args:
        parser: of the command.
        several: whether a list is taken.
    """
    parser.add_argument(
        "--smclock",
        metavar="LIST" if several else "MHZ",
        default="current",
        help="Clocks to lock the SMs to, as for pytest (default: current)"
        if several
        else "One clock to lock the SMs to, such as 1500MHz, or current, which leaves them as they "
        "are (default: current)",
    )
    parser.add_argument(
        "--allow",
        choices=("clocks",),
        help="clocks: lock those of a card that somebody else seems to have locked; they are "
        "unlocked afterwards",
    )


def named_setpoints(gpu: Gpu, arguments: Namespace) -> Sequence[Setpoint]:
    """What ``--powercap`` and ``--smclock`` name; raises as `NamedSetpoints.of`."""
    from pytest_gpuenergy.control import NamedSetpoints

    words = (arguments.powercap, Path.cwd(), arguments.smclock)
    return NamedSetpoints.of(gpu, *words).setpoints
