"""Reads recorded search spaces: T4 result files of the auto-tuning community.

Kernel Tuner and the auto-tuning benchmark hub write T4 (F.-J. Willemsen et al., "FAIR Sharing of
Data in Autotuning Research", ICPE Companion 2024; the schema is in Kernel Tuner's
``kernel_tuner/schema/T4``). A file lists configurations with their measurements, or with the reason
why they are invalid. A search of a completely measured space can be simulated.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from pytest_gpuenergy.search.strategy.action_space import Action
from pytest_gpuenergy.support import FormError, InputError, Outcome, decode, read_unpacked, shown

LARGEST_BYTES = 256 << 20
"""Size of a T4 file when it is decompressed."""

Value = bool | int | float | str
Configuration = Mapping[str, Value]
Neighbours = Literal["any", "adjacent"]
"""Whether a neighbour has any other value of one parameter, or the next larger or smaller one."""


class _Measurement(Struct, frozen=True):
    name: str = ""
    value: Any = None


class _Times(Struct, frozen=True):
    runtimes: tuple[Any, ...] = ()


class _T4Result(Struct, frozen=True):
    configuration: dict[str, Value]
    invalidity: Outcome
    times: _Times = _Times()
    measurements: list[_Measurement] = []
    objectives: list[str] = []


class _T4Document(Struct, frozen=True):
    results: list[_T4Result]


class RecordedSpace:
    """A search space of which every configuration was evaluated.

    States are configurations, and actions set one parameter to another value. Configurations that
    are missing in the file, usually because of a constraint, are no states.

    Attributes:
        states: the ids of all configurations, in the order of the file.
        costs: the costs of the configurations by id; None for those that failed.
        root: the id of the state where a search begins.

    Args:
        results: the configurations with their costs.
        root: the id of the state where a search begins; by default the first that did not fail.
        neighbours: the values that an action can set.

    Raises:
        InputError: no configuration succeeded, the root is none that did, a configuration is given
            twice, or configurations differ in their parameters.
    """

    def __init__(
        self,
        results: Sequence[tuple[Configuration, float | None]],
        *,
        root: str | None = None,
        neighbours: Neighbours = "any",
    ) -> None:
        self._configurations = {
            configuration_id(configuration): configuration for configuration, _ in results
        }
        self.states = tuple(self._configurations)
        self.costs = {configuration_id(configuration): cost for configuration, cost in results}
        if len(self.states) < len(results):
            raise InputError("The recorded space lists a configuration twice: remove one of them.")
        if len({frozenset(configuration) for configuration, _ in results}) > 1:
            raise InputError(
                "The configurations of the recorded space differ in their parameters: give one "
                "space at a time."
            )
        if not self.good:
            raise InputError("The recorded space has no configuration that succeeded.")
        self._neighbours = neighbours
        # The lists of states that differ in one parameter only, ordered by its value.
        self._lines: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for state, configuration in self._configurations.items():
            for name in configuration:
                self._lines[_rest(configuration, name)].append(state)
        for (name, _), line in self._lines.items():
            values = {state: self._configurations[state][name] for state in line}
            # Numbers come before words.
            line.sort(key=lambda state: (isinstance(values[state], str), values[state]))
        self.root = self.good[0] if root is None else root
        self._check_root(self.root)

    @property
    def good(self) -> list[str]:
        """The states that did not fail."""
        return [state for state in self.states if self.costs[state] is not None]

    @property
    def optimum(self) -> float:
        """The least of all costs."""
        return min(cost for cost in self.costs.values() if cost is not None)

    def with_root(self, root: str) -> RecordedSpace:
        """Return the same space with another state where a search begins.

        Raises:
            InputError: the state is none that succeeded.
        """
        self._check_root(root)
        other = copy.copy(self)
        other.root = root
        return other

    def with_values(self, **values: Value) -> list[str]:
        """Return the states that have these values of some parameters."""
        return [
            state
            for state, configuration in self._configurations.items()
            if all(configuration.get(name) == value for name, value in values.items())
        ]

    def configuration(self, state: str) -> Configuration:
        """Return the parameters of a state."""
        return self._configurations[state]

    def actions(self, state: str) -> list[Action]:
        """Return one action for each neighbour, parameter by parameter."""
        actions = []
        configuration = self._configurations[state]
        for name in configuration:
            line = self._lines[_rest(configuration, name)]
            place = line.index(state)
            near = line if self._neighbours == "any" else line[max(0, place - 1) : place + 2]
            for other in near:
                if other != state:
                    label = f"{name}={self._configurations[other][name]}"
                    actions.append(Action(label, other))
        return actions

    def _check_root(self, root: str) -> None:
        if self.costs.get(root) is None:
            raise InputError(
                f"{root!r:.80} is no configuration of the recorded space that succeeded: name "
                "another."
            )


def _rest(configuration: Configuration, name: str) -> tuple[str, str]:
    """Return a key that configurations share if they differ in this parameter only."""
    return name, configuration_id(
        {other: configuration[other] for other in configuration if other != name}
    )


def configuration_id(configuration: Configuration) -> str:
    """Return the parameters in alphabetical order, as in ``block=64,unroll=2``."""
    return ",".join(f"{name}={configuration[name]}" for name in sorted(configuration))


def read_t4(path: Path) -> list[tuple[Configuration, float | None]]:
    """Read the configurations of a T4 result file with their costs, None for those that failed.

    The cost is the measurement that the result names as its objective, otherwise the measured
    ``time``, or the mean of the run times.

    Args:
        path: the file, which gzip or xz may have compressed.

    Raises:
        InputError: the file cannot be read, or is no T4 result file.
    """
    content = read_unpacked(path, "T4 file", LARGEST_BYTES)
    try:
        results = decode(content, _T4Document, "the file").results
        return [
            (result.configuration, _cost(result, f"results[{place}]"))
            for place, result in enumerate(results)
        ]
    except FormError as error:
        raise InputError(
            f"{path} is not a T4 result file, because {error}: name another file."
        ) from None


def _cost(result: _T4Result, what: str) -> float | None:
    if result.invalidity != "correct":
        return None
    wanted = result.objectives[0] if result.objectives else "time"
    for measurement in result.measurements:
        if measurement.name == wanted:
            return _positive(measurement.value, what)
    if not result.times.runtimes:
        raise FormError(f"{what} is correct and has no {wanted!r:.40}")
    runtimes = [_positive(value, what) for value in result.times.runtimes]
    return math.fsum(runtimes) / len(runtimes)


def _positive(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise FormError(f"{what} is correct and has the measurement {shown(value)}")
    return float(value)
