"""Names that match the measurements of one run to those of another."""

from __future__ import annotations

from typing import NamedTuple


class Identity(NamedTuple):
    """The key by which measurements of different runs are matched.

    Attributes:
        workload: the workload's name.
        kernel: the kernel's label.
        cap: the setpoint's label, which names every requested setting, such as ``450W``.
        cache: the cache state.
    """

    workload: str
    kernel: str
    cap: str
    cache: str


def setpoint_folder(label: str, index: int | None) -> str:
    """The name of a setpoint's folder in the classic CSV tree.

    ``powercap3`` when the power limit is the third in the GPU's cap table, otherwise named after
    the label: ``powercap_350W``, ``powercap_current``.

    Args:
        label: the setpoint's label.
        index: index of its power limit in the GPU's cap table, 1 = lowest; None when it is not in
            the table.
    """
    if not index:
        return f"powercap_{label}"
    _, dash, rest = label.partition("-")
    return f"powercap{index}{dash}{rest}"
