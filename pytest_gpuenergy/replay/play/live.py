"""Replays a model on a GPU: its calls alone, its layers, and its whole steps.

Imports PyTorch: import this module only where it is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch
from torch.profiler import record_function
from torch.utils._pytree import tree_map

from pytest_gpuenergy.devices import Repeater
from pytest_gpuenergy.engine import Replayable
from pytest_gpuenergy.replay.account.figures import EAGER, GRAPH, LAYERS, step_key
from pytest_gpuenergy.replay.extract.calls import CallForm, UniqueCall
from pytest_gpuenergy.replay.extract.trace import TraceLaunch, launches, read_trace, write_trace
from pytest_gpuenergy.replay.play.replay_plan import (
    Cache,
    Planner,
    Repeat,
    ReplayPlan,
    replayable_call,
    replayable_gap,
    replayable_spaced,
    replayable_step,
)
from pytest_gpuenergy.replay.profile.capture import CallRecorder, LiveCall, copy_of
from pytest_gpuenergy.replay.profile.language_models import load_program
from pytest_gpuenergy.replay.profile.profiling import profiler_on, settle
from pytest_gpuenergy.replay.profile.programs import Prompt, TorchProgram, appendable
from pytest_gpuenergy.replay.profile.reuse import Reuse, ReuseStack, copies
from pytest_gpuenergy.replay.profile_folder import ProfileRecord
from pytest_gpuenergy.replay.ranks import ALONE, Ranks
from pytest_gpuenergy.support import DeviceError

_GAP_CYCLES = 36_000
"""The duration of a gap in cycles, which take about 20 µs."""
_MOST_COPIES = 256
"""The largest number of copies of a tensor."""


@dataclass(frozen=True)
class CallTurns:
    """The calls that successive launches make in rotation.

    Attributes:
        calls: The calls to make in turn.
        outputs: The number of latest results that stay in memory, so that the next result is
            written elsewhere.
    """

    calls: Sequence[Callable[[], object]]
    outputs: int = 1

    def with_gaps(self, gaps: int) -> CallTurns:
        """Return the same calls with gaps after each."""

        def spaced(call: Callable[[], object]) -> object:
            returned = call()
            for _ in range(gaps):
                gap()
            return returned

        return CallTurns([partial(spaced, call) for call in self.calls], self.outputs)

    def rotating(self) -> Callable[[], object]:
        """Return a function that makes the next call each time, on any thread."""
        following = cycle(self.calls)
        held: deque[object] = deque(maxlen=self.outputs - 1)

        def function() -> object:
            with torch.inference_mode():
                returned = next(following)()
            held.append(returned)
            return returned

        return function


@dataclass(frozen=True)
class Captured:
    """The calls of a model that are kept to be made again.

    Attributes:
        kept: The kept calls, by number.
        forms: The forms of all calls, by number.
        reuse: By the key of a form, how each call of this form used memory; see `CallRecorder`.
    """

    kept: Mapping[int, LiveCall]
    forms: Sequence[CallForm]
    reuse: Mapping[bytes, Sequence[tuple[Reuse, ...]]]

    def differs(self, call: UniqueCall) -> bool:
        """Return whether the model now makes another call in the place of this one."""
        key = _form_key(call)
        keys = [_form_key(self.forms[number]) for number in call.turns if number in self.kept]
        return keys != [key] * len(call.turns) or key not in self.reuse

    def reuse_of(self, call: UniqueCall) -> list[Reuse]:
        """Return the reuse of each tensor, with its median distance in all calls of this form."""
        return [
            Reuse(group[0].size_bytes, int(median(used.distance_bytes for used in group)))
            for group in zip(*self.reuse[_form_key(call)], strict=True)
        ]


def _form_key(form: CallForm | UniqueCall) -> bytes:
    return msgspec.json.encode([form.operator, form.arguments], order="deterministic")


def capture_calls(
    program: TorchProgram, inputs: Any, numbers: Sequence[int], steps: int, limit_bytes: int
) -> Captured:
    """Run a program to keep some of its calls.

    It runs once to warm up, as in the profile; once to follow the use of memory; and once to keep
    the calls.

    Args:
        program: The program.
        inputs: The input of its first step.
        numbers: The numbers of the calls to keep.
        steps: The number of steps to run.
        limit_bytes: The largest reuse distance, see `ReuseStack`.
    """
    program.run(inputs, steps)
    # A run of its own, because kept calls hold memory that the model would use again.
    watched = CallRecorder(program.modules, memory=ReuseStack(limit_bytes))
    with watched:
        program.run(inputs, steps)
    recorder = CallRecorder(program.modules, numbers)
    with recorder:
        program.run(inputs, steps)
    reuse: dict[bytes, list[tuple[Reuse, ...]]] = {}
    for form, used in zip(watched.forms, watched.reuse, strict=True):
        reuse.setdefault(_form_key(form), []).append(used)
    return Captured(recorder.kept, recorder.forms, reuse)


def turns_of(
    own: Sequence[LiveCall], reuse: Sequence[Reuse], cache: Cache, limit_bytes: int
) -> CallTurns:
    """Return the turns that replay a call.

    Args:
        own: The kept calls, one for each set of parameters.
        reuse: The reuse of the tensors that the call takes, and then of those that it returns.
        cache: ``model`` uses the parameters of each layer in turn, and as many copies of each other
            tensor as it takes to have the reuse distance of the model; ``hot`` uses one set of
            tensors; ``cold`` uses so many copies that none stays in the cache.
        limit_bytes: The reuse distance at which a tensor has left the cache.
    """
    first = own[0]
    if cache == "hot":
        return CallTurns([first])
    if cache == "cold":
        reuse = [Reuse(used.size_bytes, limit_bytes) for used in reuse]
    tensors = first.tensors
    numbers = copies(reuse, _MOST_COPIES)
    sets = []
    for index, (tensor, number) in enumerate(zip(tensors, numbers, strict=False)):
        found = [tensor]
        if first.is_parameter(tensor):
            found = [call.tensors[index] for call in own]
        sets.append(found + [copy_of(tensor) for _ in range(number - len(found))])
    outputs = max(numbers[len(tensors) :], default=1)
    count = max([outputs, *map(len, sets)])
    calls = [
        first.with_tensors([group[turn % len(group)] for group in sets]) for turn in range(count)
    ]
    return CallTurns(calls, outputs)


def gap() -> None:
    """Keep a single thread of the GPU busy for about 20 µs."""
    torch.cuda._sleep(_GAP_CYCLES)


_COLD_FACTOR = 3
_PROFILED = 24


def live_planner(device: str, cache: Cache, source: str = "", ranks: Ranks = ALONE) -> Planner:
    """Return what plans the replay of a model on a GPU.

    Args:
        device: PyTorch's name of the GPU.
        cache: What the L2 cache holds, see `turns_of`.
        source: The name of the program to load; empty for the one that was profiled.
        ranks: The ranks that share the model.
    """

    def plan(
        profile: ProfileRecord,
        calls: Sequence[UniqueCall],  # noqa: ARG001 -- the model knows what its steps consist of
        chosen: Sequence[UniqueCall],
        steps: Sequence[int],
    ) -> ReplayPlan:
        program = load_program(
            source or profile.model,
            dtype=profile.dtype,
            attention=profile.attention,
            seed=profile.seed,
            device=device,
            ranks=ranks,
        )
        in_order = sorted(chosen, key=lambda call: (not call.is_exchange, call.turns))
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
        prompt = Prompt(profile.prompt_tokens, profile.new_tokens, profile.batch, profile.seed)
        try:
            with torch.inference_mode():
                inputs = program.inputs(prompt, device)
                turns, durations_us, missing = _turns(
                    in_order, program, inputs, max(steps), device, cache, ranks
                )
                captured = [capture_step(program, inputs, step) for step in steps]
        except torch.OutOfMemoryError:
            raise DeviceError(
                f"{profile.model} does not fit into the memory of {device} together with the "
                "arguments of its calls: choose fewer with --kernels, or profile a smaller size."
            ) from None
        wholes = []
        for ready in captured:
            whole = CallTurns([ready.whole])
            ways = [(GRAPH, _repeater(whole, device, most=ranks.most))]
            ways.append((EAGER, _repeater(whole, device, from_host=True, most=ranks.most)))
            if ready.layers is not None:
                layers = _repeater(CallTurns([ready.layers]), device, most=ranks.most)
                ways.insert(0, (LAYERS, layers))
            else:
                missing[step_key(ready.number, LAYERS)] = "no layers of the model are known"
            wholes += [
                replayable_step(profile, ready.number, level, cache, repeater)
                for level, repeater in ways
            ]
        played = []
        for call in in_order:
            if (group := turns.get(call.id)) is not None:
                most = ranks.most if call.is_exchange else ALONE.most
                count, repeater = len(group.calls), _repeater(group, device, most=most)
                gpu_us = durations_us[call.id]
                played.append(replayable_call(profile, call, cache, count, repeater, gpu_us))
        by_id = {call.id: call for call in chosen}

        def spaced(call: str, gaps: int, key: str) -> Replayable:
            group = turns[call].with_gaps(gaps)
            most = ranks.most if by_id[call].is_exchange else ALONE.most
            repeater, count = _repeater(group, device, most=most), len(group.calls)
            return replayable_spaced(profile, by_id[call], gaps, key, cache, count, repeater)

        pause = replayable_gap(profile, cache, _repeater(CallTurns([gap]), device))
        return ReplayPlan(wholes, played, missing, spaced, pause, source or profile.model)

    return plan


def _repeater(
    turns: CallTurns,
    device: str,
    *,
    from_host: bool = False,
    most: Callable[[float], float] = ALONE.most,
) -> Repeat:
    @contextmanager
    def repeater() -> Iterator[Repeater]:
        from pytest_gpuenergy.devices import GraphRepeater

        try:
            with torch.inference_mode():
                yield GraphRepeater(
                    [turns.rotating()],
                    multiple=len(turns.calls),
                    from_host=from_host,
                    most=most,
                )
        except RuntimeError:
            settle(device)
            raise

    return repeater


def _turns(
    calls: Sequence[UniqueCall],
    program: TorchProgram,
    inputs: Any,
    last_step: int,
    device: str,
    cache: Cache,
    ranks: Ranks,
) -> tuple[dict[str, CallTurns], dict[str, float], dict[str, str]]:
    """Return the turns of each call that launches the same kernels as in the profile.

    Returns:
        By the ids of these calls, their turns and their GPU time by the profiler; by the ids of all
        other calls, why they cannot be replayed.
    """
    numbers = [number for call in calls for number in call.turns]
    limit_bytes = _COLD_FACTOR * torch.cuda.get_device_properties(device).L2_cache_size
    captured = capture_calls(program, inputs, numbers, last_step + 1, limit_bytes)
    turns: dict[str, CallTurns] = {}
    missing = {}
    for call in calls:
        if not call.turns:
            missing[call.id] = "it was launched outside of PyTorch's operators"
        elif captured.differs(call):
            missing[call.id] = "the model makes another call in its place now"
        elif not all(captured.kept[number].is_plain for number in call.turns):
            missing[call.id] = "tensors that are sparse, nested or quantized cannot be copied"
        else:
            own = [captured.kept[number] for number in call.turns]
            turns[call.id] = turns_of(own, captured.reuse_of(call), cache, limit_bytes)
    _leave_out(calls, turns, missing, ranks)
    found = launched_by([group.rotating() for group in turns.values()], device)
    by_id = {call.id: call for call in calls}
    durations_us = {}
    for key, launched in zip(tuple(turns), found, strict=True):
        durations_us[key] = launched.duration_us
        if launched.plans != tuple(form.plan for form in by_id[key].launches):
            names = ", ".join(str(plan[0]) for plan in launched.plans) or "nothing"
            missing[key] = f"alone it launches {names}"
            del turns[key]
    _leave_out(calls, turns, missing, ranks)
    return turns, durations_us, missing


def _leave_out(
    calls: Sequence[UniqueCall], turns: dict[str, CallTurns], missing: dict[str, str], ranks: Ranks
) -> None:
    """Leave out the exchanges that another rank cannot replay."""
    lacking = {call.turns[0] for call in calls if call.is_exchange and call.id in missing}
    elsewhere = set().union(*ranks.gathered(lacking)) - lacking
    for call in calls:
        if call.is_exchange and call.turns[0] in elsewhere:
            missing[call.id] = "another rank cannot replay it"
            turns.pop(call.id, None)


@dataclass(frozen=True)
class ReadyStep:
    """A step of a model that can be repeated.

    Attributes:
        number: The number of the step; 0 for the prefill.
        whole: Runs the whole step.
        layers: Runs all layers of the step, each with the arguments that it had; None if the layers
            of the model are unknown.
    """

    number: int
    whole: Callable[[], object]
    layers: Callable[[], object] | None


def capture_step(program: TorchProgram, inputs: Any, number: int) -> ReadyStep:
    """Run a program up to a step, and keep what is needed to repeat the step.

    Args:
        program: The program.
        inputs: The input of its first step.
        number: The number of the step; 0 for the prefill.
    """
    whole = program.step(inputs, number)
    layers: list[Callable[[], object]] = []
    with ExitStack() as stack:
        for layer in program.layers:

            def keep(module: Any, args: Any, kwargs: Any) -> None:
                layers.append(_again(module, args, kwargs))

            hook = layer.register_forward_pre_hook(keep, with_kwargs=True)
            stack.callback(hook.remove)
        whole()

    def all_layers() -> None:
        for layer in layers:
            layer()

    return ReadyStep(number, whole, all_layers if layers else None)


@dataclass(frozen=True)
class Launched:
    """What a function launches.

    Attributes:
        plans: The name and launch plan of each launch of a call, see `LaunchForm.plan`.
        duration_us: The GPU time of a call, the median over some calls.
    """

    plans: tuple[tuple[object, ...], ...]
    duration_us: float


def launched_by(functions: Sequence[Callable[[], object]], device: str) -> list[Launched]:
    """Call each function some times under the profiler, as the model was profiled."""
    for function in functions:
        function()
    settle(device)
    with profiler_on(device) as profiler:
        for number in range(_PROFILED * len(functions)):
            with record_function(f"call {number}"):
                functions[number // _PROFILED]()
        settle(device)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        write_trace(profiler, path)
        found = launches(read_trace(path))
    by_call: list[list[TraceLaunch]] = [[] for _ in range(_PROFILED * len(functions))]
    for launch in found:
        if launch.call is not None:
            by_call[launch.call].append(launch)
    groups = [by_call[start : start + _PROFILED] for start in range(0, len(by_call), _PROFILED)]
    return [
        Launched(
            tuple(
                (launch.name, launch.grid, launch.block, launch.shared_memory_bytes)
                for launch in group[0]
            ),
            median(sum(launch.duration_us for launch in call) for call in group),
        )
        for group in groups
    ]


def _again(module: Any, args: Any, kwargs: Any) -> Callable[[], object]:
    kept_args, kept_kwargs = tree_map(appendable, args), tree_map(appendable, kwargs)
    return lambda: module(*tree_map(appendable, kept_args), **tree_map(appendable, kept_kwargs))
