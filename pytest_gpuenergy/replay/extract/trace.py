"""Reads a trace of PyTorch's profiler: its events, and what each operator launched on the GPU."""

from __future__ import annotations

import gzip
import math
import re
import shutil
from codecs import BOM_UTF8
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import ROUND_FLOOR, Decimal
from functools import lru_cache
from heapq import heappop, heappush
from itertools import compress
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, field

from pytest_gpuenergy.support import (
    FormError,
    InputError,
    ReportError,
    counted,
    decode,
    is_file,
    read_unpacked,
    shown,
    written_atomically,
)

_LARGEST_BYTES = 1 << 31
_TAIL_BYTES = 64
_COMPRESSION = 3
"""The level of gzip: level 9 takes ten times as long for a file that is a fifth smaller."""
_LONGEST_US = 1e17
"""The largest plausible time in a trace, in microseconds: about three thousand years."""

_NO_NUMBER = re.compile(
    rb'(?P<text>"(?:[^"\\]|\\.)*")'
    rb"|[-+]?\b(?:inf(?:inity)?|nan)\b(?:\(\w*\))?|-?\b1\.#(?:inf|ind|[qs]nan)\d*\b"
    rb"|-?\b\d[\d.]*e\+?0*(?:309|3[1-9]\d|[4-9]\d\d|\d{4,})\b",
    re.IGNORECASE | re.DOTALL,
)
"""A string, which is kept; or a number that tools print although JSON has no such number, or that
is larger than any float. Windows prints ``-nan(ind)`` and once printed ``1.#INF``."""

_EXACT_US = 1e13
"""The longest time in microseconds of which a float still has the nanoseconds."""

_DISPATCHERS = frozenset({"PythonDispatchMode", "PythonSubclass"})
"""Events that PyTorch 2.11 records as operators, in which Python decides what an operator does."""

_ON_GPU = frozenset({"kernel", "copy", "set"})
"""The categories of what runs on a GPU."""
_AROUND = frozenset({"operator", "annotation"})
"""The categories of what other events of a thread may happen in."""
_KINDS = {"memcpy": "copy", "memset": "set"}
"""Our words for the categories of copies and sets, which older profilers name without ``gpu_``."""


class Event(Struct, frozen=True, gc=False):
    """One event of a trace, with the fields of Chrome's format; None where the trace has no value.

    Attributes:
        ph: The type of the event; ``X`` has a begin and a duration.
        cat: The category, as the profiler names it.
        name: The name of the kernel, operator or annotation.
        ts: The begin, in microseconds; NaN where the trace has none.
        dur: The duration, in microseconds; NaN where the trace has none.
        pid: The process, as the tool that wrote the trace names it.
        tid: The thread of the process, or the stream of a GPU.
        args: Everything else that the profiler has recorded.
    """

    ph: str = ""
    cat: str | None = None
    name: str = ""
    ts: float = math.nan
    dur: float = math.nan
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    args: dict[str, Any] | None = None

    @property
    def category(self) -> str:
        """The category in our words, or otherwise as the trace names it, in lower case.

        Our words are ``kernel``, ``copy``, ``set``, ``call``, ``operator``, ``annotation`` and
        ``dispatch``, what PyTorch does in Python to find the operator to call.
        """
        found = _category(self.cat)
        return "dispatch" if found == "operator" and self.name in _DISPATCHERS else found

    @property
    def end(self) -> float:
        """The end, in microseconds."""
        return self.ts + self.dur

    @property
    def thread(self) -> Hashable:
        """The thread of the host that the event belongs to."""
        return self.pid, self.tid

    def arg(self, *names: str) -> Any:
        """Return the first of the named arguments that the event has; None if it has none."""
        if (values := self.args) is not None:
            for name in names:
                if name in values:
                    return values[name]
        return None


@lru_cache(maxsize=256)
def _category(named: str | None) -> str:
    """Return our word for a category of a trace, which has few."""
    found = (named or "").lower()
    if found in ("cuda_runtime", "cuda_driver", "runtime", "driver"):
        return "call"
    if found in ("cpu_op", "operator"):
        return "operator"
    if found == "user_annotation":
        return "annotation"
    found = found.removeprefix("gpu_")
    return _KINDS.get(found, found)


class _Moment(Struct, gc=False):
    """The begin of an `Event` in microseconds, with all digits."""

    ts: Decimal = Decimal(0)


_Kind = TypeVar("_Kind", Event, _Moment, msgspec.Raw)


