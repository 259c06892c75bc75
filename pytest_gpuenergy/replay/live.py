"""A model's calls made again: alone, as its layers, and as whole steps.

Imports PyTorch: import this module only where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import record_function
from torch.utils._pytree import tree_map

from pytest_gpuenergy.devices.device import Repeater
from pytest_gpuenergy.engine.replayable import Replayable
from pytest_gpuenergy.replay.account import EAGER, GRAPH, LAYERS
from pytest_gpuenergy.replay.calls import UniqueCall
from pytest_gpuenergy.replay.capture import CallRecorder, LiveCall
from pytest_gpuenergy.replay.launches import launches
from pytest_gpuenergy.replay.models import appendable, load_program
from pytest_gpuenergy.replay.plan import (
    Cache,
    Plan,
    Planner,
    Repeat,
    replayable_call,
    replayable_gap,
    replayable_spaced,
    replayable_step,
)
from pytest_gpuenergy.replay.profiling import (
    ProfileRecord,
    profiler_on,
    settle,
)
from pytest_gpuenergy.replay.programs import Program, Prompt
from pytest_gpuenergy.replay.trace import read_trace
from pytest_gpuenergy.support.errors import DeviceError

_COLD_FACTOR = 3
_GAP_CYCLES = 36_000  # some 20 µs


def live_planner(device: str, cache: Cache) -> Planner:
    """See `pytest_gpuenergy.replay.plan.planner_for`.

    Args:
        device: PyTorch's name of it.
        cache: see `turns_of`.
    """

    def plan(
        profile: ProfileRecord,
        calls: Sequence[UniqueCall],  # noqa: ARG001 -- the model knows what its steps consist of
        chosen: Sequence[UniqueCall],
        steps: Sequence[int],
    ) -> Plan:
        program = load_program(
            profile.model,
            dtype=profile.dtype,
            attention=profile.attention,
            seed=profile.seed,
            device=device,
        )
        prompt = Prompt(profile.prompt_tokens, profile.new_tokens, profile.batch, profile.seed)
        try:
            with torch.inference_mode():
                inputs = program.inputs(prompt, device)
                turns, missing = _turns(chosen, program, inputs, max(steps), device, cache)
                captured = [capture_step(program, inputs, step) for step in steps]
        except torch.OutOfMemoryError:
            raise DeviceError(
                f"{profile.model} does not fit into the memory of {device} together with the "
                "arguments of its calls: choose fewer with --kernels, or profile a smaller size."
            ) from None
        wholes = []
        for one in captured:
            ways = [(GRAPH, _repeater([one.whole], device))]
            ways.append((EAGER, _repeater([one.whole], device, from_host=True)))
            if one.layers is not None:
                ways.insert(0, (LAYERS, _repeater([one.layers], device)))
            wholes += [
                replayable_step(profile, one.number, level, cache, repeater)
                for level, repeater in ways
            ]
        played = []
        for call in chosen:
            if (group := turns.get(call.id)) is not None:
                count, repeater = len(group), _repeater(group, device)
                played.append(replayable_call(profile, call, cache, count, repeater))
        by_id = {one.id: one for one in chosen}

        def spaced(call: str, gaps: int) -> Replayable | None:
            group = [_with_gaps(one, gaps) for one in turns[call]]
            repeater = _repeater(group, device)
            return replayable_spaced(profile, by_id[call], gaps, cache, len(group), repeater)

        gap = replayable_gap(profile, cache, _repeater([_gap], device))
        return Plan(wholes, played, missing, spaced, gap)

    return plan


def _gap() -> None:
    torch.cuda._sleep(_GAP_CYCLES)


def _with_gaps(function: Callable[[], object], gaps: int) -> Callable[[], object]:
    def both() -> None:
        function()
        for _ in range(gaps):
            _gap()

    return both


def _repeater(
    functions: Sequence[Callable[[], object]], device: str, *, from_host: bool = False
) -> Repeat:
    @contextmanager
    def repeater() -> Iterator[Repeater]:
        from pytest_gpuenergy.devices.cuda.graphs import GraphRepeater

        turns = [_rotating(functions)]
        try:
            with torch.inference_mode():
                yield GraphRepeater(turns, multiple=len(functions), from_host=from_host)
        except RuntimeError:
            settle(device)
            raise

    return repeater


def _rotating(functions: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """A function that does the next part at each call, on any thread."""
    following = cycle(functions)

    def function() -> object:
        with torch.inference_mode():
            return next(following)()

    return function


def _turns(
    calls: Sequence[UniqueCall],
    program: Program,
    inputs: Any,
    last_step: int,
    device: str,
    cache: Cache,
) -> tuple[dict[str, Sequence[LiveCall]], dict[str, str]]:
    """What to replay for each call, by its id, where it launches what the profile recorded.

    Returns:
        Also by the ids of all other calls, why they cannot be replayed.
    """
    numbers = [number for one in calls for number in one.turns]
    live, recorder = capture_calls(program, inputs, numbers, last_step + 1)
    cold_bytes = _COLD_FACTOR * torch.cuda.get_device_properties(device).L2_cache_size
    turns: dict[str, Sequence[LiveCall]] = {}
    missing = {}
    for one in calls:
        if differs(one, recorder):
            missing[one.id] = "the model makes another call in its place now"
        else:
            turns[one.id] = turns_of(one, live, cache, cold_bytes)
    plans = launched_by([group[0] for group in turns.values()], device)
    by_id = {one.id: one for one in calls}
    for key, launched in zip(tuple(turns), plans, strict=True):
        if launched != [form.plan for form in by_id[key].launches]:
            names = ", ".join(str(plan[0]) for plan in launched) or "nothing"
            missing[key] = f"alone it launches {names}"
            del turns[key]
    return turns, missing


@dataclass(frozen=True)
class Step:
    """The model, ready to do its prefill or one decode step again and again.

    Attributes:
        number: 0 for the prefill.
        whole: the whole step.
        layers: all layers of the step, each with the arguments that it had; None if the model has
            none that are known.
    """

    number: int
    whole: Callable[[], object]
    layers: Callable[[], object] | None


def capture_step(program: Program, inputs: Any, number: int) -> Step:
    """Run up to a step, and keep what is needed to do it again.

    Args:
        program: to run.
        inputs: what it begins with.
        number: of the step; 0 is the prefill.
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

    return Step(number, whole, all_layers if layers else None)


