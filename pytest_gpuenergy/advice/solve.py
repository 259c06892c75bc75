"""Chooses one option in each of several layers, to minimize what their sums cost.

An option takes a time and an energy; both are summed over the layers. The least energy, the least
time, and the least of any other weighted sum are found layer by layer. The product of both sums,
the EDP, is not a sum over layers, and the least energy within a time is a multiple-choice knapsack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import NamedTuple

MAX_STATES = 4000
"""Partial choices that the search for the least energy within a time keeps after each layer."""

_ROUNDING = 1e-9


class Cost(NamedTuple):
    """The time and the energy of an option or a sum of them, in any unit; both above zero."""

    time: float
    energy: float

    @property
    def product(self) -> float:
        """The energy-delay product."""
        return self.time * self.energy


Layer = Sequence[Cost]
Choice = tuple[int, ...]
"""The place of the chosen option in each layer."""


@dataclass(frozen=True)
class Solution:
    """A choice.

    Attributes:
        choice: the place of the chosen option in each layer.
        exact: whether no other choice can be better.
        bound: a lower bound for every choice, in the unit of what is minimized.
    """

    choice: Choice
    exact: bool
    bound: float


def total(layers: Sequence[Layer], choice: Choice) -> Cost:
    """Return the sums of a choice."""
    chosen = [layer[place] for layer, place in zip(layers, choice, strict=True)]
    return Cost(sum(option.time for option in chosen), sum(option.energy for option in chosen))


def sweep(layers: Sequence[Layer]) -> Iterator[Choice]:
    """Yield the choices of least energy + rate * time for every rate above zero, the fastest first.

    Their sums are the vertices of the lower left of the convex hull of all choices' sums: the hull
    of a sum of sets is the sum of their hulls, whose edges are those of the layers by slope.
    """
    hulls = [_hull(layer) for layer in layers]
    places = [0] * len(layers)
    yield tuple(hull[0] for hull in hulls)
    steps = sorted(
        (_slope(layer[before], layer[after]), number)
        for number, (layer, hull) in enumerate(zip(layers, hulls, strict=True))
        for before, after in pairwise(hull)
    )
    for _, number in steps:  # those of one layer are in order, because its hull is convex
        places[number] += 1
        yield tuple(hull[place] for hull, place in zip(hulls, places, strict=True))


def least_product(layers: Sequence[Layer]) -> Solution:
    """Return the least product of both sums, which is exact.

    The product is quasi-concave where both sums are above zero, so its minimum over the convex hull
    of all choices is at a vertex, and grows with either sum, so the vertex is at the lower left.
    """
    choice = min(sweep(layers), key=lambda choice: total(layers, choice).product)
    return Solution(choice, True, total(layers, choice).product)


def fastest(layers: Sequence[Layer]) -> Solution:
    """Return the least time; of several options that are as fast, the one with the least energy."""
    choice = tuple(min(range(len(layer)), key=layer.__getitem__) for layer in layers)
    return Solution(choice, True, total(layers, choice).time)


def least_energy(layers: Sequence[Layer], most_time: float = inf) -> Solution | None:
    """Return the choice of least energy within ``most_time``; None if no choice is that fast.

    The choices of `sweep` before and after the limit give the best solution of the relaxed problem,
    in which a layer may be divided between two options: its energy is a lower bound. A branch and
    bound search between the two is exact, unless it has to keep more than `MAX_STATES` partial
    choices.
    """
    most_time *= 1 + _ROUNDING  # the same sum in another order is as fast
    known: Choice | None = None
    for choice in sweep(layers):
        if total(layers, choice).time > most_time:
            if known is None:
                return None
            return _between(layers, known, choice, most_time)
        known = choice
    assert known is not None
    return Solution(known, True, total(layers, known).energy)


class _PartialChoice(NamedTuple):
    cost: Cost
    choice: Choice


def _between(layers: Sequence[Layer], within: Choice, beyond: Choice, most_time: float) -> Solution:
    """Search between two neighbours of `sweep`, of which the second takes too long."""
    here, there = total(layers, within), total(layers, beyond)
    rate = -_slope(here, there)  # the energy that a unit of time saves
    bound = here.energy - rate * (most_time - here.time)
    priced = [[option.energy + rate * option.time for option in layer] for layer in layers]
    rest_priced = _rests([min(prices) for prices in priced])
    rest_time = _rests([min(option.time for option in layer) for layer in layers])
    best, exact = _filled(layers, within, most_time), True
    most_priced = total(layers, best).energy + rate * most_time
    states = [_PartialChoice(Cost(0.0, 0.0), ())]
    for number, layer in enumerate(layers):
        extended = []
        for cost, choice in states:
            for place in _front(layer):
                time, energy = cost.time + layer[place].time, cost.energy + layer[place].energy
                price = energy + rate * time + rest_priced[number]
                if time + rest_time[number] <= most_time and price < most_priced:
                    extended.append(_PartialChoice(Cost(time, energy), (*choice, place)))
        states = []
        for state in sorted(extended):
            if not states or state.cost.energy < states[-1].cost.energy:
                states.append(state)
        if len(states) > MAX_STATES:
            states.sort(key=lambda state: state.cost.energy + rate * state.cost.time)
            del states[MAX_STATES:]
            exact = False
    choices = [best, *(state.choice for state in states)]
    best = min(choices, key=lambda choice: total(layers, choice)[1])
    return Solution(best, exact, total(layers, best).energy if exact else bound)


def _filled(layers: Sequence[Layer], choice: Choice, most_time: float) -> Choice:
    """``choice``, with the option that saves most energy in one layer after another."""
    while True:
        cost = total(layers, choice)
        steps = [
            (layer[other].energy - layer[mine].energy, number, other)
            for number, (layer, mine) in enumerate(zip(layers, choice, strict=True))
            for other in range(len(layer))
            if layer[other].energy < layer[mine].energy
            and cost.time - layer[mine].time + layer[other].time <= most_time
        ]
        if not steps:
            return choice
        _, number, other = min(steps)
        choice = (*choice[:number], other, *choice[number + 1 :])


def _rests(values: Sequence[float]) -> list[float]:
    """Return the sums of the values after each place."""
    return [sum(values[place + 1 :]) for place in range(len(values))]


def _front(layer: Layer) -> list[int]:
    """Return the places of the Pareto front's options, from fast to frugal."""
    front: list[int] = []
    for place in sorted(range(len(layer)), key=layer.__getitem__):
        if not front or layer[place].energy < layer[front[-1]].energy:
            front.append(place)
    return front


def _hull(layer: Layer) -> list[int]:
    """Return the places of the lower left convex hull's vertices, from fast to frugal."""
    hull: list[int] = []
    for place in _front(layer):
        while len(hull) > 1 and _slope(layer[hull[-2]], layer[hull[-1]]) >= _slope(
            layer[hull[-2]], layer[place]
        ):
            hull.pop()
        hull.append(place)
    return hull


def _slope(cost: Cost, other: Cost) -> float:
    return (other.energy - cost.energy) / (other.time - cost.time)