class _TraceDocument(Struct, Generic[_Kind]):
    events: list[_Kind] = field(name="traceEvents")


def read_trace(path: Path, notes: list[str] | None = None) -> list[Event]:
    """Read the events that have a duration, in the order of their begin, longest first.

    Numbers that JSON does not have, such as ``inf`` and ``NaN``, are read as null, numbers in
    strings, as rocprof writes times, as numbers, and bytes that are not UTF-8 as question marks. An
    event that still does not fit is left out. Where the clock counts from 1970, whose microseconds
    a float knows to 0.25 only, times are relative to the whole microsecond of the first event.

    Args:
        path: The file: JSON, which gzip or xz may have compressed. It has an object
            with ``traceEvents``, or a bare list of events, whose last bracket may be missing, as
            Chrome's format allows to programs that were ended while they wrote it.
        notes: A list to which a sentence without a period is added for what is left out.

    Raises:
        InputError: The file cannot be read, is truncated, or is not such a trace.
    """
    content = read_unpacked(path, "trace", _LARGEST_BYTES).removeprefix(BOM_UTF8)
    is_bare = content[:64].lstrip().startswith(b"[")
    if is_bare and (events_alone := content.rstrip()).endswith((b"},", b"}")):
        content = events_alone.removesuffix(b",") + b"]"
    unread = 0
    try:
        try:
            events = _decoded(content, list[Event], _TraceDocument[Event])
        except FormError:
            text = content.decode(errors="replace")
            events, content, unread = _readable(with_nulls(text.encode()))
    except FormError as error:
        raise InputError(
            f"{path} is not a trace of PyTorch's profiler: {error}. Write one with "
            "torch.profiler.profile(...).export_chrome_trace(PATH)."
        ) from None
    flaws = list(map(_flaw, events))
    is_kept = [event.ph == "X" and not flaw for event, flaw in zip(events, flaws, strict=True)]
    lasting = list(compress(events, is_kept))
    if notes is not None:
        notes += _left_out(unread, "that cannot be read")
        for flaw, count in sorted(Counter(filter(None, flaws)).items()):
            notes += _left_out(count, flaw)
    if any(abs(event.ts) > _EXACT_US for event in lasting):
        moments = _decoded(content, list[_Moment], _TraceDocument[_Moment])
        exact = [moment.ts for moment in compress(moments, is_kept)]
        base = min(exact).to_integral_value(ROUND_FLOOR)
        lasting = [
            msgspec.structs.replace(event, ts=float(ts - base))
            for ts, event in zip(exact, lasting, strict=True)
        ]
    lasting.sort(key=attrgetter("dur"), reverse=True)
    lasting.sort(key=attrgetter("ts"))  # keeps that order among those that begin together
    return lasting


def _flaw(event: Event) -> str:
    """Return what is wrong with the times of an event that should have some.

    The words follow the event's name. Other events than of a GPU may have no duration.
    """
    if event.ph != "X":
        return "without a begin or a duration" if event.category in _ON_GPU else ""
    if event.dur < 0:
        return "with a negative duration"
    if not (abs(event.ts) <= _LONGEST_US and event.dur <= _LONGEST_US):
        known = math.isfinite(event.ts) and math.isfinite(event.dur)
        return "at no time of a clock" if known else "without a begin or a duration"
    return ""


def with_nulls(content: bytes) -> bytes:
    """Return JSON with null in place of each `_NO_NUMBER`, which would spoil the whole file."""
    return _NO_NUMBER.sub(lambda found: found["text"] or b"null", content)


def _decoded(
    content: bytes, bare: type[list[_Kind]], document: type[_TraceDocument[_Kind]]
) -> list[_Kind]:
    """Return the events of a trace, which is a bare list of them or a document."""
    if content[:64].lstrip().startswith(b"["):
        return decode(content, bare, "the trace")
    return decode(content, document, "the trace").events


def _readable(content: bytes) -> tuple[list[Event], bytes, int]:
    """Return the events that can be read, the JSON of these, and the number of all others."""
    written = _decoded(content, list[msgspec.Raw], _TraceDocument[msgspec.Raw])
    events: list[Event] = []
    kept = []
    for one in written:
        with suppress(msgspec.MsgspecError):
            events.append(msgspec.json.decode(one, type=Event, strict=False))
            kept.append(bytes(one))
    if written and not events:
        _decoded(content, list[Event], _TraceDocument[Event])  # says what is wrong
    return events, b"[%b]" % b",".join(kept), len(written) - len(events)


