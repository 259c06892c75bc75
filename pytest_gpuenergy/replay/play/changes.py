"""Changes of a model's calls that may save energy, to be measured as replays of the changed calls.

Imports PyTorch: import this module only where it is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch

from pytest_gpuenergy.replay.extract.calls import UniqueCall
from pytest_gpuenergy.replay.profile.capture import (
    CallRecorder,
    LiveCall,
    calls_watched,
    describe,
    span_of,
    tensors_in,
)

_LEAST_BYTES = 1 << 20
"""The size of a result below which it does not matter that only a part of it is read."""
_LARGEST_SHARE = 0.5
"""The largest share of a result's rows that may be read if only these are to be computed."""
_FLOAT8_MULTIPLE = 16
"""cuBLAS multiplies float8 matrices only if their sizes are multiples of this."""
_FLOAT8_MOST = 448.0
"""The largest number of the type ``float8_e4m3fn``."""

LiveFunction = Callable[[], object]


@dataclass(frozen=True)
class ChangedCall:
    """A call that is changed.

    Attributes:
        name: The change in a word, for the key of its measurement.
        words: The change in words.
        calls: The changed calls, in turn.
        error: The norm of what changes in the result, relative to the norm of the result; None if
            what is read of the result stays the same.
    """

    name: str
    words: str
    calls: Sequence[LiveFunction]
    error: float | None


