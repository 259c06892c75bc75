"""Finds the windows of a model's layers: calls that follow one another, to be measured together.

A call after others takes more or less time and energy than after its like, which the account calls
neighbours. A window is a whole layer if all its calls can be replayed, since also the last call of
a part does something to the next one; and under a power limit, calls that draw little leave to
others what they do not take, so that the mix of calls counts. It repeats in each layer of the same
form.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_gpuenergy.replay.account.account import window_key
from pytest_gpuenergy.replay.extract.calls import UniqueCall

LONGEST = (512, 16)
"""The largest number of calls in a window. The first holds at first, and suffices for most layers,
but not for loops over tokens; the second holds where a longer window cannot be replayed, although
each of its calls can."""
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
    *,
    longest: int = LONGEST[0],
    from_host: bool = False,
) -> list[CallWindow]:
    """Return the windows of each step: whole layers, or parts of them.

    If there are many, those with most GPU time are returned.

    Args:
        ids: For each call of a run, by the step that makes it, the id of the unique call if it
            launches something.
        layers: For each layer, the numbers of its first call in each step and of the one after its
            last call.
        calls: The unique calls that can be replayed, by id.
        steps: The numbers of the steps.
        known: Windows that are there already, whose calls are in no other one where this run makes
            them in the same order.
        longest: The largest number of calls in a window.
        from_host: Whether only the host makes the calls of this run in their order.
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
        others = sorted(
            (other.calls for other in known if other.step == step), key=len, reverse=True
        )
        of_step: list[CallWindow] = []
        numbered = Counter((one.is_layer, one.from_host) for one in known if one.step == step)
        for form, in_layers in alike.items():
            for begin, end in _parts(form, others, calls, longest):
                is_layer = end - begin == len(form)
                number = numbered[is_layer, from_host]
                numbered[is_layer, from_host] += 1
                numbers_of_each = [numbers[begin:end] for numbers in in_layers]
                of_step.append(
                    CallWindow(step, number, form[begin:end], numbers_of_each, is_layer, from_host)
                )

        def gpu_us(window: CallWindow) -> float:
            return len(window.numbers) * sum(calls[call].call_us for call in window.calls)

        room = _MOST - sum(one.step == step and one.from_host == from_host for one in known)
        found += sorted(of_step, key=gpu_us, reverse=True)[: max(0, room)]
    return found


def _parts(
    form: tuple[str, ...],
    known: Sequence[tuple[str, ...]],
    calls: Collection[str],
    longest: int,
) -> Iterator[tuple[int, int]]:
    """Yield the first and last place, exclusive, of parts of a layer with more than one call.

    They have only ``calls``, and none of those in ``known`` in the same order.
    """
    begin = place = 0
    while place <= len(form):
        alike = (len(part) for part in known if form[place : place + len(part)] == part)
        length = next(alike, 0) or int(place < len(form) and form[place] not in calls)
        if length or place == len(form):
            parts = max(1, math.ceil((place - begin) / longest))
            for first, last in pairwise(
                begin + n * (place - begin) // parts for n in range(parts + 1)
            ):
                if last - first > 1:
                    yield first, last
            begin = place + length
        place += length or 1