def _left_out(count: int, what: str) -> list[str]:
    """Return a sentence about events that are left out, if there are any."""
    if not count:
        return []
    verb = "is" if count == 1 else "are"
    return [f"{counted(count, 'event')} {what} {verb} left out: profile again"]


def write_trace(profiler: Any, path: Path) -> None:
    """Write the events that a profiler has recorded, compressed: completely or not at all.

    Args:
        profiler: PyTorch's profiler. It only logs a warning if it cannot write a file.
        path: The file to write, which ends in ``.gz``.

    Raises:
        ReportError, OSError: The file cannot be written.
    """
    with TemporaryDirectory(prefix=".gpuenergy-", dir=path.parent) as folder:
        draft = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(draft))
        end = draft.read_bytes()[-_TAIL_BYTES:] if is_file(draft) else b""
        if not end.rstrip().endswith(b"}"):
            raise ReportError(
                f"PyTorch could not write the whole trace to {path.parent}: make room there, and "
                "try again."
            )
        with (
            written_atomically(path) as file,
            gzip.GzipFile(fileobj=file, mode="wb", compresslevel=_COMPRESSION) as packed,
            draft.open("rb") as plain,
        ):
            shutil.copyfileobj(plain, packed)


Work = Literal["kernel", "copy", "set", "operator"]
Sizes = tuple[int, ...]

PHASES = ("prefill", "decode")
_NUMBERS = {
    "layer": re.compile(r"\blayer[ ._:=]?(\d{1,6})"),
    "module": re.compile(r"^module (\d{1,6})$"),
    "step": re.compile(r"\b(?:decode|step) (\d{1,9})\b"),
    "call": re.compile(r"^call (\d{1,9})$"),
    "run": re.compile(r"^run (\d{1,9})$"),
}


_SERVED = re.compile(
    r"^step\[extend\b"
    r"|^execute_(?:\d+_)?context_(?P<prompts>\d{1,9})\(.*\)_generation_(?P<generated>\d{1,9})\("
)
"""A prefill of SGLang, such as ``step[EXTEND bs=1 toks=512]``, and a step of vLLM, such as
``execute_context_1(512)_generation_8(8)``, with the numbers of sequences."""


class CalledOperator(Struct, frozen=True):
    """An operator that was called, with what the profiler recorded of its arguments.

    Where shapes were not recorded, all attributes but the name are None. Otherwise each has an
    entry for each argument, which is a list for an argument that is a list of tensors.

    Attributes:
        name: The name, such as ``aten::mm``.
        shapes: The sizes of each tensor.
        dtypes: The type of each argument, such as ``c10::Half``.
        strides: The strides of each tensor.
        scalars: The text of each scalar.
    """

    name: str
    shapes: Any = None
    dtypes: Any = None
    strides: Any = None
    scalars: Any = None


class TraceLaunch(Struct, frozen=True, gc=False):
    """A kernel, copy or set on the GPU, or an operator on the host; None for what is unknown.

    Attributes:
        name: The name of the kernel or operator.
        work: Which of the four it is.
        begin_us: The begin, in microseconds.
        duration_us: The duration, in microseconds.
        operator: The innermost operator around the launch.
        dispatched: The name of the outermost operator, which the model itself called.
        phase: ``prefill`` or ``decode``, by the annotations around the launch.
        run: The number of the repetition, by an annotation such as ``run 0``.
        step: 0 in the prefill; otherwise the number of the decode step, by an annotation such as
            ``decode 1`` or ``step 1``.
        layer: The number of the model's layer, by an annotation such as ``layer 3``.
        module: The number of the module outside of the layers, by an annotation such as
            ``module 2``; see `TorchProgram.outer_modules`.
        call: The number of the call of an operator, by an annotation such as ``call 12``.
        grid: The number of blocks in each dimension.
        block: The number of threads in each dimension of a block.
        shared_memory_bytes: The static and dynamic shared memory of a block.
        registers: The registers of a thread.
        bytes: The size of a copy or set.
        device: The number of the GPU.
        stream: The number of the stream.
        correlation: The number that the launch shares with the call of the driver.
        rank: The rank of the process that launched it, where several share a model.
    """

    name: str
    work: Work
    begin_us: float
    duration_us: float
    operator: CalledOperator | None = None
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
    module: int | None = None

    @property
    def end_us(self) -> float:
        """The end, in microseconds."""
        return self.begin_us + self.duration_us

    @property
    def plan(self) -> tuple[object, ...]:
        """The name and launch plan, which must be the same in a replay."""
        return self.name, self.grid, self.block, self.shared_memory_bytes


