"""Finds the windows of a model's layers: calls that follow one another, to be measured together.

A call after others takes more or less time and energy than after its like, which the account calls
neighbours. A window repeats in each layer of the same form; the calls of a layer are divided evenly
among its windows. Under a power limit, calls that draw little leave to others what they do not
take, so that the mix of calls counts: there, a whole layer is one window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_gpuenergy.replay.account.account import window_key
from pytest_gpuenergy.replay.extract.calls import UniqueCall

_LONGEST = 16
"""The largest number of calls in a window, about a third of a layer of a language model."""
_LONGEST_LAYER = 512
"""The largest number of calls of a layer that is one window; loops over tokens have more."""
_MOST = 6
"""The largest number of windows of a step; each takes as long to measure as a call."""


@dataclass(frozen=True)
class CallWindow:
    """Calls of a layer that follow one another.

    Attributes:
        step: The number of the step.
        number: Its number among the windows of the step.
        calls: The ids of the calls, in order.
        numbers: The numbers of the calls in each layer that makes them.
        is_layer: Whether these are all calls of a layer.
        from_host: Whether only the host makes these calls in their order.
    """

    step: int
    number: int
    calls: tuple[str, ...]
    numbers: Sequence[Sequence[int]]
    is_layer: bool = False
    from_host: bool = False

    @property
    def key(self) -> str:
        """The key of the window's measurement."""
        return window_key(self.step, self.number, is_layer=self.is_layer, from_host=self.from_host)


def choose_windows(
    ids: Sequence[Mapping[int, str]],
    layers: Sequence[Sequence[tuple[int, int]]],
    calls: Mapping[str, UniqueCall],
    steps: Sequence[int],
    known: Sequence[CallWindow] = (),
) -> list[CallWindow]:
    """Return the windows of each step: parts of layers, and whole layers.

    If there are many parts of layers, those with most GPU time are returned.

    Args:
        ids: For each call of a run, by the step that makes it, the id of the unique call if it
            launches something.
        layers: For each layer, the numbers of its first call in each step and of the one after its
            last call.
        calls: The unique calls that can be replayed, by id.
        steps: The numbers of the steps.
        known: Windows of another run, whose calls are in no other part where this run makes them in
            the same order.
    """
    found = []
    for step in steps:
        alike: dict[tuple[str, ...], list[list[int]]] = {}
        for spans in layers:
            if step >= len(spans):
                continue
            numbers = [number for number in range(*spans[step]) if step in ids[number]]
            form = tuple(ids[number][step] for number in numbers)
            alike.setdefault(form, []).append(numbers)
        of_step: list[CallWindow] = []
        of_layers: list[CallWindow] = []
        for form, in_layers in alike.items():
            if len(in_layers) < 2:
                continue
            others = [other.calls for other in known if other.step == step and not other.is_layer]
            for begin, end in _parts(form, sorted(others, key=len, reverse=True)):
                if end - begin > 1 and all(call in calls for call in form[begin:end]):
                    numbers_of_each = [numbers[begin:end] for numbers in in_layers]
                    number = len(of_step)
                    of_step.append(CallWindow(step, number, form[begin:end], numbers_of_each))
            if 1 < len(form) <= _LONGEST_LAYER and all(call in calls for call in form):
                number = len(of_layers)
                of_layers.append(CallWindow(step, number, form, in_layers, is_layer=True))

        def gpu_us(window: CallWindow) -> float:
            return len(window.numbers) * sum(calls[call].call_us for call in window.calls)

        found += sorted(of_step, key=gpu_us, reverse=True)[:_MOST] + of_layers
    return found


def _parts(form: tuple[str, ...], known: Sequence[tuple[str, ...]]) -> Iterator[tuple[int, int]]:
    """Yield the first and last place, exclusive, of parts of a layer without those in ``known``."""
    begin = place = 0
    while place <= len(form):
        alike = (len(part) for part in known if form[place : place + len(part)] == part)
        length = next(alike, 0)
        if length or place == len(form):
            parts = max(1, math.ceil((place - begin) / _LONGEST))
            yield from pairwise(begin + n * (place - begin) // parts for n in range(parts + 1))
            begin = place + length
        place += length or 1
