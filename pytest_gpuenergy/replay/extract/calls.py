"""The calls of operators that a model made, and what each launched: the units of a replay."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from pytest_gpuenergy.replay.extract.trace import Launch, Sizes
from pytest_gpuenergy.replay.extract.unique_kernels import identity
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
"""The operator of what was launched outside of any."""

_LARGEST_BYTES = 1 << 30
_MOST_NUMBERS = 1 << 50
"""In a tensor; no device has room for them."""


class CallForm(Struct, frozen=True):
    """What a call of an operator was made with; tensors by their form, not by their values.

    Attributes:
        operator: with its overload, such as ``aten.addmm.default``.
        arguments: a tensor is an object with ``shape``, ``dtype``, ``strides`` in elements,
            ``alignment`` in bytes and ``device``.
        parameters: names of those of the model that are among the arguments, in their order.
    """

    operator: str
    arguments: Any
    parameters: tuple[str, ...] = ()


_OUTSIDE = CallForm(OUTSIDE, None)


class LaunchForm(Struct, frozen=True):
    """What a call launched: a kernel, copy or set, and its launch plan.

    Attributes:
        kernel: id of the unique kernel in the other files.
    """

    kernel: str
    name: str
    grid: Sizes | None = None
    block: Sizes | None = None
    shared_memory_bytes: int | None = None

    @property
    def plan(self) -> tuple[object, ...]:
        """What a replay has to launch again."""
        return self.name, self.grid, self.block, self.shared_memory_bytes


class UniqueCall(Struct, frozen=True):
    """What calls with the same form, phase and launches share.

    Attributes:
        id: ``c`` and the first hexadecimal digits of a hash of all that they share.
        phase: ``prefill`` or ``decode``; None where the trace does not tell.
        launches: of each call, in their order.
        calls: how many there are, in all runs.
        total_us: the sum of the durations of their launches, in all runs.
        steps: the number of calls in each step of the first run; 0 is the prefill.
        steps_in_layers: those of them in a layer of the model.
        turns: the number of the first call for each set of parameters, so that replaying these in
            turn reads the weights of each layer, as the model does; empty for `OUTSIDE`.
        layers: of the model in which they occur.
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

    @property
    def is_exchange(self) -> bool:
        """Whether all ranks take part in it, where several share the model."""
        return self.operator.startswith(f"{EXCHANGES}.")

    @property
    def call_us(self) -> float:
        """The mean GPU time of a call."""
        return self.total_us / self.calls


def unique_calls(
    launches: Iterable[Launch], forms: Mapping[int, CallForm] | Sequence[CallForm]
) -> list[UniqueCall]:
    """Those that launched something, the most GPU time first.

    Args:
        launches: of a trace; each of those outside any call is one by itself, with the operator
            `OUTSIDE`.
        forms: of the calls, by their numbers.
    """
    by_call: dict[int, list[Launch]] = {}
    forms = dict(enumerate(forms)) if isinstance(forms, Sequence) else dict(forms)
    for one in launches:
        number = one.call
        if number is None and one.work == "operator":  # which others call
            continue
        if number is None:
            number = -len(by_call) - 1
            forms[number] = _OUTSIDE
        by_call.setdefault(number, []).append(one)
    groups: dict[str, list[int]] = {}
    for number, group in by_call.items():
        groups.setdefault(_identity(forms[number], group), []).append(number)
    found = [_unique(key, sorted(numbers), by_call, forms) for key, numbers in groups.items()]
    return sorted(found, key=lambda one: (-one.total_us, one.id))


def unevenly_called(calls: Iterable[UniqueCall], runs: int) -> int:
    """How many of the calls were not made equally often in each of the runs."""
    return sum(one.calls != runs * sum(one.steps.values()) for one in calls if runs > 1)


def write_calls(calls: Iterable[UniqueCall], folder: Path) -> None:
    """Write ``operator_calls.jsonl``.

    Raises:
        OSError: it cannot be written.
    """
    write_atomically(folder / CALLS_JSONL, "".join(encode(one).decode() + "\n" for one in calls))


def read_calls(folder: Path) -> list[UniqueCall]:
    """Those of a run's folder.

    Raises:
        InputError: the file is missing or damaged.
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
            _check(call)
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


def _check(call: UniqueCall) -> None:
    if call.calls < 1 or call.total_us < 0:
        raise FormError(f"{call.calls} calls took {call.total_us:g} µs")
    for steps in (call.steps, call.steps_in_layers):
        if any(step < 0 or not 0 < count <= call.calls for step, count in steps.items()):
            raise FormError(f"its steps have {shown(steps)} of {call.calls} calls")
    _check_arguments(call.arguments)


def _check_arguments(value: Any) -> None:
    if isinstance(value, list):
        for one in value:
            _check_arguments(one)
    elif isinstance(value, dict) and {"shape", "dtype"} <= value.keys():
        shape = convert(value["shape"], list[int], "a shape")
        typed(value["dtype"], str, "a type")
        if any(extent < 0 for extent in shape) or math.prod(shape) >= _MOST_NUMBERS:
            raise FormError(f"a tensor has the shape {shown(shape)}")
    elif isinstance(value, dict):
        _check_arguments(list(value.values()))


def _launch_form(one: Launch) -> LaunchForm:
    return LaunchForm(identity(one), one.name, one.grid, one.block, one.shared_memory_bytes)


def _identity(form: CallForm, group: Sequence[Launch]) -> str:
    shared = [form.operator, form.arguments, group[0].phase, *map(_launch_form, group)]
    text = msgspec.json.encode(shared, order="deterministic")
    return f"c{hashlib.sha256(text).hexdigest()[:12]}"


def _unique(
    key: str,
    numbers: Sequence[int],
    by_call: Mapping[int, Sequence[Launch]],
    forms: Mapping[int, CallForm],
) -> UniqueCall:
    first = by_call[numbers[0]]
    turns: dict[tuple[str, ...], int] = {}
    for number in numbers:
        turns.setdefault(forms[number].parameters, number)
    places = [one for one in (by_call[number][0] for number in numbers) if not one.run]
    launched = [one for number in numbers for one in by_call[number]]
    return UniqueCall(
        id=key,
        operator=forms[numbers[0]].operator,
        arguments=forms[numbers[0]].arguments,
        phase=first[0].phase,
        launches=tuple(map(_launch_form, first)),
        calls=len(numbers),
        total_us=sum(one.duration_us for one in launched),
        steps=_count(one.step for one in places),
        steps_in_layers=_count(one.step for one in places if one.layer is not None),
        turns=tuple(number for number in turns.values() if number >= 0),
        layers=tuple(sorted({one.layer for one in launched if one.layer is not None})),
    )


def _count(steps: Iterable[int | None]) -> dict[int, int]:
    return dict(Counter(one for one in steps if one is not None))