def capture_calls(
    program: Program, inputs: Any, numbers: Sequence[int], steps: int
) -> tuple[Mapping[int, LiveCall], CallRecorder]:
    """Run once to warm up, as the profile did, and once more to keep calls alive.

    Args:
        program: to run.
        inputs: what it begins with.
        numbers: of the calls to keep.
        steps: how many to run.
    """
    program.run(inputs, steps)
    recorder = CallRecorder(program.modules, numbers)
    with recorder:
        program.run(inputs, steps)
    return recorder.kept, recorder


def turns_of(
    call: UniqueCall, live: Mapping[int, LiveCall], cache: Cache, cold_bytes: int
) -> Sequence[LiveCall]:
    """What to replay for a call.

    Args:
        call: to replay.
        live: the kept calls by number.
        cache: ``model`` reads the parameters of each layer in turn, and other arguments that stay
            in the cache; ``hot`` has one set of arguments; ``cold`` rotates through so many sets
            that none of them stays.
        cold_bytes: that all sets of ``cold`` take at least.
    """
    own = [live[number] for number in call.turns]
    if cache == "model":
        own = [own[0], *(one.with_activations_of(own[0]) for one in own[1:])]
    elif cache == "hot":
        own = own[:1]
    else:
        while sum(one.bytes for one in own) < cold_bytes and len(own) < _MOST_COPIES:
            own.append(own[len(own) % len(call.turns)].copied())
    return own


_MOST_COPIES = 256


def launched_by(
    functions: Sequence[Callable[[], object]], device: str
) -> list[list[tuple[object, ...]]]:
    """For each function, the plans of what it launches, in order; see `LaunchForm.plan`."""
    for function in functions:
        function()
    settle(device)
    with profiler_on(device) as profiler:
        for number, function in enumerate(functions):
            with record_function(f"call {number}"):
                function()
        settle(device)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        found = launches(read_trace(path))
    plans: list[list[tuple[object, ...]]] = [[] for _ in functions]
    for one in found:
        if one.call is not None:
            plan = (one.name, one.grid, one.block, one.shared_memory_bytes)
            plans[one.call].append(plan)
    return plans


def differs(call: UniqueCall, recorder: CallRecorder) -> bool:
    """Whether the model makes another call now where it made this one."""
    for number in call.turns:
        if number >= len(recorder.forms):
            return True
        form = recorder.forms[number]
        if (form.operator, form.arguments) != (call.operator, call.arguments):
            return True
    return False


def _again(module: Any, args: Any, kwargs: Any) -> Callable[[], object]:
    kept_args, kept_kwargs = tree_map(appendable, args), tree_map(appendable, kwargs)
    return lambda: module(*tree_map(appendable, kept_args), **tree_map(appendable, kept_kwargs))
