"""A model's calls made again: alone, as its layers, and as whole steps.

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
from pytest_gpuenergy.replay.extract.trace import Launch, launches, read_trace, write_trace
from pytest_gpuenergy.replay.play.plan import (
    Cache,
    Plan,
    Planner,
    Repeat,
    replayable_call,
    replayable_gap,
    replayable_spaced,
    replayable_step,
)
from pytest_gpuenergy.replay.profile.capture import CallRecorder, LiveCall, copy_of
from pytest_gpuenergy.replay.profile.models import load_program
from pytest_gpuenergy.replay.profile.profiling import profiler_on, settle
from pytest_gpuenergy.replay.profile.programs import Program, Prompt, appendable
from pytest_gpuenergy.replay.profile.reuse import Reuse, ReuseStack, copies
from pytest_gpuenergy.replay.profile_folder import ProfileRecord
from pytest_gpuenergy.replay.ranks import ALONE, Ranks
from pytest_gpuenergy.support import DeviceError

_GAP_CYCLES = 36_000  # some 20 µs
_MOST_COPIES = 256


@dataclass(frozen=True)
class Turns:
    """What successive launches do in rotation.

    Attributes:
        calls: to make in turn.
        outputs: how many of the latest results stay in memory, so that the next is written
            elsewhere.
    """

    calls: Sequence[Callable[[], object]]
    outputs: int = 1

    def with_gaps(self, gaps: int) -> Turns:
        """The same with gaps after each call."""

        def spaced(call: Callable[[], object]) -> object:
            returned = call()
            for _ in range(gaps):
                gap()
            return returned

        return Turns([partial(spaced, one) for one in self.calls], self.outputs)

    def rotating(self) -> Callable[[], object]:
        """A function that does the next part at each call, on any thread."""
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
    """A model's calls, kept to be made again.

    Attributes:
        kept: by number.
        forms: of all calls, by number.
        reuse: by the key of a form, how each such call used memory; see `CallRecorder`.
    """

    kept: Mapping[int, LiveCall]
    forms: Sequence[CallForm]
    reuse: Mapping[bytes, Sequence[tuple[Reuse, ...]]]

    def differs(self, call: UniqueCall) -> bool:
        """Whether the model makes another call now where it made this one."""
        key = _form_key(call)
        keys = [_form_key(self.forms[number]) for number in call.turns if number in self.kept]
        return keys != [key] * len(call.turns) or key not in self.reuse

    def reuse_of(self, call: UniqueCall) -> list[Reuse]:
        """Of each tensor, the median of its distances in all calls of this form."""
        return [
            Reuse(group[0].size_bytes, int(median(one.distance_bytes for one in group)))
            for group in zip(*self.reuse[_form_key(call)], strict=True)
        ]


def _form_key(form: CallForm | UniqueCall) -> bytes:
    return msgspec.json.encode([form.operator, form.arguments], order="deterministic")


def capture_calls(
    program: Program, inputs: Any, numbers: Sequence[int], steps: int, limit_bytes: int
) -> Captured:
    """Run once to warm up, as the profile did; once to see how memory is used; once to keep calls.

    Args:
        program: to run.
        inputs: what it begins with.
        numbers: of the calls to keep.
        steps: how many to run.
        limit_bytes: see `ReuseStack`.
    """
    program.run(inputs, steps)
    # Kept calls take memory that the model would have used again.
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
) -> Turns:
    """What to replay for a call.

    Args:
        own: the kept calls, one for each set of parameters.
        reuse: how the call uses its tensors in the model, and then what it returns.
        cache: ``model`` has as many copies of each tensor in turn that it comes back to one when
            the model does, as for memory used in between, and the parameters of each layer; ``hot``
            has one set of tensors; ``cold`` so many copies that none stays in the cache.
        limit_bytes: that must be used in between for a tensor to leave the cache.
    """
    first = own[0]
    if cache == "hot":
        return Turns([first])
    if cache == "cold":
        reuse = [Reuse(one.size_bytes, limit_bytes) for one in reuse]
    tensors = first.tensors
    numbers = copies(reuse, _MOST_COPIES)
    sets = []
    for index, (tensor, number) in enumerate(zip(tensors, numbers, strict=False)):
        found = [tensor]
        if first.is_parameter(tensor):
            found = [one.tensors[index] for one in own]
        sets.append(found + [copy_of(tensor) for _ in range(number - len(found))])
    outputs = max(numbers[len(tensors) :], default=1)
    count = max([outputs, *map(len, sets)])
    calls = [
        first.with_tensors([group[turn % len(group)] for group in sets]) for turn in range(count)
    ]
    return Turns(calls, outputs)


def gap() -> None:
    """Keep one thread busy for some 20 µs."""
    torch.cuda._sleep(_GAP_CYCLES)


_COLD_FACTOR = 3
_PROFILED = 24


def live_planner(device: str, cache: Cache, source: str = "", ranks: Ranks = ALONE) -> Planner:
    """See `pytest_gpuenergy.replay.play.plan.planner_for`.

    Args:
        device: PyTorch's name of it.
        cache: see `turns_of`.
        source: what to load; that which was profiled if it is empty.
        ranks: that share the model.
    """

    def plan(
        profile: ProfileRecord,
        calls: Sequence[UniqueCall],  # noqa: ARG001 -- the model knows what its steps consist of
        chosen: Sequence[UniqueCall],
        steps: Sequence[int],
    ) -> Plan:
        program = load_program(
            source or profile.model,
            dtype=profile.dtype,
            attention=profile.attention,
            seed=profile.seed,
            device=device,
            ranks=ranks,
        )
        in_order = sorted(chosen, key=lambda one: (not one.is_exchange, one.turns))
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
        for one in captured:
            whole = Turns([one.whole])
            ways = [(GRAPH, _repeater(whole, device, most=ranks.most))]
            ways.append((EAGER, _repeater(whole, device, from_host=True, most=ranks.most)))
            if one.layers is not None:
                layers = _repeater(Turns([one.layers]), device, most=ranks.most)
                ways.insert(0, (LAYERS, layers))
            else:
                missing[step_key(one.number, LAYERS)] = "no layers of the model are known"
            wholes += [
                replayable_step(profile, one.number, level, cache, repeater)
                for level, repeater in ways
            ]
        played = []
        for call in in_order:
            if (group := turns.get(call.id)) is not None:
                most = ranks.most if call.is_exchange else ALONE.most
                count, repeater = len(group.calls), _repeater(group, device, most=most)
                gpu_us = durations_us[call.id]
                played.append(replayable_call(profile, call, cache, count, repeater, gpu_us))
        by_id = {one.id: one for one in chosen}

        def spaced(call: str, gaps: int, key: str) -> Replayable:
            group = turns[call].with_gaps(gaps)
            most = ranks.most if by_id[call].is_exchange else ALONE.most
            repeater, count = _repeater(group, device, most=most), len(group.calls)
            return replayable_spaced(profile, by_id[call], gaps, key, cache, count, repeater)

        pause = replayable_gap(profile, cache, _repeater(Turns([gap]), device))
        return Plan(wholes, played, missing, spaced, pause, source or profile.model)

    return plan


def _repeater(
    turns: Turns,
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
    program: Program,
    inputs: Any,
    last_step: int,
    device: str,
    cache: Cache,
    ranks: Ranks,
) -> tuple[dict[str, Turns], dict[str, float], dict[str, str]]:
    """What to replay for each call, by its id, where it launches what the profile recorded.

    Returns:
        Also their GPU time by the profiler, and by the ids of all other calls, why they cannot be
        replayed.
    """
    numbers = [number for one in calls for number in one.turns]
    limit_bytes = _COLD_FACTOR * torch.cuda.get_device_properties(device).L2_cache_size
    captured = capture_calls(program, inputs, numbers, last_step + 1, limit_bytes)
    turns: dict[str, Turns] = {}
    missing = {}
    for one in calls:
        if not one.turns:
            missing[one.id] = "it was launched outside of PyTorch's operators"
        elif captured.differs(one):
            missing[one.id] = "the model makes another call in its place now"
        elif not all(captured.kept[number].is_plain for number in one.turns):
            missing[one.id] = "tensors that are sparse, nested or quantized cannot be copied"
        else:
            own = [captured.kept[number] for number in one.turns]
            turns[one.id] = turns_of(own, captured.reuse_of(one), cache, limit_bytes)
    _leave_out(calls, turns, missing, ranks)
    found = launched_by([group.rotating() for group in turns.values()], device)
    by_id = {one.id: one for one in calls}
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
    calls: Sequence[UniqueCall], turns: dict[str, Turns], missing: dict[str, str], ranks: Ranks
) -> None:
    """Leave out the exchanges that another rank leaves out."""
    lacking = {one.turns[0] for one in calls if one.is_exchange and one.id in missing}
    elsewhere = set().union(*ranks.gathered(lacking)) - lacking
    for one in calls:
        if one.is_exchange and one.turns[0] in elsewhere:
            missing[one.id] = "another rank cannot replay it"
            turns.pop(one.id, None)


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


@dataclass(frozen=True)
class Launched:
    """What a function launches.

    Attributes:
        plans: see `LaunchForm.plan`; of one call, in order.
        duration_us: GPU time of a call, the median over some.
    """

    plans: tuple[tuple[object, ...], ...]
    duration_us: float


def launched_by(functions: Sequence[Callable[[], object]], device: str) -> list[Launched]:
    """Call each function a few times under the profiler, as the model was profiled."""
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
    by_call: list[list[Launch]] = [[] for _ in range(_PROFILED * len(functions))]
    for one in found:
        if one.call is not None:
            by_call[one.call].append(one)
    groups = [by_call[start : start + _PROFILED] for start in range(0, len(by_call), _PROFILED)]
    return [
        Launched(
            tuple((one.name, one.grid, one.block, one.shared_memory_bytes) for one in group[0]),
            median(sum(one.duration_us for one in call) for call in group),
        )
        for group in groups
    ]


def _again(module: Any, args: Any, kwargs: Any) -> Callable[[], object]:
    kept_args, kept_kwargs = tree_map(appendable, args), tree_map(appendable, kwargs)
    return lambda: module(*tree_map(appendable, kept_args), **tree_map(appendable, kept_kwargs))
