"""Names by which what was measured in one run is found again in another."""

from __future__ import annotations

from typing import NamedTuple


class Identity(NamedTuple):
    """What makes measurements comparable between runs.

    Attributes:
        workload: its name.
        kernel: its label.
        cap: the label of the setpoint, such as ``450W``, with everything that the card was asked
            to be set to.
        cache: the cache state.
    """

    workload: str
    kernel: str
    cap: str
    cache: str


def setpoint_folder(label: str, index: int | None) -> str:
    """A setpoint's folder in the classic CSV tree.

    ``powercap3`` when its power limit is the third of the GPU's cap table, otherwise by its label:
    ``powercap_350W``, ``powercap_current``.

    Args:
        label: of the setpoint.
        index: place of its power limit in the GPU's cap table, 1 = lowest.
    """
    if not index:
        return f"powercap_{label}"
    _, dash, rest = label.partition("-")
    return f"powercap{index}{dash}{rest}"
