"""The markers that bound an item's energy and energy-delay product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from pytest_gpuenergy.gate import parse_percent
from pytest_gpuenergy.pytest_plugin.names import EDP_MARKER, ENERGY_MARKER
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.support import InputError


@dataclass(frozen=True)
class Kind:
    """A marker that sets a budget.

    Attributes:
        marker: its name.
        metric: what it bounds.
        argument: its argument, a figure of one launch.
        unit: the argument's unit.
        scale: the metric's units in one of the argument's.
        most: the largest argument.
        example: how it is written.
        name: in the JUnit properties.
    """

    marker: str
    metric: Metric
    argument: str
    unit: str
    scale: float
    most: float
    example: str
    name: str


KINDS = (
    Kind(
        *(EDP_MARKER, Metric.EDP, "max_mj_ms", "mJ·ms", 1.0, 1e12),
        example='edp_budget(max_mj_ms=0.15, rel="3%")',
        name="budget",
    ),
    Kind(
        *(ENERGY_MARKER, Metric.ENERGY, "joules", "J", 1e3, 1e9),
        example='energy_budget(joules=0.008, rel="3%")',
        name="energy_budget",
    ),
)


@dataclass(frozen=True)
class Budget:
    """What a marker allows: ``most`` in the metric's unit, exceeded by the fraction ``rel``."""

    kind: Kind
    most: float
    rel: float

    @classmethod
    def of(cls, kind: Kind, mark: pytest.Mark) -> Budget:
        """Read the marker's arguments.

        Raises:
            InputError: an argument is unknown, missing or invalid.
        """
        name, given = kind.argument, mark.kwargs.get(kind.argument)
        unknown = [*map(repr, mark.args), *sorted({*mark.kwargs} - {name, "rel"})]
        if unknown:
            raise InputError(
                f"The marker {kind.marker} does not take {unknown[0]}: write {kind.example}."
            )
        if (
            not isinstance(given, int | float)
            or isinstance(given, bool)
            or not 0 < given <= kind.most
        ):
            raise InputError(
                f"The marker {kind.marker} needs {name}, a number of {kind.unit} above 0, up to "
                f"{kind.most:g}, not {given!r}."
            )
        rel = parse_percent(mark.kwargs.get("rel", "0%"), f"{kind.marker}'s rel")
        return cls(kind, float(given) * kind.scale, rel)


def budgets_of(item: pytest.Item) -> Iterator[Budget]:
    """The budgets that an item's markers set; of several markers of a kind, the closest one's.

    Raises:
        InputError: the arguments of one are invalid.
    """
    for kind in KINDS:
        if (mark := item.get_closest_marker(kind.marker)) is not None:
            yield Budget.of(kind, mark)
