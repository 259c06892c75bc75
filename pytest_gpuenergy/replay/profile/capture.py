"""Records every call of an operator that a model makes, with its live arguments.

Imports PyTorch: import this module only where it is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from pytest_gpuenergy.replay.extract.calls import CallForm
from pytest_gpuenergy.replay.profile.reuse import Reuse, ReuseSpan, ReuseStack

_LARGEST_ALIGNMENT = 256


@dataclass(frozen=True)
class LiveCall:
    """A call that can be made again.

    Attributes:
        operator: PyTorch's overload, or the function that launches a Triton kernel.
        arguments: The arguments by position. Parameters of the model are shared with it; all other
            tensors are copies that were made before the call.
        keywords: The arguments by name.
        parameters: The addresses of the storages of the model's parameters.
    """

    operator: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    parameters: frozenset[int]

    def __call__(self) -> Any:
        """Make the call, and return its result."""
        return self.operator(*self.arguments, **self.keywords)

    @property
    def tensors(self) -> list[Any]:
        """The tensors among the arguments, if the call `is_plain`."""
        return tensors_in((self.arguments, self.keywords))

    @property
    def is_plain(self) -> bool:
        """Whether all tensors can be copied as they lie in memory."""
        flat, _ = tree_flatten((self.arguments, self.keywords))
        return all(_is_plain(leaf) for leaf in flat if isinstance(leaf, torch.Tensor))

    def with_tensors(self, tensors: Sequence[Any]) -> LiveCall:
        """Return this call with other tensors in place of its own, in the same order."""
        following = iter(tensors)
        arguments, keywords = tree_map_only(
            torch.Tensor, lambda _: next(following), (self.arguments, self.keywords)
        )
        return LiveCall(self.operator, arguments, keywords, self.parameters)

    def is_parameter(self, tensor: Any) -> bool:
        """Return whether a tensor of this call is a parameter of the model."""
        return _storage(tensor) in self.parameters


@dataclass(frozen=True)
class ResultView:
    """A view of what an earlier call of a chain has returned.

    Attributes:
        call: The number of that call in its chain.
        result: The number of the tensor among those that it returns.
        shape: The sizes of the view.
        strides: Its strides, in elements of its type.
        offset: Its first element in the storage.
        dtype: Its type.
    """

    call: int
    result: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: Any

    def of(self, results: Sequence[Any]) -> Any:
        """Return the view, from the tensors that each call has returned."""
        result = results[self.call][self.result]
        own = tuple(result.shape), result.stride(), result.storage_offset(), result.dtype
        if own == (self.shape, self.strides, self.offset, self.dtype):
            return result
        empty = torch.empty(0, dtype=self.dtype, device=result.device)
        return empty.set_(result.untyped_storage(), self.offset, self.shape, self.strides)


@dataclass(frozen=True)
class LiveChain:
    """Successive calls that can be made again, each with the results of those before.

    Like a `LiveCall`, it takes tensors, those that none of its calls has returned.

    Attributes:
        calls: The calls, with any tensors of the right form as arguments.
        sources: For each tensor of each call, the number of one that the chain takes, or a view of
            what an earlier call has returned.
        tensors: The tensors that the chain takes.
        kept: For each call, the numbers of the returned tensors that are used after the chain; the
            memory of all others is free after their last use, as it is in the model.
    """

    calls: Sequence[LiveCall]
    sources: Sequence[Sequence[int | ResultView]]
    tensors: Sequence[Any]
    kept: Sequence[frozenset[int]]

    def __call__(self) -> list[Any]:
        """Make the calls, and return what is used after them."""
        results: list[list[Any]] = []
        last_use = {
            (source.call, source.result): number
            for number, sources in enumerate(self.sources)
            for source in sources
            if isinstance(source, ResultView)
        }
        for number, (call, sources) in enumerate(zip(self.calls, self.sources, strict=True)):
            given = [
                self.tensors[source] if isinstance(source, int) else source.of(results)
                for source in sources
            ]
            results.append(tensors_in(call.with_tensors(given)()))
            del given
            for earlier, group in enumerate(results):
                for result in range(len(group)):
                    is_over = last_use.get((earlier, result), earlier) <= number
                    if is_over and result not in self.kept[earlier]:
                        group[result] = None
        return [
            results[number][result]
            for number, group in enumerate(self.kept)
            for result in sorted(group)
        ]

    @property
    def form(self) -> object:
        """What two chains share if tensors of one can take the place of those of the other."""
        return self.sources, self.kept

    @property
    def is_plain(self) -> bool:
        """Whether all tensors can be copied as they lie in memory."""
        return all(call.is_plain for call in self.calls)

    def with_tensors(self, tensors: Sequence[Any]) -> LiveChain:
        """Return this chain with other tensors in place of those that it takes."""
        return replace(self, tensors=list(tensors))

    def is_parameter(self, tensor: Any) -> bool:
        """Return whether a tensor is a parameter of the model."""
        return self.calls[0].is_parameter(tensor)


class OperatorMode(TorchDispatchMode):
    """A context in which `called` makes each call of an operator.

    Annotations of PyTorch's profiler do not count as calls.
    """

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let ``torch.compile`` compile as it does without this mode, so that its calls are seen.

        PyTorch asks; otherwise a compiled program would run uncompiled here.
        """
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """See PyTorch's documentation of ``TorchDispatchMode``."""
        keywords = dict(kwargs or {})
        if func.namespace == "profiler":
            return func(*args, **keywords)
        return self.called(func, args, keywords)

    def called(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Make a call, and return its result."""
        return func(*args, **keywords)


class CallRecorder(OperatorMode):
    """Numbers the calls of operators that a model makes while this context is entered.

    The launch of a Triton kernel outside of any operator counts as a call, too. In a trace of
    PyTorch's profiler, an annotation such as ``call 12`` surrounds each call.

    Args:
        modules: By name, the modules whose parameters are recognized.
        keep: The numbers of the calls that are kept.
        memory: Follows the use of memory; without it, ``reuse`` stays empty.

    Attributes:
        forms: The form of each call so far, by number.
        kept: The kept calls, by number.
        reuse: By number, the reuse of the tensors among a call's arguments, and then of the tensors
            that it returned in memory of their own.
        is_inside: Whether a recorded call is being made, in which other calls do not count.
    """

    def __init__(
        self,
        modules: Mapping[str, Any],
        keep: Sequence[int] = (),
        memory: ReuseStack | None = None,
    ) -> None:
        super().__init__()
        self._names = {
            _storage(tensor): ".".join(filter(None, (prefix, name)))
            for prefix, module in modules.items()
            for named in (module.named_parameters(), module.named_buffers())
            for name, tensor in named
            if _storage(tensor)
        }
        self._keep = frozenset(keep)
        self._memory = memory
        self.is_inside = False
        self._triton = ExitStack()
        self.forms: list[CallForm] = []
        self.kept: dict[int, LiveCall] = {}
        self.reuse: list[tuple[Reuse, ...]] = []

    def __enter__(self) -> CallRecorder:
        self._triton.enter_context(_triton_launches(self._see_launch))
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._triton.close()

    def called(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return self.see(str(func), func, args, keywords)

    def _see_launch(
        self, function: Any, launch: Any, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        if keywords.get("warmup"):  # nothing is launched
            return launch(*args, **keywords)
        return self.see(f"triton.{function.__name__}", launch, args, keywords)

    def see(self, name: str, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Make a call, number it, and record its form; see `CallForm` for the name."""
        if self.is_inside:  # an operator that the recorded call itself calls
            return func(*args, **keywords)
        number = len(self.forms)
        self.is_inside = True  # copies made here, and launches within the call, do not count
        try:
            self.forms.append(self._form(name, args, keywords))
            if number in self._keep:
                self.kept[number] = self._live(func, args, keywords)
            with record_function(f"call {number}"):
                returned = func(*args, **keywords)
        finally:
            self.is_inside = False
        if self._memory is not None:
            self.reuse.append(_used(self._memory, (args, keywords), returned))
        return returned

    def _form(self, name: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> CallForm:
        flat, _ = tree_flatten((args, keywords))
        names = [
            self._names[_storage(leaf)]
            for leaf in flat
            if isinstance(leaf, torch.Tensor) and _storage(leaf) in self._names
        ]
        arguments = [describe(argument) for argument in args]
        if keywords:
            arguments.append({name: describe(argument) for name, argument in keywords.items()})
        return CallForm(name, arguments, tuple(names))

    def _live(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> LiveCall:
        def own(tensor: Any) -> Any:
            if _storage(tensor) in self._names:
                return tensor
            return copied_tensor(tensor) if _is_plain(tensor) else tensor.clone()

        arguments, own_keywords = tree_map_only(torch.Tensor, own, (args, keywords))
        return LiveCall(func, arguments, own_keywords, frozenset(self._names))


@dataclass
class _OpenChain:
    """A chain whose calls the model is making; see `ChainRecorder`."""

    calls: list[LiveCall] = field(default_factory=list)
    sources: list[list[int | ResultView]] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)
    reuse_of: list[tuple[int, int]] = field(default_factory=list)
    taken: dict[Any, int] = field(default_factory=dict)
    owners: dict[int, tuple[int, int]] = field(default_factory=dict)
    results: list[dict[int, tuple[StorageWeakRef, tuple[int, int]]]] = field(default_factory=list)


class ChainRecorder(CallRecorder):
    """Records chains of the calls that a model makes, see `LiveChain`.

    Args:
        modules: See `CallRecorder`.
        chains: The numbers of the calls of each chain, in order. What the model calls between them
            must launch nothing.
        copied: The chains that keep copies of all tensors that they take, by their number in
            ``chains``; others keep the model's parameters alone.

    Attributes:
        chains: The chains whose calls have all been made, by their number in ``chains``.
        reuse_of: For each of them, where `CallRecorder.reuse` of such a run has the reuse of each
            tensor that the chain takes, and then of each that it returns: the numbers of a call and
            of the tensor.
    """

    def __init__(
        self,
        modules: Mapping[str, Any],
        chains: Sequence[Sequence[int]],
        copied: Collection[int] = (),
    ) -> None:
        super().__init__(modules)
        self._copied = frozenset(copied)
        self._chain_of = {
            number: (chain, group) for chain, group in enumerate(chains) for number in group
        }
        self._open: _OpenChain | None = None
        self._complete: int | None = None
        self.chains: dict[int, LiveChain] = {}
        self.reuse_of: dict[int, list[tuple[int, int]]] = {}

    def see(self, name: str, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """See `CallRecorder`."""
        if self.is_inside:
            return super().see(name, func, args, keywords)
        self._close()
        number = len(self.forms)
        chain, group = self._chain_of.get(number, (None, ()))
        if chain is not None:
            if number == group[0]:
                self._open = _OpenChain()
            self.is_inside = True  # copies do not count
            try:
                self._take(number, func, args, keywords, is_copied=chain in self._copied)
            finally:
                self.is_inside = False
        returned = super().see(name, func, args, keywords)
        self._note_results(number, (args, keywords), returned, in_chain=chain is not None)
        if chain is not None and number == group[-1]:
            self._complete = chain
        return returned

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._close()

    def _take(
        self,
        number: int,
        func: Any,
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        *,
        is_copied: bool,
    ) -> None:
        """Note a call of the open chain, and where its tensors come from."""
        chain = self._open
        if chain is None:
            return
        sources: list[int | ResultView] = []
        for position, tensor in enumerate(tensors_in((args, keywords))):
            owner = chain.owners.get(_storage(tensor))
            if owner is not None:
                sources.append(
                    ResultView(
                        *owner,
                        shape=tuple(tensor.shape),
                        strides=tensor.stride(),
                        offset=tensor.storage_offset(),
                        dtype=tensor.dtype,
                    )
                )
                continue
            key = tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
            if key not in chain.taken:
                chain.taken[key] = len(chain.tensors)
                if _storage(tensor) not in self._names:
                    tensor = copied_tensor(tensor) if is_copied else _without_memory(tensor)
                chain.tensors.append(tensor)
                chain.reuse_of.append((number, position))
            sources.append(chain.taken[key])
        # Only the places of tensors matter, and their memory must be free for the model.
        form = tree_map_only(torch.Tensor, _without_memory, (args, keywords))
        chain.calls.append(LiveCall(func, form[0], form[1], frozenset(self._names)))
        chain.sources.append(sources)

    def _note_results(self, number: int, given: Any, returned: Any, *, in_chain: bool) -> None:
        """Note in whose memory later calls of the open chain find results."""
        chain = self._open
        if chain is None:
            return
        read = tensors_in(given)
        read_storages = {_storage(tensor) for tensor in read}
        own: dict[int, tuple[StorageWeakRef, tuple[int, int]]] = {}
        for result, tensor in enumerate(tensors_in(returned)):
            storage = _storage(tensor)
            if not storage or storage in read_storages:
                continue
            if in_chain:
                chain.owners[storage] = len(chain.results), result
                place = number, len(read) + len(own)
                own[result] = StorageWeakRef(tensor.untyped_storage()), place
            else:
                chain.owners.pop(storage, None)  # that of a result which is not used any more
        if in_chain:
            chain.results.append(own)

    def _close(self) -> None:
        """Keep the open chain, which is complete, and note which of its results still exist."""
        number, chain = self._complete, self._open
        if number is None or chain is None:
            return
        kept = [
            {result: place for result, (weak, place) in own.items() if not weak.expired()}
            for own in chain.results
        ]
        self.chains[number] = LiveChain(
            chain.calls, chain.sources, chain.tensors, [frozenset(group) for group in kept]
        )
        places = [group[result] for group in kept for result in sorted(group)]
        self.reuse_of[number] = chain.reuse_of + places
        self._open = self._complete = None


def _without_memory(tensor: Any) -> Any:
    """Return an empty tensor; one of another layout as it is, since `LiveCall.is_plain` asks."""
    return torch.empty(0, dtype=tensor.dtype) if _is_plain(tensor) else tensor


@contextmanager
def _triton_launches(see: Callable[[Any, Any, Any, Any], Any]) -> Iterator[None]:
    """Route each launch of a Triton kernel through ``see``.

    Its arguments are the kernel, the function that launches it, and that function's arguments.
    What ``torch.compile`` has generated is launched by PyTorch's own class, on a stream that is
    among its arguments; ``see`` gets a function that launches on the current stream.
    """
    with ExitStack() as stack:
        if (jit := sys.modules.get("triton.runtime.jit")) is not None:
            plain = jit.JITFunction.run

            def run(function: Any, *args: Any, **keywords: Any) -> Any:
                return see(function, partial(plain, function), args, keywords)

            stack.callback(setattr, jit.JITFunction, "run", plain)
            jit.JITFunction.run = run
        compiled = sys.modules.get("torch._inductor.runtime.triton_heuristics")
        if compiled is not None:
            plain_compiled = compiled.CachingAutotuner.run

            def run_compiled(kernel: Any, *args: Any, **keywords: Any) -> Any:
                del keywords["stream"]

                def launch(*args: Any, **keywords: Any) -> Any:
                    current = torch.cuda.current_stream().cuda_stream
                    return plain_compiled(kernel, *args, stream=current, **keywords)

                return see(kernel.fn, launch, args, keywords)

            stack.callback(setattr, compiled.CachingAutotuner, "run", plain_compiled)
            compiled.CachingAutotuner.run = run_compiled
        yield


def describe(value: Any) -> Any:
    """Return an argument in a form that JSON can hold, see `CallForm`."""
    if isinstance(value, torch.Tensor) and not _is_plain(value):
        parts = value.unbind() if value.is_nested else [value]
        return {
            "layout": "nested" if value.is_nested else str(value.layout).removeprefix("torch."),
            "sizes": [list(part.shape) for part in parts],
            "dtype": str(value.dtype).removeprefix("torch."),
            "device": value.device.type,
        }
    if isinstance(value, torch.Tensor):
        address = value.data_ptr()  # kernels depend on its alignment
        return {
            "shape": list(value.shape),
            "dtype": str(value.dtype).removeprefix("torch."),
            "strides": list(value.stride()),
            "alignment": next(size for size in (16, 8, 4, 2, 1) if address % size == 0),
            "device": value.device.type,
        }
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    text = str(value)
    return type(value).__name__ if " at 0x" in text else text


def copied_tensor(tensor: Any) -> Any:
    """Return a copy with the same strides and alignment, even if elements share memory."""
    if tensor.numel() == 0:
        return tensor.clone()
    span = span_of(tensor)
    lead = tensor.storage_offset() % _LARGEST_ALIGNMENT
    room = torch.empty(lead + span, dtype=tensor.dtype, device=tensor.device)
    room[lead:].copy_(tensor.as_strided((span,), (1,)))
    return room.as_strided(tensor.shape, tensor.stride(), lead)


def _is_plain(tensor: Any) -> bool:
    """Return whether strides give the place of each element, unlike in sparse or nested tensors."""
    return tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_quantized)


def _storage(tensor: Any) -> int:
    """Return the address of a tensor's storage; 0 if it has none."""
    if not _is_plain(tensor):
        return 0
    address: int = tensor.untyped_storage().data_ptr()
    return address


def tensors_in(tree: Any) -> list[Any]:
    """Return the tensors in nested tuples, lists and dictionaries, see `LiveCall.is_plain`."""
    flat, _ = tree_flatten(tree)
    return [leaf for leaf in flat if isinstance(leaf, torch.Tensor) and _is_plain(leaf)]


def _used(memory: ReuseStack, arguments: Any, returned: Any) -> tuple[Reuse, ...]:
    read = tensors_in(arguments)
    read_storages = {_storage(tensor) for tensor in read}
    tensors = read + [
        tensor for tensor in tensors_in(returned) if _storage(tensor) not in read_storages
    ]
    spans = [
        ReuseSpan(tensor.data_ptr(), span_of(tensor) * tensor.element_size()) for tensor in tensors
    ]
    found = [
        Reuse(
            min(span.size_bytes, tensor.numel() * tensor.element_size()),
            memory.distance_bytes(span),
        )
        for tensor, span in zip(tensors, spans, strict=True)
    ]
    for span in spans:
        memory.use(span)
    return tuple(found)


def span_of(tensor: Any) -> int:
    """Return the number of elements from the first to the last in memory."""
    if tensor.numel() == 0:
        return 0
    extents = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum(int(size - 1) * int(stride) for size, stride in extents)