class _LargeResult(NamedTuple):
    """A large result: the addresses of its first byte and of its end, and its number of rows."""

    begin: int
    end: int
    rows: int

    def rows_in(self, tensor: Any) -> Iterable[int]:
        """Return the numbers of the rows that overlap with ``tensor``."""
        row_bytes = (self.end - self.begin) // self.rows
        size_bytes, within = tensor.element_size(), tensor.data_ptr() - self.begin
        starts, length = torch.tensor([within]), size_bytes
        if tensor.is_contiguous():
            length = tensor.numel() * size_bytes
        else:
            for extent, stride in zip(tensor.shape, tensor.stride(), strict=True):
                if stride * size_bytes < row_bytes:
                    length += (extent - 1) * stride * size_bytes
                else:
                    steps = stride * size_bytes * torch.arange(extent)
                    starts = (starts[:, None] + steps).view(-1)
        ranges = (
            range(max(0, start // row_bytes), min(self.rows, -(-(start + length) // row_bytes)))
            for start in starts.tolist()
        )
        return chain.from_iterable(ranges)


class ResultReads(CallRecorder):
    """Notes which rows of each large result the later calls of a run read.

    Attributes:
        read: By the number of a call with a large contiguous result, the rows that are read of it.
    """

    def __init__(self, modules: Mapping[str, Any]) -> None:
        super().__init__(modules)
        self.read: dict[int, set[int]] = {}
        self._results: dict[int, _LargeResult] = {}

    def see(self, name: str, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """See `CallRecorder`; views read nothing."""
        number, is_counted = len(self.forms), not self.is_inside
        if is_counted and not getattr(func, "is_view", False):
            for tensor in tensors_in((args, keywords)):
                self._note_read(tensor)
        returned = super().see(name, func, args, keywords)
        if is_counted and not getattr(func, "is_view", False):
            for tensor in tensors_in(returned)[:1]:
                self._note_result(number, tensor)
        return returned

    def _note_read(self, tensor: Any) -> None:
        begin = tensor.data_ptr()
        end = begin + span_of(tensor) * tensor.element_size()
        for number, result in self._results.items():
            if max(begin, result.begin) < min(end, result.end):
                self.read.setdefault(number, set()).update(result.rows_in(tensor))

    def _note_result(self, number: int, tensor: Any) -> None:
        begin, size_bytes = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        for other, (first, last, _) in list(self._results.items()):
            if max(begin, first) < min(begin + size_bytes, last):  # its memory is used again
                del self._results[other]
        if size_bytes >= _LEAST_BYTES and tensor.is_contiguous():
            rows = tensor.numel() // tensor.shape[-1]
            self._results[number] = _LargeResult(begin, begin + size_bytes, rows)


def rows_read(reads: ResultReads, number: int, call: LiveCall) -> list[int] | None:
    """Return the rows that are read of a call's result; None if it has none, or most are read."""
    if number not in reads.read or not _is_linear(call):
        return None
    given = call.arguments[0]
    found = sorted(reads.read[number])
    return found if 0 < len(found) <= _LARGEST_SHARE * given.numel() // given.shape[-1] else None


def call_changes(
    call: UniqueCall, calls: Sequence[LiveCall], reads: ResultReads
) -> Iterator[ChangedCall]:
    """Yield the changes of a call.

    Args:
        call: The call.
        calls: The calls that stand for it, in turn.
        reads: What was read of results in a run that numbers calls as `UniqueCall.replayed_turns`.
    """
    first = calls[0]
    if not _is_linear(first):
        return
    rows = rows_read(reads, call.replayed_turns[0], first)
    if rows is not None:
        which = _selection(rows, first.arguments[0].device)
        yield ChangedCall(
            "rows",
            f"compute only the rows that are read, {len(rows)} of "
            f"{first.arguments[0].numel() // first.arguments[0].shape[-1]}",
            [partial(_linear_of_rows, own, which) for own in calls],
            None,
        )
    given, weight = first.arguments[:2]
    if given.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest":
        changed = [partial(_linear_in_tf32, own) for own in calls]
        try:
            error = relative_change([first()], [changed[0]()])
        except RuntimeError:  # results that cannot be compared
            return
        yield ChangedCall("tf32", "multiply in tf32", changed, error)
    sizes = (*weight.shape, given.shape[-1])
    if given.dtype in (torch.float16, torch.bfloat16) and not any(
        size % _FLOAT8_MULTIPLE for size in sizes
    ):
        try:
            eight = [_linear_in_float8(own) for own in calls]
            error = relative_change([first()], [eight[0]()])
        except RuntimeError:  # this PyTorch or this GPU has no such product, or it overflows
            return
        yield ChangedCall("float8", "multiply in float8 with weights of float8", eight, error)


def _is_linear(call: LiveCall) -> bool:
    given = call.arguments[:2]
    return (
        str(call.operator) == "aten.linear.default"
        and all(isinstance(tensor, torch.Tensor) and tensor.is_floating_point() for tensor in given)
        and given[1].dim() == 2
    )


def _linear_of_rows(call: LiveCall, which: slice | Any) -> Any:
    given, *others = call.arguments
    return call.operator(given.reshape(-1, given.shape[-1])[which], *others, **call.keywords)


def _selection(rows: Sequence[int], device: Any) -> slice | Any:
    """Return what selects rows: a slice if they are evenly apart, otherwise their numbers."""
    step = rows[1] - rows[0] if len(rows) > 1 else 1
    evenly = range(rows[0], rows[-1] + 1, step)
    if list(evenly) == list(rows):
        return slice(evenly.start, evenly.stop, step)
    return torch.tensor(rows, device=device)


def _linear_in_tf32(call: LiveCall) -> Any:
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return call()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def _linear_in_float8(call: LiveCall) -> LiveFunction:
    """Return a function that multiplies in float8; of the operands, only the weights are ready."""
    given, weight, *others = call.arguments
    bias = others[0] if others else None

    def scale_of(tensor: Any) -> Any:
        return (tensor.abs().amax().float() / _FLOAT8_MOST).clamp(min=1e-12)

    weight_scale, given_scale = scale_of(weight), scale_of(given)
    eight = (weight / weight_scale).to(torch.float8_e4m3fn).t()

    def function() -> Any:
        rows = given.reshape(-1, given.shape[-1])
        return torch._scaled_mm(
            (rows / given_scale).to(torch.float8_e4m3fn),
            eight,
            scale_a=given_scale,
            scale_b=weight_scale,
            bias=bias,
            out_dtype=given.dtype,
        )

    return function


def relative_change(expected: Sequence[Any], found: Sequence[Any]) -> float:
    """Return the norm of the change of results, relative to the norm of the results.

    Elements that are not finite, and stay what they are, change nothing, as those of masks.

    Raises:
        RuntimeError: The change is infinite.
    """
    changed = norm = 0.0
    for old, new in zip(expected, found, strict=True):
        before, now = old.float(), new.float().reshape(old.shape)
        is_same = (before == now) | (before.isnan() & now.isnan())
        changed += float(torch.where(is_same, 0.0, now - before).norm()) ** 2
        norm += float(torch.where(before.isfinite(), before, 0.0).norm()) ** 2
    if changed == 0.0:
        return 0.0
    if not (norm and math.isfinite(norm) and math.isfinite(changed)):
        raise RuntimeError("its results change from zeros, or are no longer finite numbers")
    return math.sqrt(changed / norm)


@dataclass(frozen=True)
class ModuleCalls:
    """The calls of one kind of module inside the layers, with arguments of the same form.

    Attributes:
        name: The class of the modules.
        count: The number of calls in the step.
        operators: The number of operators that one call makes.
        calls: The module and the arguments of the first call of each module.
    """

    name: str
    count: int
    operators: int
    calls: Sequence[tuple[Any, tuple[Any, ...], dict[str, Any]]]

    def plain(self) -> list[LiveFunction]:
        """Return the calls as the model makes them."""
        return [partial(module, *args, **keywords) for module, args, keywords in self.calls]

    def compiled(self) -> tuple[list[LiveFunction], float]:
        """Return the calls as ``torch.compile`` fuses them, and their error, see `ChangedCall`.

        Raises:
            Exception: They cannot be compiled, for any reason that the compiler has.
        """
        forward = torch.compile(type(self.calls[0][0]).forward, dynamic=False)
        found: list[LiveFunction] = [
            partial(forward, module, *args, **keywords) for module, args, keywords in self.calls
        ]
        for function in found:
            function()  # compiles
        expected, result = self.plain()[0](), found[0]()
        return found, relative_change(tensors_in(expected), tensors_in(result))


def fusible_modules(
    layers: Sequence[Any], run: Callable[[], object], most: int
) -> list[ModuleCalls]:
    """Return the modules inside of layers that make several calls and take only tensors.

    Args:
        layers: The layers of a model.
        run: Runs a step once.
        most: The largest number of kinds of modules; those that make the most calls count.
    """
    found: dict[str, list[tuple[Any, tuple[Any, ...], dict[str, Any]]]] = {}
    operators: dict[str, int] = {}
    recorder = CallRecorder({})
    began = []

    def enter(module: Any, args: Any, keywords: Any) -> None:
        began.append((len(recorder.forms), describe([args, keywords])))
        if takes_only_tensors(args, keywords):
            key = f"{type(module).__name__} {began[-1][1]}"
            found.setdefault(key, []).append((module, args, keywords))

    def leave(module: Any) -> None:
        first, form = began.pop()
        operators[f"{type(module).__name__} {form}"] = len(recorder.forms) - first

    with ExitStack() as stack:
        for layer in layers:
            if isinstance(layer, torch.nn.TransformerEncoderLayer):
                continue  # it runs as one operator, unless modules inside of it are watched
            for module in list(layer.modules())[1:]:
                stack.enter_context(calls_watched(module, enter, leave))
        with recorder:
            run()
    groups = []
    for key, calls in found.items():
        turns = {id(module): (module, args, keywords) for module, args, keywords in reversed(calls)}
        if operators.get(key, 0) > 1:
            name = type(calls[0][0]).__name__
            groups.append(ModuleCalls(name, len(calls), operators[key], list(turns.values())))
    return sorted(groups, key=lambda group: -group.count * group.operators)[:most]


def takes_only_tensors(args: Any, keywords: Any) -> bool:
    """Return whether a module is called with tensors and nothing else, as one without a cache."""
    values = [*args, *keywords.values()]
    return all(value is None or isinstance(value, torch.Tensor) for value in values)
