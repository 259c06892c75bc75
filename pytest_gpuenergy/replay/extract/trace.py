"""Reads and writes traces of PyTorch's profiler: JSON events in Chrome's format, as Kineto does."""

from __future__ import annotations

import gzip
import re
import shutil
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct, field

from pytest_gpuenergy.support import (
    FormError,
    InputError,
    ReportError,
    decode,
    is_file,
    read_unpacked,
    written_atomically,
)

_LARGEST_BYTES = 1 << 31
_TAIL_BYTES = 64
_LONGEST_US = 1e17
"""Microseconds of three thousand years."""

_KINDS = {"memcpy": "copy", "memset": "set"}
"""What older profilers call ``gpu_memcpy`` and ``gpu_memset``."""


class Event(Struct, frozen=True):
    """One event of a trace; times are in microseconds. What a trace leaves out has no value here.

    Attributes:
        ph: its phase in Chrome's format: ``X`` for one that lasts.
    """

    ph: str = ""
    cat: str | None = None
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str | None = None
    tid: int | str | None = None
    args: dict[str, Any] | None = None

    @property
    def category(self) -> str:
        """In today's words: ``kernel``, ``copy``, ``set``, ``call``, ``operator``, ``annotation``.

        Any other is as it stands in the trace, in lower case.
        """
        found = (self.cat or "").lower()
        if found in ("cuda_runtime", "cuda_driver", "runtime", "driver"):
            return "call"
        if found in ("cpu_op", "operator"):
            return "operator"
        if found == "user_annotation":
            return "annotation"
        found = found.removeprefix("gpu_")
        return _KINDS.get(found, found)

    @property
    def end(self) -> float:
        """In microseconds."""
        return self.ts + self.dur

    @property
    def thread(self) -> Hashable:
        """The thread of the host that it ran on."""
        return self.pid, self.tid

    def arg(self, *names: str) -> Any:
        """The first of these arguments that the trace has; None without any."""
        values = self.args or {}
        return next((values[name] for name in names if name in values), None)


class _Document(Struct):
    events: list[Event] = field(name="traceEvents")


def read_trace(path: Path) -> list[Event]:
    """The events of a trace that last, in order of their beginning, longest first.

    Args:
        path: JSON, or compressed JSON ending in ``.gz`` or ``.xz``; an object with ``traceEvents``,
            or a bare list of events.

    Raises:
        InputError: it cannot be read, is truncated, or is not such a trace.
    """
    content = read_unpacked(path, "trace", _LARGEST_BYTES)
    try:
        events = (
            decode(content, list[Event], "the trace")
            if content[:64].lstrip().startswith(b"[")
            else decode(content, _Document, "the trace").events
        )
    except FormError as error:
        raise InputError(
            f"{path} is not a trace of PyTorch's profiler: {error}. Write one with "
            "torch.profiler.profile(...).export_chrome_trace(PATH)."
        ) from None
    lasting = [one for one in events if one.ph == "X" and one.dur >= 0]
    for one in lasting:
        if abs(one.ts) > _LONGEST_US or one.dur > _LONGEST_US:
            raise InputError(
                f"{path} has an event at {one.ts:g} µs that takes {one.dur:g} µs, which is no time "
                "of a clock: write the trace again."
            )
    return sorted(lasting, key=lambda one: (one.ts, -one.dur))


def write_trace(profiler: Any, path: Path) -> None:
    """Write what a profiler has recorded, compressed: completely or not at all.

    Args:
        profiler: PyTorch's, which only logs that it could not write.
        path: of the file, which ends in ``.gz``.

    Raises:
        ReportError, OSError: it cannot be written.
    """
    with TemporaryDirectory(prefix=".gpuenergy-", dir=path.parent) as folder:
        draft = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(draft))
        if not _is_whole(draft):
            raise ReportError(
                f"PyTorch could not write the whole trace to {path.parent}: make room there, and "
                "try again."
            )
        with (
            written_atomically(path) as file,
            gzip.GzipFile(fileobj=file, mode="wb") as packed,
            draft.open("rb") as plain,
        ):
            shutil.copyfileobj(plain, packed)


def _is_whole(path: Path) -> bool:
    """Whether the last character is that of a JSON object."""
    if not is_file(path):
        return False
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return stream.read().rstrip().endswith(b"}")


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