class _Around(NamedTuple):
    """The open events at a moment of a thread: operators, a phase, and numbers by `_NUMBERS`."""

    outermost: Event | None = None
    innermost: Event | None = None
    phase: str | None = None
    numbers: Mapping[str, int] = MappingProxyType({})

    def within(self, operator: Event) -> _Around:
        """Return what is open inside ``operator``, which begins at this moment."""
        return self._replace(outermost=self.outermost or operator, innermost=operator)


_NOWHERE = _Around()


def in_graphs(events: Iterable[Event], launched: Iterable[TraceLaunch]) -> list[TraceLaunch]:
    """Return the launches that belong to CUDA graphs, for which a trace names no operators."""
    graphs = _launched_graphs(events)
    return [launch for launch in launched if launch.correlation in graphs]


def _launched_graphs(events: Iterable[Event]) -> set[int | None]:
    """Return the correlations of the calls that launched CUDA graphs."""
    named = (event for event in events if "graphlaunch" in event.name.lower())
    return {_correlation(event) for event in named if event.category == "call"} - {None}


def launches(events: Sequence[Event]) -> list[TraceLaunch]:
    """Return everything that ran on the GPU, in the order of its begin.

    A launch belongs to the call of the driver with the same correlation, and that call to the
    operators that are open on its thread when it begins. Where a trace has no such call, the launch
    belongs to the operator with the same external id. What a CUDA graph launches belongs to no
    operator: those around its launch, such as ``CompiledFunction``, have other arguments.
    """
    around: dict[int | None, _Around] = {}
    operators: dict[int | None, Event] = {}
    on_gpu = []
    for event, category, thread in _walked(events):
        if category == "call":
            around[_correlation(event)] = thread.around
        elif category == "operator":
            operators[_external(event)] = event
        elif category in _ON_GPU:
            on_gpu.append(event)
    around.pop(None, None)
    operators.pop(None, None)
    graphs = _launched_graphs(events)
    found = []
    for event in on_gpu:
        correlation = _correlation(event)
        place, named = around.get(correlation, _NOWHERE), operators.get(_external(event))
        if correlation in graphs:
            place = place._replace(outermost=None, innermost=None)
        elif place.innermost is None and named is not None:
            place = place.within(named)
        found.append(_launch(event, place))
    return found


def host_operators(events: Sequence[Event]) -> list[TraceLaunch]:
    """Return all operators as launches, for a program that ran without a GPU.

    The duration of each excludes the operators that it calls.
    """
    placed = [
        (event, thread.around)
        for event, category, thread in _walked(events)
        if category == "operator"
    ]
    called_us: dict[int, float] = defaultdict(float)
    for event, place in placed:
        if place.innermost is not None:
            called_us[id(place.innermost)] += event.dur
    found = []
    for event, place in placed:
        whole = _launch(event, place.within(event))
        own_us = max(0.0, event.dur - called_us[id(event)])
        found.append(msgspec.structs.replace(whole, duration_us=own_us))
    return found


def _walked(events: Iterable[Event]) -> Iterator[tuple[Event, str, _Thread]]:
    """Yield each event with its category, and with its thread at the moment when it begins.

    Events of a thread are usually nested. An event that outlasts the one around it stays open
    until it ends.
    """
    threads: dict[Hashable, _Thread] = defaultdict(_Thread)
    for event in events:
        category, thread = event.category, threads[event.thread]
        thread.leave(event.ts)
        yield event, category, thread
        if category in _AROUND:
            thread.enter(event, category)


@lru_cache(maxsize=1024)
def _annotated(name: str) -> tuple[tuple[tuple[str, int], ...], str | None]:
    """Return the numbers by key, and the phase, that the name of an annotation tells."""
    lower = name.lower()
    hits = ((key, form.search(lower)) for key, form in _NUMBERS.items())
    numbers = tuple((key, int(hit[1])) for key, hit in hits if hit)
    return numbers, _phase_of(lower)


def _phase_of(name: str) -> str | None:
    """Return the phase that an annotation's name, in lower case, stands for.

    Steps of servers count as `_SERVED` has them. One that reads prompts and generates has none.
    """
    if served := _SERVED.search(name):
        prompts, generated = (served[part] for part in ("prompts", "generated"))
        if prompts is None:
            return "prefill"
        found = [
            word for word, count in zip(PHASES, (prompts, generated), strict=True) if int(count)
        ]
        return found[0] if len(found) == 1 else None
    return next((word for word in PHASES if word in name), None)


