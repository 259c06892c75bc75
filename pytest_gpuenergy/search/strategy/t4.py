"""Reads recorded search spaces: T4 result files of the auto-tuning community.

T4 is what Kernel Tuner and the auto-tuning benchmark hub write (F.-J. Willemsen et al., "FAIR
Sharing of Data in Autotuning Research", ICPE Companion 2024; the schema is in Kernel Tuner's
``kernel_tuner/schema/T4``). A file lists configurations with their measurements or with what made
them invalid. Of a space that was measured completely, a search can be simulated.
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

Value = bool | int | float | str
Configuration = Mapping[str, Value]
Neighbours = Literal["any", "adjacent"]
"""Whether a neighbour has any other value of one parameter, or the next larger or smaller one."""


class _Measurement(Struct, frozen=True):
    name: str = ""
    value: Any = None


class _Times(Struct, frozen=True):
    runtimes: tuple[Any, ...] = ()


class _Result(Struct, frozen=True):
    configuration: dict[str, Value]
    invalidity: Outcome
    times: _Times = _Times()
    measurements: list[_Measurement] = []
    objectives: list[str] = []


class _Document(Struct, frozen=True):
    results: list[_Result]


class RecordedSpace:
    """A search space of which every configuration was evaluated.

    States are configurations, and actions set one parameter to another value. The configurations
    that the file lacks, as a rule because a constraint rules them out, are no states.

    Attributes:
        states: ids of all configurations, in the order of the file.
        costs: by id; None for configurations that failed.
        root: where a search begins.

    Args:
        results: configurations with their costs.
        root: id of the state where a search begins; by default the first one that did not fail.
        neighbours: which values an action can set.

    Raises:
        InputError: none succeeded, the root is no state that did, or configurations are given
            twice or differ in their parameters.
    """

    def __init__(
        self,
        results: Sequence[tuple[Configuration, float | None]],
        *,
        root: str | None = None,
        neighbours: Neighbours = "any",
    ) -> None:
        self._configurations = {
            state_id(configuration): configuration for configuration, _ in results
        }
        self.states = tuple(self._configurations)
        self.costs = {state_id(configuration): cost for configuration, cost in results}
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
        self._lines = self._make_lines()
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

    def begun_at(self, root: str) -> RecordedSpace:
        """The same, with another state where a search begins.

        Raises:
            InputError: it is no state that succeeded.
        """
        self._check_root(root)
        other = copy.copy(self)
        other.root = root
        return other

    def with_values(self, **values: Value) -> list[str]:
        """The states that have these values of some parameters."""
        return [
            state
            for state, configuration in self._configurations.items()
            if all(configuration.get(name) == value for name, value in values.items())
        ]

    def configuration(self, state: str) -> Configuration:
        """The parameters of a state."""
        return self._configurations[state]

    def actions(self, state: str) -> list[Action]:
        """One for each neighbour, parameter by parameter."""
        found = []
        configuration = self._configurations[state]
        for name in configuration:
            line = self._lines[_rest(configuration, name)]
            place = line.index(state)
            near = line if self._neighbours == "any" else line[max(0, place - 1) : place + 2]
            for other in near:
                if other != state:
                    label = f"{name}={self._configurations[other][name]}"
                    found.append(Action(label, other))
        return found

    def _check_root(self, root: str) -> None:
        if self.costs.get(root) is None:
            raise InputError(
                f"{root!r:.80} is no configuration of the recorded space that succeeded: name "
                "another."
            )

    def _make_lines(self) -> dict[tuple[str, str], list[str]]:
        """The states that differ in nothing but one parameter, ordered by its value."""
        lines: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for state, configuration in self._configurations.items():
            for name in configuration:
                lines[_rest(configuration, name)].append(state)
        for (name, _), line in lines.items():
            line.sort(key=lambda state: _order(self._configurations[state][name]))
        return dict(lines)


def _rest(configuration: Configuration, name: str) -> tuple[str, str]:
    """What two configurations share that differ in this parameter alone."""
    return name, state_id({other: configuration[other] for other in configuration if other != name})


def _order(value: Value) -> tuple[bool, float, str]:
    if isinstance(value, str):
        return True, 0.0, value
    return False, value, ""


def state_id(configuration: Configuration) -> str:
    """The parameters in alphabetic order, as in ``block=64,unroll=2``."""
    return ",".join(f"{name}={configuration[name]}" for name in sorted(configuration))


def read_t4(path: Path) -> list[tuple[Configuration, float | None]]:
    """The configurations of a T4 result file with their costs, None for those that failed.

    The cost is the measurement that the result names as its objective, or, for want of one, the
    measured ``time``, or the mean of the run times.

    Args:
        path: the file; decompressed if its name ends in ``.gz`` or ``.xz``.

    Raises:
        InputError: it cannot be read, or is no T4 result file.
    """
    content = read_unpacked(path, "T4 file", LARGEST_BYTES)
    try:
        results = decode(content, _Document, "the file").results
        return [
            (result.configuration, _cost(result, f"results[{place}]"))
            for place, result in enumerate(results)
        ]
    except FormError as error:
        raise InputError(
            f"{path} is not a T4 result file, because {error}: name another file."
        ) from None


def _cost(result: _Result, what: str) -> float | None:
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
