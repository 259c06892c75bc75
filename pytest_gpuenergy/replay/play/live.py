"""Replays a model on a GPU: its calls alone, its layers, and its whole steps.

Imports PyTorch: import this module only where it is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import accumulate, cycle
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec
import torch
from torch.profiler import record_function
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only

from pytest_gpuenergy import devices
from pytest_gpuenergy.devices import Repeater
from pytest_gpuenergy.engine import Replayable
from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.replay.account.account import (
    EAGER,
    GRAPH,
    LAYERS,
    calls_at,
    module_level,
    step_key,
)
from pytest_gpuenergy.replay.account.change_savings import CallChange
from pytest_gpuenergy.replay.extract.calls import CallForm, UniqueCall
from pytest_gpuenergy.replay.extract.trace import TraceLaunch, launches, read_trace, write_trace
from pytest_gpuenergy.replay.play.call_windows import CallWindow, choose_windows
from pytest_gpuenergy.replay.play.changes import ResultReads, call_changes, fusible_modules
from pytest_gpuenergy.replay.play.replay_plan import (
    Cache,
    PlannedChange,
    Planner,
    Repeat,
    ReplayPlan,
    ReplayWorkloads,
)
from pytest_gpuenergy.replay.profile.capture import (
    CallRecorder,
    ChainRecorder,
    LiveCall,
    LiveChain,
    OperatorMode,
    copied_tensor,
    tensors_in,
)
from pytest_gpuenergy.replay.profile.language_models import load_program
from pytest_gpuenergy.replay.profile.profiling import profiler_on, settle
from pytest_gpuenergy.replay.profile.programs import TorchProgram, appendable, told_of_capture
from pytest_gpuenergy.replay.profile.reuse import Reuse, ReuseStack, copies
from pytest_gpuenergy.replay.profile_folder import ProfileRecord
from pytest_gpuenergy.replay.ranks import ALONE, Ranks
from pytest_gpuenergy.support import DeviceError

_GAP_CYCLES = 36_000
"""The duration of a gap in cycles, which take about 20 µs."""
_MAX_COPIES = 256
"""The largest number of copies of a tensor."""
_COLD_FACTOR = 3
"""The reuse distance, in sizes of the L2 cache, at which a tensor has left the cache."""
_PROFILED = 24
"""How often each call is profiled alone."""
_CHANGED = 8
"""The number of calls of a step that are changed, those that take most energy."""
_FUSED = 3
"""The number of kinds of modules of a step whose calls are fused."""
_HOST_ARGUMENTS = {
    torch.ops.aten.to: (0,),
    torch.ops.aten._to_copy: (0,),
    torch.ops.aten.type_as: (0,),
    torch.ops.aten.copy_: (1,),
    torch.ops.aten.index: (1,),
    torch.ops.aten.index_put: (1, 2),
    torch.ops.aten.index_put_: (1, 2),
    torch.ops.aten.where: (0, 1, 2),
}
"""By operator, the places of the arguments that it copies to the GPU if they are on the host."""


Replayed = TypeVar("Replayed", LiveCall, LiveChain)
"""What takes tensors and can be made again."""


@dataclass(frozen=True)
class CallTurns:
    """The calls that successive launches make in rotation.

    Attributes:
        calls: The calls to make in turn.
        outputs: The number of latest results that stay in memory, so that the next result is
            written elsewhere.
        gaps: The number of gaps after each call.
    """

    calls: Sequence[Callable[[], object]]
    outputs: int = 1
    gaps: int = 0

    def rotating(self) -> Callable[[], object]:
        """Return a function that makes the next call each time, on any thread."""
        following = cycle(self.calls)
        held: deque[object] = deque(maxlen=self.outputs - 1)

        def function() -> object:
            with torch.inference_mode():
                returned = next(following)()
                for _ in range(self.gaps):
                    gap()
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

    def differs(self, call: UniqueCall, turns: Sequence[int]) -> bool:
        """Return whether the model now makes another call in the place of this one."""
        key = _form_key(call)
        keys = [_form_key(self.forms[number]) for number in turns if number in self.kept]
        return keys != [key] * len(turns) or key not in self.reuse

    def median_reuse(self, call: UniqueCall) -> list[Reuse]:
        """Return the reuse of each tensor, with its median distance in all calls of this form."""
        return [
            Reuse(group[0].size_bytes, int(median(used.distance_bytes for used in group)))
            for group in zip(*self.reuse[_form_key(call)], strict=True)
        ]

    def ids(self, calls: Sequence[UniqueCall]) -> list[dict[int, str]]:
        """Return the ids of the unique calls that each call may be, by the step that makes it."""
        by_form: dict[bytes, dict[int, str]] = {}
        for call in sorted(calls, key=lambda one: one.total_us):
            of_form = by_form.setdefault(_form_key(call), {})
            of_form |= dict.fromkeys(call.in_graph.steps, call.id)
        return [by_form.get(_form_key(form), {}) for form in self.forms]


def _form_key(form: CallForm | UniqueCall) -> bytes:
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

            def leave(*_: Any, spans: list[tuple[int, int]] = spans) -> None:
                spans[-1] = (spans[-1][0], len(watched.forms))

            stack.callback(layer.register_forward_pre_hook(enter).remove)
            stack.callback(layer.register_forward_hook(leave).remove)
        program.run(inputs, steps)
    recorder = CallRecorder(program.modules, numbers)
    with recorder:
        program.run(inputs, steps)
    reuse: dict[bytes, list[tuple[Reuse, ...]]] = {}
    for form, used in zip(watched.forms, watched.reuse, strict=True):
        reuse.setdefault(_form_key(form), []).append(used)
    return Captured(recorder.kept, recorder.forms, reuse, watched.reuse, layers)


def call_turns(
    own: Sequence[Replayed], reuse: Sequence[Reuse], cache: Cache, limit_bytes: int
) -> CallTurns:
    """Return the turns that replay a call.

    ``own`` has a call or chain for each set of parameters, and ``reuse`` belongs to the tensors
    that the call takes, and then to those that it returns. With a ``model`` cache, the parameters
    of each layer take turns, and there are as many copies of each other tensor as it takes to have
    the reuse distance of the model; a ``hot`` one has one set of tensors; a ``cold`` one so many
    copies that none stays in the cache, which a tensor has left at a reuse distance of
    ``limit_bytes``.
    """
    first = own[0]
    if cache == "hot":
        return CallTurns([first])
    if cache == "cold":
        reuse = [Reuse(used.size_bytes, limit_bytes) for used in reuse]
    tensors = first.tensors
    numbers = copies(reuse, _MAX_COPIES)
    sets: list[list[Any]] = []
    for index, (tensor, number) in enumerate(zip(tensors, numbers, strict=False)):
        found = [tensor]
        if first.is_parameter(tensor):
            found = [call.tensors[index] for call in own]
        sets.append(found + [copied_tensor(tensor) for _ in range(number - len(found))])
    outputs = max(numbers[len(tensors) :], default=1)
    count = max([outputs, *map(len, sets)])
    calls = [
        first.with_tensors([group[turn % len(group)] for group in sets]) for turn in range(count)
    ]
    return CallTurns(calls, outputs)


class EmptyKernels(OperatorMode):
    """Launches an empty kernel after each operator that may launch something.

    Operators that only give a tensor another form, and what other operators call, get none.
    """

    def called(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        returned = func(*args, **keywords)
        if not func.is_view:
            torch.cuda._sleep(0)
        return returned


def with_empty_kernels(function: Callable[[], object]) -> Callable[[], object]:
    """Return a function that does what ``function`` does, with `EmptyKernels`."""
    return _within(EmptyKernels(), function)


class HostCopies(OperatorMode):
    """Replaces copies from the host by copies within the GPU, which a CUDA graph can have.

    While a graph is captured, PyTorch refuses to copy from memory of the host that is not pinned,
    as ``torch.tensor(0.0, device="cuda")`` does. In this context, a value is copied from the host
    only the first time that a program needs it, and kept on the GPU, where operators take it from.
    Their results are copies of it, so the program may change them. PyTorch still refuses a value
    that the program needs for the first time while a graph is captured.

    Attributes:
        kept: By GPU, type, shape, strides and digest of the elements, the copies on the GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[object, Any] = {}
        self._lifted: list[bool] = []

    def __enter__(self) -> HostCopies:
        # PyTorch's private switch for its own fake tensors: without it, no mode sees how a tensor
        # that is made from numbers or lists reaches the GPU.
        self._lifted.append(torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        torch._C._set_only_lift_cpu_tensors(self._lifted.pop())

    def called(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        places = _HOST_ARGUMENTS.get(getattr(func, "overloadpacket", None), ())
        leaves, _ = tree_flatten((args, keywords) if places else ())
        devices = [getattr(leaf, "device", leaf) for leaf in leaves]
        gpus = [one for one in devices if isinstance(one, torch.device) and one.type != "cpu"]
        if not gpus:
            return func(*args, **keywords)
        on_gpu = partial(self._on_gpu, gpu=gpus[0])
        own = tuple(
            tree_map_only(torch.Tensor, on_gpu, argument) if place in places else argument
            for place, argument in enumerate(args)
        )
        returned = func(*own, **keywords)
        # ``to`` returns the kept tensor itself if it has the right type already.
        is_kept = returned is own[0] and returned is not args[0]
        return returned.clone() if is_kept else returned

    def _on_gpu(self, tensor: Any, *, gpu: Any) -> Any:
        """Return the kept copy of a tensor on the host; copy the tensor if there is none yet."""
        is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensors_in(tensor)
        if not is_plain or tensor.device.type != "cpu" or tensor.is_pinned():
            return tensor
        elements = tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
        digest = blake2b(elements.numpy()).digest()
        key = gpu, tensor.dtype, tensor.shape, tensor.stride(), digest
        if key not in self.kept:
            self.kept[key] = tensor.to(gpu)  # which PyTorch refuses during a capture
        return self.kept[key]


def _within(mode: OperatorMode, function: Callable[[], object]) -> Callable[[], object]:
    """Return a function that does what ``function`` does, within ``mode``."""

    def inside() -> object:
        with mode:
            return function()

    return inside


def gap() -> None:
    """Keep a single thread of the GPU busy for about 20 µs."""
    torch.cuda._sleep(_GAP_CYCLES)


def live_planner(device: str, cache: Cache, source: str = "", ranks: Ranks = ALONE) -> Planner:
    """Return what plans the replay of a model on a GPU."""

    def plan(
        profile: ProfileRecord,
        calls: Sequence[UniqueCall],
        chosen: Sequence[UniqueCall],
        steps: Sequence[int],
    ) -> ReplayPlan:
        name = source or profile.model
        program = load_program(
            name,
            dtype=profile.dtype,
            attention=profile.attention,
            seed=profile.seed,
            device=device,
            ranks=ranks,
        )
        in_order = sorted(chosen, key=lambda call: (not call.is_exchange, call.replayed_turns))
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
        try:
            with torch.inference_mode():
                inputs = program.inputs(profile.prompt, device)
                turns, durations_us, missing, in_graph = _turns(
                    in_order, program, inputs, max(steps), device, cache, ranks
                )
                windows: list[tuple[CallWindow, CallTurns, float]] = []
                if ranks.count == 1 and in_graph.of_graph == profile.graph_differs:
                    replayed = {call.id: call for call in chosen if call.id in turns}
                    found = choose_windows(in_graph.ids(calls), in_graph.layers, replayed, steps)
                    try:
                        windows = _window_turns(
                            found, replayed, program, inputs, max(steps), device, cache, in_graph
                        )
                    except Exception as problem:  # whatever a program raises, calls come first
                        settle(device)
                        missing["windows"] = str(problem).strip().partition("\n")[0]
                captured = [(step, *capture_step(program, inputs, step)) for step in steps]
        except torch.OutOfMemoryError:
            raise DeviceError(
                f"{profile.model} does not fit into the memory of {device} together with the "
                "arguments of its calls: choose fewer with --kernels, or profile a smaller size."
            ) from None
        workloads = ReplayWorkloads(profile, cache)
        wholes, gapped = [], []
        for step, whole, inside in captured:
            if LAYERS not in inside:
                missing[step_key(step, LAYERS)] = "no layers of the model are known"
            for level, function in {**inside, EAGER: whole}.items():
                if not any(calls_at(call, step, level, profile.modules) for call in calls):
                    continue  # it launches nothing, as dropout does
                own = CallTurns([function])
                repeat = partial(_repeater, own, device, ranks, from_host=level == EAGER)
                wholes.append(workloads.step(step, level, repeat))
            own = CallTurns([with_empty_kernels(inside[GRAPH])])
            gapped.append(workloads.gapped_step(step, partial(_repeater, own, device, ranks)))

        def changes(measured: Mapping[str, Measurement]) -> Iterator[PlannedChange]:
            """Yield changes of the whole steps, of modules in layers, and of calls."""

            def item(key: str, label: str, functions: Sequence[Callable[[], object]]) -> Replayable:
                repeat = partial(_repeater, CallTurns(functions), device, ALONE)
                return workloads.changed(key, label, repeat, len(functions))

            with torch.inference_mode():
                reads = [ResultReads(program.modules), ResultReads(program.modules)]
                for in_graph, noting in enumerate(reads):
                    with told_of_capture(bool(in_graph)), noting:
                        program.run(inputs, max(steps) + 1)
                for step, _, inside in captured:
                    if profile.graph_differs:
                        key = f"{step_key(step, GRAPH)}-from-host"
                        change = CallChange(
                            "capture the calls that are made from the host",
                            *(step_key(step, GRAPH), key, {step: 1}),
                        )
                        from_host = with_calls_of_host(inside[GRAPH])
                        yield PlannedChange(change, [item(key, GRAPH, [from_host])])
                for call in most_energy(calls, measured, steps):
                    if call.id not in turns:
                        continue
                    own = [one for one in turns[call.id].calls if isinstance(one, LiveCall)]
                    for found in call_changes(call, own, reads[0 if call.turns else 1]):
                        change = CallChange(
                            f"{call.operator}: {found.words}",
                            *(call.id, f"{call.id}-{found.name}"),
                            {step: n for step, n in call.in_graph.steps.items() if step in steps},
                            found.error,
                        )
                        changed = item(change.after, call.operator, found.calls)
                        yield PlannedChange(change, [changed])
                for step, whole, _ in captured:
                    with told_of_capture(True):
                        fusible = fusible_modules(program.layers, whole, _FUSED)
                    for number, group in enumerate(fusible):
                        before = f"step{step}-fusible{number}-{group.name}"
                        try:
                            functions, error = group.compiled()
                        except Exception as problem:  # the compiler may raise anything
                            missing[before] = str(problem).strip().partition("\n")[0]
                            continue
                        change = CallChange(
                            f"fuse the {group.operators} calls of {group.name} by torch.compile",
                            *(before, f"{before}-fused", {step: group.count}, error),
                        )
                        now = item(before, group.name, group.plain())
                        fused = item(change.after, group.name, functions)
                        yield PlannedChange(change, [now, fused])

        def repeat_call(call: UniqueCall, gaps: int = 0) -> tuple[Repeat, int]:
            """Return what launches a call, and the number of its turns."""
            own = replace(turns[call.id], gaps=gaps)
            shared_by = ranks if call.is_exchange else ALONE
            return partial(_repeater, own, device, shared_by), len(own.calls)

        return ReplayPlan(
            wholes,
            [
                workloads.call(call, *repeat_call(call), durations_us[call.id])
                for call in in_order
                if call.id in turns
            ],
            missing,
            lambda call, gaps, key: workloads.spaced(call, *repeat_call(call, gaps), gaps, key),
            workloads.gap(partial(_repeater, CallTurns([gap]), device, ALONE)),
            name,
            gapped,
            changes if ranks.count == 1 else None,
            [
                workloads.window(
                    *(window.step, window.number, window.calls, len(window.numbers)),
                    *(partial(_repeater, own, device, ALONE), len(own.calls), gpu_us),
                )
                for window, own, gpu_us in windows
            ],
        )

    return plan


def with_calls_of_host(function: Callable[[], object]) -> Callable[[], object]:
    """Return a function whose graph has the calls that ``function`` makes without a graph."""

    def as_from_host() -> object:
        with told_of_capture(False):
            return function()

    return as_from_host


def most_energy(
    calls: Sequence[UniqueCall], measured: Mapping[str, Measurement], steps: Sequence[int]
) -> list[UniqueCall]:
    """Return the calls that take most energy of a step, as graphs, each once."""

    def energy_mj(call: UniqueCall, step: int) -> float:
        found = measured.get(call.id)
        alone_mj = 0.0 if found is None else found.raw_energy_mj or 0.0
        return call.in_graph.steps.get(step, 0) * alone_mj

    found = {
        call.id: call
        for step in steps
        for call in sorted(calls, key=lambda one: -energy_mj(one, step))[:_CHANGED]
        if energy_mj(call, step) > 0
    }
    return list(found.values())


@contextmanager
def _repeater(
    turns: CallTurns, device: str, ranks: Ranks, *, from_host: bool = False
) -> Iterator[Repeater]:

    try:
        with torch.inference_mode():
            yield devices.GraphRepeater(
                [turns.rotating()],
                multiple=len(turns.calls),
                from_host=from_host,
                most=ranks.most,
            )
    except RuntimeError:
        settle(device)
        raise


def _turns(
    calls: Sequence[UniqueCall],
    program: TorchProgram,
    inputs: Any,
    last_step: int,
    device: str,
    cache: Cache,
    ranks: Ranks,
) -> tuple[dict[str, CallTurns], dict[str, float], dict[str, str], Captured]:
    """Return the turns of each call that launches the same kernels as in the profile.

    Returns:
        By the ids of these calls, their turns and their GPU time by the profiler; by the ids of all
        other calls, why they cannot be replayed; and the calls of a run as it is for a graph, if
        there was one, otherwise of another.
    """
    limit_bytes = _COLD_FACTOR * torch.cuda.get_device_properties(device).L2_cache_size
    numbers = [number for call in calls for number in call.turns]
    only_in_graph = [number for call in calls if not call.turns for number in call.replayed_turns]
    plain = capture_calls(program, inputs, numbers, last_step + 1, limit_bytes)
    of_graph = plain
    if only_in_graph:
        with told_of_capture(True):
            of_graph = capture_calls(program, inputs, only_in_graph, last_step + 1, limit_bytes)
        of_graph = replace(of_graph, of_graph=True)
    turns: dict[str, CallTurns] = {}
    missing = {}
    for call in calls:
        own_turns = call.replayed_turns
        captured = plain if call.turns else of_graph
        if not own_turns:
            missing[call.id] = "it was launched outside of PyTorch's operators"
        elif captured.differs(call, own_turns):
            missing[call.id] = "the model makes another call in its place now"
        elif not all(captured.kept[number].is_plain for number in own_turns):
            missing[call.id] = "tensors that are sparse, nested or quantized cannot be copied"
        else:
            own = [captured.kept[number] for number in own_turns]
            turns[call.id] = call_turns(own, captured.median_reuse(call), cache, limit_bytes)
    _leave_out(calls, turns, missing, ranks)
    chosen = [call for call in calls if call.id in turns]
    found = launched_by([turns[call.id].rotating() for call in chosen], device)
    durations_us = {}
    for call, (launched, duration_us) in zip(chosen, found, strict=True):
        durations_us[call.id] = duration_us
        if [launch.plan for launch in launched] != [form.plan for form in call.launches]:
            names = ", ".join(launch.name for launch in launched) or "nothing"
            missing[call.id] = f"alone it launches {names}"
            del turns[call.id]
    _leave_out(calls, turns, missing, ranks)
    return turns, durations_us, missing, of_graph


def _window_turns(
    windows: Sequence[CallWindow],
    calls: Mapping[str, UniqueCall],
    program: TorchProgram,
    inputs: Any,
    last_step: int,
    device: str,
    cache: Cache,
    captured: Captured,
) -> list[tuple[CallWindow, CallTurns, float]]:
    """Return the windows that launch the same kernels as their calls, with turns and GPU time.

    The turns have the parameters of each layer; other tensors are copies of those of one layer.
    """
    limit_bytes = _COLD_FACTOR * torch.cuda.get_device_properties(device).L2_cache_size
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
    for window, first, middle in zip(windows, firsts, middles, strict=True):
        model = recorder.chains.get(middle)
        if model is None or not model.is_plain:
            continue
        alike = [middle] + [
            other
            for other in range(first, first + len(window.numbers))
            if other != middle and other in recorder.chains
            if recorder.chains[other].form == model.form
        ]
        places = zip(*(recorder.reuse_of[other] for other in alike), strict=True)
        reuse = [
            Reuse(
                captured.reuse_of_each[group[0][0]][group[0][1]].size_bytes,
                int(median(captured.reuse_of_each[n][at].distance_bytes for n, at in group)),
            )
            for group in places
        ]
        chains = [recorder.chains[other] for other in alike]
        found.append((window, call_turns(chains, reuse, cache, limit_bytes)))
    if not found:
        return []
    launched = launched_by([turns.rotating() for _, turns in found], device)
    return [
        (window, turns, gpu_us)
        for (window, turns), (forms, gpu_us) in zip(found, launched, strict=True)
        if [launch.plan for launch in forms]
        == [form.plan for call in window.calls for form in calls[call].launches]
    ]


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


def capture_step(
    program: TorchProgram, inputs: Any, number: int
) -> tuple[Callable[[], object], dict[str, Callable[[], object]]]:
    """Run a program up to a step, and keep what is needed to repeat the step.

    Modules keep the arguments that they have in a graph of the step.

    Args:
        program: The program.
        inputs: The input of its first step.
        number: The number of the step; 0 for the prefill.

    Returns:
        A function that runs the whole step; and by level, see `Account`, functions to capture in a
        CUDA graph: of all its layers, or one of the other modules, each with the arguments that it
        had, and of the whole step. If the step copies from the host, these have `HostCopies`.
    """
    whole = program.step(inputs, number)
    kept: dict[str, list[tuple[Any, Any]]] = {}
    open_layers: list[Any] = []
    levels = [(LAYERS, layer) for layer in program.layers]
    levels += [(module_level(name), module) for name, module in program.outer_modules.items()]
    copies = HostCopies()
    with ExitStack() as stack:
        for level, module in levels:

            def keep(module: Any, args: Any, kwargs: Any, *, level: str = level) -> None:
                if not open_layers:  # layers contain what they call
                    arguments = tree_map(appendable, (args, kwargs))
                    kept.setdefault(level, []).append((module, arguments))
                if level == LAYERS:
                    open_layers.append(module)

            stack.callback(module.register_forward_pre_hook(keep, with_kwargs=True).remove)
            if level == LAYERS:
                hook = module.register_forward_hook(lambda *_: open_layers.pop() and None)
                stack.callback(hook.remove)
        with told_of_capture(True), copies:
            whole()

    def again(calls: Sequence[tuple[Any, Any]]) -> None:
        for module, arguments in calls:
            args, kwargs = tree_map(appendable, arguments)
            module(*args, **kwargs)

    functions: dict[str, Callable[[], object]] = {
        **{level: partial(again, calls) for level, calls in kept.items()},
        GRAPH: whole,
    }
    if copies.kept:
        functions = {level: _within(copies, function) for level, function in functions.items()}
    return whole, functions


def launched_by(
    functions: Sequence[Callable[[], object]], device: str
) -> list[tuple[list[TraceLaunch], float]]:
    """Call each function some times under the profiler, as the model was profiled.

    For each, this returns what a call launches, and the mean GPU time of its calls, as the trace of
    the model has it: a mean of 24 layers was 0.3 and 0.6 % above their median.
    """
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
        (group[0], fmean(sum(launch.duration_us for launch in call) for call in group))
        for group in groups
    ]
