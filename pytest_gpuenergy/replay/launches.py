"""What ran on the GPU, and which operator of the model asked for it."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from pytest_gpuenergy.replay.trace import Event

Work = Literal["kernel", "copy", "set", "operator"]
Sizes = tuple[int, ...]

PHASES = ("prefill", "decode")
_NUMBERS = {
    "layer": re.compile(r"\blayer[ ._:=]?(\d{1,6})"),
    "step": re.compile(r"\b(?:decode|step) (\d{1,9})\b"),
    "call": re.compile(r"^call (\d{1,9})$"),
    "run": re.compile(r"^run (\d{1,9})$"),
}


class Operator(Struct, frozen=True):
    """A call of an operator, with what the profiler recorded of its arguments.

    All four are None where shapes were not recorded. They have an entry for each argument: a list
    of sizes, a name such as ``c10::Half``, a list of strides, and a scalar's text; a list of
    tensors has lists of these.
    """

    name: str
    shapes: Any = None
    dtypes: Any = None
    strides: Any = None
    scalars: Any = None


class Launch(Struct, frozen=True):
    """One kernel, copy or set on the GPU, or an operator on the host.

    What the trace does not tell is None.

    Attributes:
        work: which of the four.
        operator: the innermost one in which it was launched.
        dispatched: name of the outermost one, which the model itself called.
        phase: ``prefill`` or ``decode``, by the annotations around the launch.
        run: number of the repetition, by an annotation such as ``run 0``.
        step: 0 in the prefill, and the number of the decode step, by an annotation such as
            ``decode 1`` or ``step 1``.
        layer: number of the model's layer, by an annotation such as ``layer 3``.
        call: number of the call of an operator, by an annotation such as ``call 12``.
        shared_memory_bytes: static and dynamic, of a block.
        bytes: that a copy or set concerns.
        rank: of the process that launched it, where several share a model.
    """

    name: str
    work: Work
    begin_us: float
    duration_us: float
    operator: Operator | None = None
    dispatched: str | None = None
    phase: str | None = None
    run: int | None = None
    step: int | None = None
    layer: int | None = None
    call: int | None = None
    grid: Sizes | None = None
    block: Sizes | None = None
    shared_memory_bytes: int | None = None
    registers: int | None = None
    bytes: int | None = None
    device: int | None = None
    stream: int | None = None
    correlation: int | None = None
    rank: int | None = None

    @property
    def end_us(self) -> float:
        """When it ended."""
        return self.begin_us + self.duration_us


class _Around(NamedTuple):
    """What lasts around a moment of a thread.

    Attributes:
        outermost: operator; None if there is none.
        innermost: operator; None if there is none.
        phase: index into `PHASES`, or their number if no annotation names one.
        numbers: what the innermost annotation with each of `_NUMBERS` says, by its name.
    """

    outermost: Event | None = None
    innermost: Event | None = None
    phase: int = len(PHASES)
    numbers: Mapping[str, int] = MappingProxyType({})

    def within(self, operator: Event) -> _Around:
        """Return what surrounds an event inside ``operator``, which itself begins at this place."""
        return self._replace(outermost=self.outermost or operator, innermost=operator)


_NOWHERE = _Around()


def launches(events: Sequence[Event]) -> list[Launch]:
    """Everything that ran on the GPU, in the order of its beginning.

    What ran belongs to the call of the driver with the same correlation, and this to the operators
    that last while it begins on the same thread. Where a trace has no such call, the operator with
    the same external id counts.
    """
    around = {_correlation(call): place for call, place in _placed(events, "call")}
    operators = {_external(one): one for one in events if one.category == "operator"}
    found = []
    for one in events:
        if one.category not in ("kernel", "copy", "set"):
            continue
        place = _NOWHERE if _correlation(one) is None else around.get(_correlation(one), _NOWHERE)
        named = None if _external(one) is None else operators.get(_external(one))
        if place.innermost is None and named is not None:
            place = place.within(named)
        found.append(_launch(one, place))
    return found


def host_operators(events: Sequence[Event]) -> list[Launch]:
    """All operators, as what ran where there is no GPU.

    The duration of each is without that of the operators that it calls.
    """
    placed = list(_placed(events, "operator"))
    called_us: dict[int, float] = defaultdict(float)
    for one, place in placed:
        if place.innermost is not None:
            called_us[id(place.innermost)] += one.dur
    found = []
    for one, place in placed:
        whole = _launch(one, place.within(one))
        own_us = max(0.0, one.dur - called_us[id(one)])
        found.append(msgspec.structs.replace(whole, duration_us=own_us))
    return found


def _placed(events: Iterable[Event], category: str) -> Iterator[tuple[Event, _Around]]:
    """The events of a category, with what lasts on the same thread while they begin.

    Events of a thread are nested, so that each ends before what is around it; one that does not
    counts until it ends.
    """
    threads: dict[Hashable, _Thread] = defaultdict(_Thread)
    for one in events:
        if one.category not in ("call", "operator", "annotation"):
            continue
        thread = threads[one.thread]
        thread.leave(one.ts)
        if one.category == category:
            yield one, thread.around
        if one.category != "call":
            thread.enter(one)


class _Thread:
    """The events that are open on a thread of the host; they may end in any order.

    An event that has ended stays in the lists until it reaches an end of theirs that is looked at,
    so that each event costs the same, however many are open.
    """

    def __init__(self) -> None:
        self._lasting: dict[int, int] = {}  # the phase of each, by its number
        self._ends: list[tuple[float, int]] = []  # a heap
        self._operators: deque[tuple[int, Event]] = deque()
        self._numbers: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._phases = [0] * (len(PHASES) + 1)  # how many of each
        self._entered = 0
        self._around: _Around | None = _NOWHERE

    @property
    def around(self) -> _Around:
        if self._around is None:
            operators = self._operators
            while operators and operators[0][0] not in self._lasting:
                operators.popleft()
            while operators and operators[-1][0] not in self._lasting:
                operators.pop()
            numbers = {}
            for key, said in self._numbers.items():
                while said and said[-1][0] not in self._lasting:
                    said.pop()
                if said:
                    numbers[key] = said[-1][1]
            self._around = _Around(
                operators[0][1] if operators else None,
                operators[-1][1] if operators else None,
                next((at for at in range(len(PHASES)) if self._phases[at]), len(PHASES)),
                MappingProxyType(numbers),
            )
        return self._around

    def enter(self, one: Event) -> None:
        self._entered += 1
        phase = len(PHASES)
        if one.category == "operator":
            self._operators.append((self._entered, one))
        else:
            name = one.name.lower()
            for key, form in _NUMBERS.items():
                if hit := form.search(name):
                    self._numbers[key].append((self._entered, int(hit[1])))
            phase = next((at for at, phase in enumerate(PHASES) if phase in name), phase)
        self._phases[phase] += 1
        self._lasting[self._entered] = phase
        heappush(self._ends, (one.end, self._entered))
        self._around = None

    def leave(self, now_us: float) -> None:
        """Take out all that has ended."""
        while self._ends and self._ends[0][0] <= now_us:
            self._phases[self._lasting.pop(heappop(self._ends)[1])] -= 1
            self._around = None


def _launch(one: Event, place: _Around) -> Launch:
    phase = PHASES[place.phase] if place.phase < len(PHASES) else None
    numbers = place.numbers
    work: Any = one.category
    return Launch(
        name=one.name,
        work=work,
        begin_us=one.ts,
        duration_us=one.dur,
        operator=None if place.innermost is None else _operator(place.innermost),
        dispatched=None if place.outermost is None else place.outermost.name,
        phase=phase,
        run=numbers.get("run"),
        step=0 if phase == "prefill" else numbers.get("step"),
        layer=numbers.get("layer"),
        call=numbers.get("call"),
        grid=_sizes(one.arg("grid")),
        block=_sizes(one.arg("block")),
        shared_memory_bytes=_whole(one.arg("shared memory")),
        registers=_whole(one.arg("registers per thread")),
        bytes=_whole(one.arg("bytes")),
        device=_whole(one.arg("device")),
        stream=_whole(one.arg("stream")),
        correlation=_whole(one.arg("correlation")),
    )


def _operator(one: Event) -> Operator:
    return Operator(
        one.name,
        one.arg("Input Dims", "Input dims"),
        one.arg("Input type"),
        one.arg("Input Strides"),
        one.arg("Concrete Inputs"),
    )


def _correlation(one: Event) -> int | None:
    return _whole(one.arg("correlation"))


def _external(one: Event) -> int | None:
    return _whole(one.arg("External id", "external id"))


def _whole(value: object) -> int | None:
    """A whole number, which some profilers write as text."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _sizes(value: object) -> Sizes | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    found = [number for number in map(_whole, value) if number is not None]
    return tuple(found) if len(found) == 3 else None