class _Thread:
    """The events that are open on a thread of the host; they may end in any order.

    An event that has ended stays in the lists until it is the first or last entry, where it is
    dropped. So the cost of an event does not depend on how many are open.
    """

    def __init__(self) -> None:
        self._lasting: dict[int, str | None] = {}  # the phase of each open event, by its number
        self._ends: list[tuple[float, int]] = []  # a heap
        self._operators: deque[tuple[int, Event]] = deque()
        self._numbers: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._phases: Counter[str | None] = Counter()  # the number of open events in each phase
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
            for key, entries in self._numbers.items():
                while entries and entries[-1][0] not in self._lasting:
                    entries.pop()
                if entries:
                    numbers[key] = entries[-1][1]
            self._around = _Around(
                operators[0][1] if operators else None,
                operators[-1][1] if operators else None,
                next((phase for phase in PHASES if self._phases[phase]), None),
                MappingProxyType(numbers),
            )
        return self._around

    def enter(self, event: Event, category: str) -> None:
        self._entered += 1
        phase = None
        if category == "operator":
            self._operators.append((self._entered, event))
        else:
            numbers, phase = _annotated(event.name)
            for key, number in numbers:
                self._numbers[key].append((self._entered, number))
        self._phases[phase] += 1
        self._lasting[self._entered] = phase
        heappush(self._ends, (event.end, self._entered))
        self._around = None

    def leave(self, now_us: float) -> None:
        """Close all events that have ended."""
        while self._ends and self._ends[0][0] <= now_us:
            self._phases[self._lasting.pop(heappop(self._ends)[1])] -= 1
            self._around = None


def _launch(event: Event, place: _Around) -> TraceLaunch:
    phase, numbers = place.phase, place.numbers
    work: Any = event.category
    operator = None
    if (innermost := place.innermost) is not None:
        operator = CalledOperator(
            innermost.name,
            innermost.arg("Input Dims", "Input dims"),
            innermost.arg("Input type"),
            innermost.arg("Input Strides"),
            innermost.arg("Concrete Inputs"),
        )
    return TraceLaunch(
        name=event.name,
        work=work,
        begin_us=event.ts,
        duration_us=event.dur,
        operator=operator,
        dispatched=None if place.outermost is None else place.outermost.name,
        phase=phase,
        run=numbers.get("run"),
        step=0 if phase == "prefill" else numbers.get("step"),
        layer=numbers.get("layer"),
        module=numbers.get("module"),
        call=numbers.get("call"),
        grid=_sizes(event.arg("grid")),
        block=_sizes(event.arg("block")),
        shared_memory_bytes=_amount(event.arg("shared memory")),
        registers=_amount(event.arg("registers per thread")),
        bytes=_amount(event.arg("bytes")),
        device=_whole(event.arg("device")),
        stream=_whole(event.arg("stream")),
        correlation=_whole(event.arg("correlation")),
    )


def _correlation(event: Event) -> int | None:
    return _whole(event.arg("correlation"))


def _external(event: Event) -> int | None:
    return _whole(event.arg("External id", "external id"))


def _whole(value: object) -> int | None:
    """Return a whole number, which some profilers write as text; None for anything else."""
    if type(value) is int:  # of most of the numbers in a trace
        return value
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    return None


def _amount(value: object) -> int | None:
    """Return a whole number that is not negative; None for anything else."""
    number = _whole(value)
    return number if number is not None and number >= 0 else None


def _sizes(value: object) -> Sizes | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    found = tuple(number for number in map(_amount, value) if number is not None)
    return found if len(found) == 3 else None


_PLAN: Mapping[str, Callable[[object], object]] = MappingProxyType(
    {
        "grid": _sizes,
        "block": _sizes,
        "shared memory": _amount,
        "registers per thread": _amount,
        "bytes": _amount,
    }
)
"""The fields of a launch's plan, and what reads them."""


def unread_plans(events: Iterable[Event]) -> list[str]:
    """Return a sentence, without its period, for each field of launches that cannot be read."""
    lost: dict[str, list[str]] = defaultdict(list)
    for event in events:
        if event.category in _ON_GPU:
            for name, value in (event.args or {}).items():
                if name in _PLAN and value is not None and _PLAN[name](value) is None:
                    lost[name].append(event.name)
    return [
        f"{name} is not understood in {counted(len(where), 'launch', 'launches')}, "
        f"such as of {shown(where[0])}, and left out there"
        for name, where in lost.items()
    ]
