"""What the replay of a call does in turn, so that it finds in the L2 cache what the model found.

Imports PyTorch: import this module only where it is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from statistics import median
from typing import Any

import msgspec
import torch

from pytest_gpuenergy.replay.calls import CallForm, UniqueCall
from pytest_gpuenergy.replay.capture import CallRecorder, LiveCall, copy_of
from pytest_gpuenergy.replay.plan import Cache
from pytest_gpuenergy.replay.programs import Program
from pytest_gpuenergy.replay.reuse import Reuse, ReuseStack, copies

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
