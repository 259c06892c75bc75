"""Groups the calls of operators that a model makes into unique calls, the units of a replay."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from pytest_gpuenergy.replay.extract.trace import Sizes, TraceLaunch
from pytest_gpuenergy.replay.extract.unique_kernels import digest, identity
from pytest_gpuenergy.replay.ranks import EXCHANGES
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    convert,
    decode,
    encode,
    is_file,
    read_bytes,
    shown,
    typed,
    write_atomically,
)

CALLS_JSONL = "operator_calls.jsonl"
OUTSIDE = "none"
"""The operator of a launch that was made outside of any operator."""

_LARGEST_BYTES = 1 << 30
_MAX_NUMBERS = 1 << 50
"""The largest number of elements of a tensor in a file; no device has room for more."""


class CallForm(Struct, frozen=True):
    """The operator and arguments of a call; tensors by their form, not by their values.

    Attributes:
        operator: The operator with its overload, such as ``aten.addmm.default``.
        arguments: The arguments. A tensor is an object with ``shape``, ``dtype``, ``strides`` in
            elements, ``alignment`` in bytes and ``device``.
        parameters: The names of the model's parameters among the arguments, in their order.
    """

    operator: str
    arguments: Any
    parameters: tuple[str, ...] = ()


_OUTSIDE = CallForm(OUTSIDE, None)


class LaunchForm(Struct, frozen=True):
    """A kernel, copy or set that a call launches, with its launch plan.

    Attributes:
        kernel: The id of the unique kernel in the other files.
        name: The name of the kernel.
        grid: The number of blocks in each dimension.
        block: The number of threads in each dimension of a block.
        shared_memory_bytes: The static and dynamic shared memory of a block.
    """

    kernel: str
    name: str
    grid: Sizes | None = None
    block: Sizes | None = None
    shared_memory_bytes: int | None = None

    @classmethod
    def of(cls, launch: TraceLaunch) -> LaunchForm:
        """Return the form of a launch in a trace."""
        return cls(
            identity(launch), launch.name, launch.grid, launch.block, launch.shared_memory_bytes
        )

    @property
    def plan(self) -> tuple[object, ...]:
        """The name and launch plan, see `TraceLaunch.plan`."""
        return self.name, self.grid, self.block, self.shared_memory_bytes


class GraphCalls(Struct, frozen=True):
    """How often steps make a call when they are captured as a CUDA graph, see `UniqueCall`."""

    steps: dict[int, int] = {}
    steps_in_layers: dict[int, int] = {}
    turns: tuple[int, ...] = ()
    steps_in_modules: dict[int, dict[int, int]] = {}


class UniqueCall(Struct, frozen=True):
    """All calls with the same operator, phase and launches, and arguments that are `alike`.

    Attributes:
        id: ``c`` and the first hexadecimal digits of a hash of what the first call is.
        operator: The operator that is called, see `CallForm`.
        arguments: The arguments of the first call, see `CallForm`.
        phase: ``prefill`` or ``decode``; None where it is unknown.
        launches: What each call launches, in order.
        calls: The number of calls in all runs.
        total_us: The sum of the durations of their launches in all runs, in microseconds.
        steps: The number of calls in each step of the first run; 0 is the prefill.
        steps_in_layers: The number of those calls that are made in a layer of the model.
        turns: The number of the first call with each set of parameters. Making these calls in turn
            reads the weights of each layer, as the model does. Empty for `OUTSIDE`.
        layers: The layers of the model in which the calls are made.
        steps_in_modules: For each module outside of the layers, by its number among
            `ProfileRecord.modules`, the number of the calls of ``steps`` that are made in it.
        graph: The same for the calls that the program makes while a CUDA graph is captured; None
            if these are the calls that it makes otherwise. ``turns`` are numbers of a run of these.
    """

    id: str
    operator: str
    arguments: Any
    phase: str | None
    launches: tuple[LaunchForm, ...]
    calls: int
    total_us: float
    steps: dict[int, int]
    steps_in_layers: dict[int, int]
    turns: tuple[int, ...]
    layers: tuple[int, ...] = ()
    steps_in_modules: dict[int, dict[int, int]] = {}
    graph: GraphCalls | None = None

    @property
    def in_graph(self) -> UniqueCall | GraphCalls:
        """What the attributes with these names are when steps are captured as a CUDA graph."""
        return self if self.graph is None else self.graph

    @property
    def replayed_turns(self) -> tuple[int, ...]:
        """The numbers of the calls to replay: those in a graph if there are no others."""
        return self.turns or self.in_graph.turns

    def is_in(self, steps: Iterable[int]) -> bool:
        """Return whether any of the steps makes the call, launched by the host or as a graph."""
        return any(self.steps.get(step) or self.in_graph.steps.get(step) for step in steps)

    @property
    def is_exchange(self) -> bool:
        """Whether the call exchanges data between the ranks that share the model."""
        return self.operator.startswith(f"{EXCHANGES}.")

    @property
    def call_us(self) -> float:
        """The mean GPU time of a call."""
        return self.total_us / self.calls


def unique_calls(
    launches: Iterable[TraceLaunch], forms: Mapping[int, CallForm] | Sequence[CallForm]
) -> list[UniqueCall]:
    """Return the unique calls that launched something, the most GPU time first.

    Args:
        launches: The launches of a trace. Each launch outside of any call counts as a call of its
            own, with the operator `OUTSIDE`.
        forms: The form of each call, by its number.
    """
    by_call: dict[int, list[TraceLaunch]] = {}
    forms = dict(enumerate(forms)) if isinstance(forms, Sequence) else dict(forms)
    for launch in launches:
        number = launch.call
        if number is None and launch.work == "operator":  # another operator calls it
            continue
        if number is None:
            number = -len(by_call) - 1
            forms[number] = _OUTSIDE
        by_call.setdefault(number, []).append(launch)
    groups: dict[str, list[int]] = {}
    for number, group in sorted(by_call.items()):
        form = forms[number]
        shared = [form.operator, alike(form.arguments), group[0].phase, *map(LaunchForm.of, group)]
        groups.setdefault(digest(shared), []).append(number)
    found = [_unique_call(numbers, by_call, forms) for numbers in groups.values()]
    return sorted(found, key=lambda call: (-call.total_us, call.id))


def alike(arguments: Any) -> Any:
    """Return arguments, see `CallForm`, without the values of real numbers.

    A model may give each layer another number, as DiffLlama does. The kernels take the same time.
    """
    if isinstance(arguments, float):
        return 0.0
    if isinstance(arguments, list):
        return [alike(item) for item in arguments]
    if isinstance(arguments, dict):
        return {name: alike(item) for name, item in arguments.items()}
    return arguments


def _unique_call(
    numbers: Sequence[int],
    by_call: Mapping[int, Sequence[TraceLaunch]],
    forms: Mapping[int, CallForm],
) -> UniqueCall:
    first, form = by_call[numbers[0]], forms[numbers[0]]
    own = [form.operator, form.arguments, first[0].phase, *map(LaunchForm.of, first)]
    turns: dict[tuple[str, ...], int] = {}
    for number in numbers:
        turns.setdefault(forms[number].parameters, number)
    launched = [launch for number in numbers for launch in by_call[number]]
    in_first_run = [call for call in (by_call[number][0] for number in numbers) if not call.run]
    in_steps = [call for call in in_first_run if call.step is not None]
    steps, steps_in_layers = Counter[int](), Counter[int]()
    steps_in_modules: dict[int, Counter[int]] = {}
    for call in in_steps:
        assert call.step is not None
        steps[call.step] += 1
        if call.layer is not None:
            steps_in_layers[call.step] += 1
        elif call.module is not None:
            steps_in_modules.setdefault(call.module, Counter())[call.step] += 1
    return UniqueCall(
        id=f"c{digest(own)}",
        operator=form.operator,
        arguments=form.arguments,
        phase=first[0].phase,
        launches=tuple(map(LaunchForm.of, first)),
        calls=len(numbers),
        total_us=sum(launch.duration_us for launch in launched),
        steps=dict(steps),
        steps_in_layers=dict(steps_in_layers),
        turns=tuple(number for number in turns.values() if number >= 0),
        layers=tuple(sorted({launch.layer for launch in launched if launch.layer is not None})),
        steps_in_modules={module: dict(found) for module, found in steps_in_modules.items()},
    )


def with_calls_of_graph(
    calls: Sequence[UniqueCall], of_graph: Sequence[UniqueCall]
) -> list[UniqueCall]:
    """Return all unique calls of a program that makes others while a CUDA graph is captured.

    Args:
        calls: The unique calls that it makes otherwise.
        of_graph: The unique calls of a run in which it makes those of a graph.
    """
    found = {call.id: structs.replace(call, graph=GraphCalls()) for call in calls}
    for call in of_graph:
        counts = GraphCalls(call.steps, call.steps_in_layers, call.turns, call.steps_in_modules)
        plain = found.get(call.id)
        if plain is None:
            nowhere: dict[int, int] = {}
            plain = structs.replace(
                call, steps=nowhere, steps_in_layers=nowhere, turns=(), steps_in_modules={}
            )
        found[call.id] = structs.replace(plain, graph=counts)
    return sorted(found.values(), key=lambda call: (-call.total_us, call.id))


def unevenly_called(calls: Iterable[UniqueCall], runs: int) -> int:
    """Return how many unique calls were not made equally often in each of the runs."""
    return sum(
        call.calls != runs * sum(call.steps.values()) for call in calls if runs > 1 and call.turns
    )


def write_calls(calls: Iterable[UniqueCall], folder: Path) -> None:
    """Write ``operator_calls.jsonl``.

    Raises:
        OSError: It cannot be written.
    """
    write_atomically(folder / CALLS_JSONL, b"".join(encode(call) + b"\n" for call in calls))


def read_calls(folder: Path) -> list[UniqueCall]:
    """Read the unique calls in the folder of a profile.

    Raises:
        InputError: The file is missing or damaged.
    """
    path = folder / CALLS_JSONL
    if not is_file(path):
        raise InputError(
            f"The folder {folder} has no {CALLS_JSONL}: write it with gpuenergy profile MODEL "
            f"--out {folder}."
        )
    found: dict[str, UniqueCall] = {}
    lines = read_bytes(path, "list of calls", _LARGEST_BYTES).splitlines()
    for number, line in enumerate(lines, 1):
        try:
            call = decode(line, UniqueCall, "the call")
            if call.calls < 1 or call.total_us < 0:
                raise FormError(f"{call.calls} calls took {call.total_us:g} µs")
            runs: list[tuple[UniqueCall | GraphCalls, float]] = [(call, call.calls)]
            if call.graph is not None:
                runs.append((call.graph, math.inf))  # another run has these calls
            for run, most in runs:
                for steps in (run.steps, run.steps_in_layers, *run.steps_in_modules.values()):
                    if any(step < 0 or not 0 < count <= most for step, count in steps.items()):
                        raise FormError(f"its steps have {shown(steps)} of {call.calls} calls")
            _check_arguments(call.arguments)
            if call.id in found:
                raise FormError("another line has the same id")
        except FormError as error:
            raise InputError(
                f"Line {number} of {path} is not a call ({error}): profile again."
            ) from None
        found[call.id] = call
    if not found:
        raise InputError(f"{path} has no calls: profile again.")
    return list(found.values())


def _check_arguments(value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _check_arguments(item)
    elif isinstance(value, dict) and {"shape", "dtype"} <= value.keys():
        shape = convert(value["shape"], list[int], "a shape")
        typed(value["dtype"], str, "a type")
        if any(extent < 0 for extent in shape) or math.prod(shape) >= _MAX_NUMBERS:
            raise FormError(f"a tensor has the shape {shown(shape)}")
    elif isinstance(value, dict):
        _check_arguments(list(value.values()))
