"""Chooses the calls of a model that successive launches make, and their tensors.

Imports PyTorch: import this module only where it is needed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, count, cycle
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, TypeVar

import msgspec
import torch
from torch.profiler import record_function

from pytest_gpuenergy.replay.extract.calls import CallForm, UniqueCall, alike
from pytest_gpuenergy.replay.extract.trace import TraceLaunch, launches, read_trace, write_trace
from pytest_gpuenergy.replay.play.call_windows import CallWindow
from pytest_gpuenergy.replay.play.replay_plan import (
    Cache,
)
from pytest_gpuenergy.replay.profile.capture import (
    CallRecorder,
    LiveCall,
    Part,
    bytes_of,
    calls_watched,
    copied_tensor,
    first_places,
    tensors_in,
)
from pytest_gpuenergy.replay.profile.chains import ChainRecorder, LiveChain
from pytest_gpuenergy.replay.profile.profiling import profiler_on, settle
from pytest_gpuenergy.replay.profile.programs import TorchProgram, told_of_capture
from pytest_gpuenergy.replay.profile.reuse import MAX_COPIES, Reuse, ReuseStack, copies
from pytest_gpuenergy.replay.ranks import Ranks

_GAP_CYCLES = 36_000
"""The duration of a gap in cycles, which take about 20 µs."""


_COLD_FACTOR = 3
"""That distance, in sizes of the cache."""
_PROFILED = 24
"""The number of times that each call is profiled alone."""
_PROFILED_CALLS = 16 * _PROFILED
"""The number of calls of each window that are profiled; but windows are profiled six times."""

Replayed = TypeVar("Replayed", LiveCall, LiveChain)
"""A call or chain that takes tensors and can be repeated."""


@dataclass(frozen=True)
class CallTurns:
    """The calls that successive launches make in rotation.

    Attributes:
        calls: The calls to make in turn.
        outputs: The number of latest results that stay in memory, so that the next result is
            written elsewhere.
        gaps: The number of gaps after each call.
        restores: What is done before each of the calls, so that it finds the values that it found
            in the model; empty if it changes none that it reads.
    """

    calls: Sequence[Callable[[], object]]
    outputs: int = 1
    gaps: int = 0
    restores: Sequence[Callable[[], object]] = ()

    def rotating(
        self, around: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> Callable[[], object]:
        """Return a function that makes the next call each time, on any thread.

        Args:
            around: Returns a context for each call alone, without what is done before and after it.
        """
        restores = self.restores or [_nothing] * len(self.calls)
        following = cycle(zip(restores, self.calls, strict=True))
        held: deque[object] = deque(maxlen=self.outputs - 1)

        def function() -> object:
            with torch.inference_mode():
                restore, call = next(following)
                restore()
                with around():
                    returned = call()
                for _ in range(self.gaps):
                    gap()
            held.append(returned)
            return returned

        return function


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Captured:
    """The calls of a model that are kept to be made again.

    Attributes:
        kept: The kept calls, by number.
        forms: The forms of all calls, by number.
        reuse: By the key of a form, how each call of this form used memory; see `CallRecorder`.
        reuse_of_each: The same by the number of the call.
        layers: For each layer, the numbers of its first call and of the one after its last call,
            each time that it is run.
        of_graph: Whether these are calls that the model makes only while a CUDA graph is captured.
    """

    kept: Mapping[int, LiveCall]
    forms: Sequence[CallForm]
    reuse: Mapping[bytes, Sequence[tuple[Reuse, ...]]]
    reuse_of_each: Sequence[tuple[Reuse, ...]]
    layers: Sequence[Sequence[tuple[int, int]]]
    of_graph: bool = False

    def turns(self, call: UniqueCall) -> list[int]:
        """Return the numbers of a call's turns, without those in steps that have not been run.

        A step may make in one layer what a later step makes in others, as with experts.
        """
        return [number for number in call.replayed_turns if number < len(self.forms)]

    def differs(self, call: UniqueCall) -> bool:
        """Return whether the model now makes another call in the place of this one."""
        key, turns = _form_key(call), self.turns(call)
        keys = [_form_key(self.forms[number]) for number in turns if number in self.kept]
        return not keys or keys != [key] * len(turns) or key not in self.reuse

    def median_reuse(self, call: UniqueCall) -> list[Reuse]:
        """Return the reuse of each tensor, with its median distance in all calls of this form."""
        return [
            Reuse(group[0].size_bytes, int(median(used.distance_bytes for used in group)))
            for group in zip(*self.reuse[_form_key(call)], strict=True)
        ]

    def ids(self, calls: Sequence[UniqueCall], *, from_host: bool = False) -> list[dict[int, str]]:
        """Return the ids of the unique calls that each call may be, by the step that makes it.

        Args:
            calls: The unique calls of the profile.
            from_host: Whether the calls are those of a step that the host launches, and not those
                of its graph.
        """
        by_form: dict[bytes, dict[int, str]] = {}
        for key in (_form_key, _exact_key):
            for call in sorted(calls, key=lambda one: one.total_us):
                steps = call.steps if from_host else call.in_graph.steps
                by_form.setdefault(key(call), {}).update(dict.fromkeys(steps, call.id))
        return [
            by_form.get(_form_key(form), {}) | by_form.get(_exact_key(form), {})
            for form in self.forms
        ]


def _form_key(form: CallForm | UniqueCall) -> bytes:
    return msgspec.json.encode([form.operator, alike(form.arguments)], order="deterministic")


def _exact_key(form: CallForm | UniqueCall) -> bytes:
    return msgspec.json.encode([form.operator, form.arguments], order="deterministic")


def capture_calls(
    program: TorchProgram, inputs: Any, numbers: Sequence[int], steps: int, limit_bytes: int
) -> Captured:
    """Run a program to keep some of its calls.

    It runs once to warm up, as in the profile; once to follow the use of memory; and once to keep
    the calls.
    """
    program.run(inputs, steps)
    # A run of its own, because kept calls hold memory that the model would use again.
    watched = CallRecorder(program.modules, memory=ReuseStack(limit_bytes))
    layers: list[list[tuple[int, int]]] = [[] for _ in program.layers]
    with watched, ExitStack() as stack:
        for layer, spans in zip(program.layers, layers, strict=True):

            def enter(*_: Any, spans: list[tuple[int, int]] = spans) -> None:
                spans.append((len(watched.forms), 0))

            def leave(_: Any, spans: list[tuple[int, int]] = spans) -> None:
                spans[-1] = (spans[-1][0], len(watched.forms))

            stack.enter_context(calls_watched(layer, enter, leave))
        program.run(inputs, steps)
    recorder = CallRecorder(program.modules, numbers)
    with recorder:
        program.run(inputs, steps)
    reuse: dict[bytes, list[tuple[Reuse, ...]]] = {}
    for form, used in zip(watched.forms, watched.reuse, strict=True):
        reuse.setdefault(_form_key(form), []).append(used)
    if len(watched.forms) != len(recorder.forms):  # where layers begin is not known, then
        layers = []
    return Captured(recorder.kept, recorder.forms, reuse, watched.reuse, layers)


def call_turns(
    own: Sequence[Replayed],
    reuse: Sequence[Reuse],
    cache: Cache,
    limit_bytes: int,
    *,
    restores: bool = True,
) -> CallTurns:
    """Return the turns that replay a call.

    Args:
        own: The kept calls or chains, one for each set of parameters.
        reuse: The reuse of the tensors that the call takes, and then of those that it returns.
        cache: ``model`` uses the parameters of each layer in turn, and enough copies of each other
            tensor for the reuse distance that it has in the model; ``hot`` uses one set of tensors;
            ``cold`` uses so many copies that none stays in the cache.
        limit_bytes: The reuse distance at which a tensor has left the cache.
        restores: Whether to restore what the call changes and reads, see `changed_before_read`.
    """
    first = own[0]
    if cache == "cold":
        reuse = [Reuse(used.size_bytes, limit_bytes) for used in reuse]
    tensors = first.tensors
    places = first_places(tensors)
    again = {index for index, place in enumerate(places) if place < index}
    reuse = [used._replace(size_bytes=0) if n in again else used for n, used in enumerate(reuse)]
    numbers = [1] * len(reuse) if cache == "hot" else copies(reuse, MAX_COPIES)
    sets: list[list[Any]] = []
    for index, (tensor, number) in enumerate(zip(tensors, numbers, strict=False)):
        if index in again:
            sets.append(sets[places[index]])
            continue
        found = [tensor]
        if first.is_parameter(tensor) and cache != "hot":
            found = [call.tensors[index] for call in own]
        sets.append(found + [copied_tensor(tensor) for _ in range(number - len(found))])
    outputs = max(numbers[len(tensors) :], default=1)
    turns = range(max([outputs, *map(len, sets)]))
    calls = [first.with_tensors([group[turn % len(group)] for group in sets]) for turn in turns]
    changed = changed_before_read(first) if restores else []
    kept = [(part, part.of(tensors).clone()) for part in changed]

    def restore(turn: int) -> None:
        for part, content in kept:
            part.of([group[turn % len(group)] for group in sets]).copy_(content)

    return CallTurns(calls, outputs, restores=[partial(restore, turn) for turn in turns if kept])


def changed_before_read(replayed: LiveCall | LiveChain) -> list[Part]:
    """Return the memory that a call reads and changes, so that it finds other values next time.

    GELU in a kernel of ``torch.compile`` may be such a call: repeated in place, it would turn its
    values into zeros, and other calls would turn theirs into infinities. Both take less energy than
    the values in the model.
    """
    if not replayed.may_write:
        return []
    tensors = replayed.tensors
    own: list[Any] = []
    for place, tensor in zip(first_places(tensors), tensors, strict=True):
        if place < len(own):
            own.append(own[place])
        else:
            own.append(tensor if replayed.is_parameter(tensor) else copied_tensor(tensor))
    call = replayed.with_tensors(own)
    parts = replayed.parts
    contents = [part.of(own) for part in parts]
    before = [content.clone() for content in contents]

    def state() -> list[Any]:
        return [*contents, *map(bytes_of, tensors_in(call()))]

    def is_as_at_first() -> bool:
        return all(map(torch.equal, state(), first))

    first = [one.clone() for one in state()]
    if is_as_at_first():
        return []
    needed = [
        number
        for number in sorted(range(len(parts)), key=lambda number: -contents[number].numel())
        if not torch.equal(first[number], before[number])
    ]
    for number in list(needed):
        without = [other for other in needed if other != number]
        for content, one in zip(contents, first, strict=False):
            content.copy_(one)
        for other in without:
            contents[other].copy_(before[other])
        if is_as_at_first():
            needed = without
    return [parts[number] for number in needed]


def cold_bytes(device: str) -> int:
    """Return the reuse distance at which a tensor has left the L2 cache of ``device``."""
    cache_bytes: int = torch.cuda.get_device_properties(device).L2_cache_size
    return _COLD_FACTOR * cache_bytes


def spaced_launches(period_s: float) -> Callable[[], object]:
    """Return a function that launches an empty kernel, ``period_s`` after the one before."""
    due_s = 0.0

    def function() -> None:
        nonlocal due_s
        while (now_s := perf_counter()) < due_s:
            pass
        due_s = now_s + period_s
        torch.cuda._sleep(0)

    return function


def gap() -> None:
    """Keep a single thread of the GPU busy for about 20 µs."""
    torch.cuda._sleep(_GAP_CYCLES)


def replayable_turns(
    calls: Sequence[UniqueCall],
    program: TorchProgram,
    inputs: Any,
    last_step: int,
    device: str,
    cache: Cache,
    ranks: Ranks,
    *,
    graph_differs: bool,
) -> tuple[dict[str, CallTurns], dict[str, float], dict[str, str], list[Captured]]:
    """Return the turns of each call that launches the same kernels as in the profile.

    ``graph_differs`` says whether the model makes other calls while a CUDA graph is captured.

    Returns:
        By the ids of these calls, their turns and their GPU time by the profiler; by the ids of all
        other calls, why they cannot be replayed; and the calls of a run, followed by those of a run
        as it is for a graph, if there was one.
    """
    limit_bytes = cold_bytes(device)
    numbers = [number for call in calls for number in call.turns]
    only_in_graph = [number for call in calls if not call.turns for number in call.replayed_turns]
    plain = capture_calls(program, inputs, numbers, last_step + 1, limit_bytes)
    runs = [plain]
    if graph_differs:
        with told_of_capture(True):
            of_graph = capture_calls(program, inputs, only_in_graph, last_step + 1, limit_bytes)
        runs.append(replace(of_graph, of_graph=True))
    turns: dict[str, CallTurns] = {}
    missing = {}
    for call in calls:
        captured = plain if call.turns else runs[-1]
        own_turns = captured.turns(call)
        if not call.replayed_turns:
            missing[call.id] = "it was launched outside of PyTorch's operators"
        elif captured.differs(call):
            missing[call.id] = "the model makes another call in its place now"
        elif not all(captured.kept[number].is_plain for number in own_turns):
            missing[call.id] = "tensors that are sparse, nested or quantized cannot be copied"
        else:
            own = [captured.kept[number] for number in own_turns]
            reuse = captured.median_reuse(call)
            # To find out what an exchange changes, all ranks would have to make it equally often.
            restores = not call.is_exchange
            turns[call.id] = call_turns(own, reuse, cache, limit_bytes, restores=restores)
    _leave_out(calls, turns, missing, ranks)
    chosen = [call for call in calls if call.id in turns]
    found = launched_by([turns[call.id] for call in chosen], device)
    durations_us = {}
    for call, (launched, duration_us) in zip(chosen, found, strict=True):
        durations_us[call.id] = duration_us
        if [launch.plan for launch in launched] != [form.plan for form in call.launches]:
            names = ", ".join(launch.name for launch in launched) or "nothing"
            missing[call.id] = f"alone it launches {names}"
            del turns[call.id]
    _leave_out(calls, turns, missing, ranks)
    return turns, durations_us, missing, runs


def window_turns(
    windows: Sequence[CallWindow],
    calls: Mapping[str, UniqueCall],
    program: TorchProgram,
    inputs: Any,
    last_step: int,
    device: str,
    cache: Cache,
    captured: Captured,
) -> tuple[list[tuple[CallWindow, CallTurns, float]], dict[str, str]]:
    """Return the windows that launch the same kernels as their calls, with turns and GPU time.

    The turns have the parameters of each layer; other tensors are copies of those of one layer.

    Returns:
        The windows; and by the keys of all other windows, why they cannot be replayed.
    """
    limit_bytes = cold_bytes(device)
    numbers = [group for window in windows for group in window.numbers]
    firsts = [0, *accumulate(len(window.numbers) for window in windows)][:-1]
    # A layer in the middle, since the first and the last one may take or leave something else.
    middles = [
        first + len(window.numbers) // 2 for first, window in zip(firsts, windows, strict=True)
    ]
    recorder = ChainRecorder(program.modules, numbers, middles)
    with told_of_capture(captured.of_graph), recorder:
        program.run(inputs, last_step + 1)
    found: list[tuple[CallWindow, CallTurns]] = []
    missing: dict[str, str] = {}
    for window, first, middle in zip(windows, firsts, middles, strict=True):
        model = recorder.chains.get(middle)
        if model is None or not model.is_plain:
            missing[window.key] = (
                "the model makes other calls in its place now"
                if model is None
                else "tensors that are sparse, nested or quantized cannot be copied"
            )
            continue
        alike = [middle] + [
            other
            for other in range(first, first + len(window.numbers))
            if other != middle and other in recorder.chains
            if recorder.chains[other].form == model.form
        ]
        reuse = []
        for index, place in enumerate(recorder.reuse_of[middle]):
            of_each = [
                captured.reuse_of_each[numbers[other][place.call]][place.tensor] for other in alike
            ]
            size_bytes = of_each[0].size_bytes
            taken = model.tensors[index] if index < len(model.tensors) else None
            if taken is not None and not model.is_parameter(taken):
                size_bytes = taken.numel()  # of the region of a tensor
            distance_bytes = int(median(used.distance_bytes for used in of_each))
            reuse.append(Reuse(size_bytes, max(size_bytes, distance_bytes)))
        chains = [recorder.chains[other] for other in alike]
        found.append((window, call_turns(chains, reuse, cache, limit_bytes)))
    times = [max(6, min(_PROFILED, _PROFILED_CALLS // len(one.calls))) for one, _ in found]
    launched = launched_by([turns for _, turns in found], device, times) if found else []
    alike_alone: list[tuple[CallWindow, CallTurns, float]] = []
    for (window, turns), (forms, gpu_us) in zip(found, launched, strict=True):
        alone = [form.plan for call in window.calls for form in calls[call].launches]
        if [launch.plan for launch in forms] == alone:
            alike_alone.append((window, turns, gpu_us))
        else:
            others = Counter(launch.name for launch in forms) - Counter(
                str(one[0]) for one in alone
            )
            what = ", ".join(others) or "the kernels of its calls otherwise"
            missing[window.key] = f"together they launch {what}"
    return alike_alone, missing


def _leave_out(
    calls: Sequence[UniqueCall], turns: dict[str, CallTurns], missing: dict[str, str], ranks: Ranks
) -> None:
    """Leave out the exchanges that another rank cannot replay."""
    lacking = {call.replayed_turns[0] for call in calls if call.is_exchange and call.id in missing}
    elsewhere = set().union(*ranks.gathered(lacking)) - lacking
    for call in calls:
        if call.is_exchange and call.replayed_turns[0] in elsewhere:
            missing[call.id] = "another rank cannot replay it"
            turns.pop(call.id, None)


def launched_by(
    turns: Sequence[CallTurns], device: str, times: Sequence[int] = ()
) -> list[tuple[list[TraceLaunch], float]]:
    """Make the calls of all turns some times under the profiler, as the model was profiled.

    Args:
        turns: The calls.
        device: PyTorch's name of the GPU.
        times: How often each is made; empty for the usual number.

    Returns:
        For each element of ``turns``, the launches of one call, and the mean GPU time of its calls.
        It is the mean, as in the trace of the model, because the mean of 24 layers was 0.3 and 0.6
        % above their median.
    """
    times = times or [_PROFILED] * len(turns)
    numbers = count()
    functions = [own.rotating(lambda: record_function(f"call {next(numbers)}")) for own in turns]
    for function in functions:
        function()
    settle(device)
    numbers = count()
    with profiler_on(device) as profiler:
        for function, often in zip(functions, times, strict=True):
            for _ in range(often):
                function()
        settle(device)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        write_trace(profiler, path)
        found = launches(read_trace(path))
    by_call: list[list[TraceLaunch]] = [[] for _ in range(sum(times))]
    for launch in found:
        if launch.call is not None:
            by_call[launch.call].append(launch)
    ends = list(accumulate(times))
    groups = [by_call[end - often : end] for end, often in zip(ends, times, strict=True)]
    return [
        (group[0], fmean(sum(launch.duration_us for launch in call) for call in group))
        for group in groups
    ]
