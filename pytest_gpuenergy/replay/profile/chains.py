"""Chains of calls that a model makes, each of which takes the results of those before it.

Imports PyTorch: import this module only where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_map_only

from pytest_gpuenergy.replay.profile.capture import (
    LARGEST_ALIGNMENT,
    CallRecorder,
    LiveCall,
    Part,
    bytes_of,
    first_places,
    is_plain,
    span_of,
    storage_of,
    tensors_in,
)

Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(frozen=True)
class TensorView:
    """A tensor of a chain: a view of memory that the chain takes, or of an earlier result.

    Attributes:
        call: The number of the call that has returned the memory; None if the chain takes it.
        number: The number of the tensor among those that the call returns or the chain takes.
        shape: The sizes of the view.
        strides: Its strides, in elements of its type.
        offset: Its first element, in elements of its type from the beginning of the storage that
            was returned, or of the region that is taken.
        dtype: Its type.
    """

    call: int | None
    number: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: Any

    def of(self, base: Any) -> Any:
        """Return the view of a tensor that was returned, or of a region that is taken."""
        offset = self.offset
        if self.call is None:
            offset += base.storage_offset() // self.dtype.itemsize
        own = tuple(base.shape), base.stride(), base.storage_offset(), base.dtype
        if own == (self.shape, self.strides, offset, self.dtype):
            return base
        empty = torch.empty(0, dtype=self.dtype, device=base.device)
        return empty.set_(base.untyped_storage(), offset, self.shape, self.strides)


@dataclass(frozen=True)
class LiveChain:
    """Successive calls that can be made again, each with the results of those before.

    Like a `LiveCall`, it takes tensors: parameters of the model, and regions of memory as bytes. A
    region holds all tensors that overlap in memory and that no call of the chain has returned. So a
    call finds there what earlier calls have written, as in programs of ``torch.compile``.

    Attributes:
        calls: The calls, with any tensors of the right form as arguments.
        sources: For each tensor of each call, the number of a parameter that the chain takes, or a
            view; the same object if the call takes a tensor twice.
        tensors: The tensors that the chain takes, parameters first.
        kept: For each call, the numbers of the returned tensors that are used after the chain; the
            memory of all others is free after their last use, as it is in the model.
        parts: The tensors in the regions.
        given: For each call, its tensors; None where an earlier call returns it. Empty before
            `with_tensors`.
    """

    calls: Sequence[LiveCall]
    sources: Sequence[Sequence[int | TensorView]]
    tensors: Sequence[Any]
    kept: Sequence[frozenset[int]]
    parts: Sequence[Part]
    given: Sequence[Sequence[Any | None]] = ()

    def __call__(self) -> list[Any]:
        """Make the calls, and return what is used after them."""
        if not self.given:
            return self.with_tensors(self.tensors)()
        results: list[list[Any]] = []
        last_use = {
            (source.call, source.number): number
            for number, sources in enumerate(self.sources)
            for source in sources
            if isinstance(source, TensorView) and source.call is not None
        }
        for number, (call, sources) in enumerate(zip(self.calls, self.sources, strict=True)):
            returned = _once_each(
                sources,
                lambda source: (
                    source.of(results[source.call][source.number])
                    if isinstance(source, TensorView) and source.call is not None
                    else None
                ),
            )
            given = [
                result if taken is None else taken
                for result, taken in zip(returned, self.given[number], strict=True)
            ]
            del returned
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
        """What two chains share if parameters of one can take the place of those of the other."""
        return [[one if isinstance(one, int) else None for one in group] for group in self.sources]

    @property
    def is_plain(self) -> bool:
        """Whether all tensors can be copied as they lie in memory."""
        return all(call.is_plain for call in self.calls)

    @property
    def may_write(self) -> bool:
        """Whether a call may change a tensor that it takes."""
        return any(call.may_write for call in self.calls)

    def with_tensors(self, tensors: Sequence[Any]) -> LiveChain:
        """Return this chain with other tensors in place of those that it takes."""

        def taken(source: int | TensorView) -> Any | None:
            if isinstance(source, int):
                return tensors[source]
            return source.of(tensors[source.number]) if source.call is None else None

        given = [_once_each(sources, taken) for sources in self.sources]
        return replace(self, tensors=list(tensors), given=given)

    def is_parameter(self, tensor: Any) -> bool:
        """Return whether a tensor is a parameter of the model."""
        return self.calls[0].is_parameter(tensor)


class _Span(NamedTuple):
    """Consecutive bytes of a device's memory."""

    device: Any
    address: int
    size_bytes: int


class _Taken(NamedTuple):
    """A tensor of a chain that is not a parameter, and that no call of the chain has returned."""

    span: _Span
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any


class _Place(NamedTuple):
    """Where `CallRecorder.reuse` has the reuse of a tensor: its call in the chain, its number."""

    call: int
    tensor: int


@dataclass
class _OpenChain:
    """A chain whose calls the model is making; see `ChainRecorder`.

    Attributes:
        is_copied: Whether the chain keeps what its regions contain.
        contents: For each span of a tensor that was taken, where it was taken first, and its bytes
            at that time.
    """

    is_copied: bool
    calls: list[LiveCall] = field(default_factory=list)
    sources: list[list[int | TensorView | _Taken]] = field(default_factory=list)
    parameters: dict[Any, tuple[int, Any, _Place]] = field(default_factory=dict)
    contents: dict[_Span, tuple[_Place, Any | None]] = field(default_factory=dict)
    owners: dict[int, tuple[int, int]] = field(default_factory=dict)
    results: list[dict[int, tuple[StorageWeakRef, int]]] = field(default_factory=list)

    def source(
        self, tensor: Any, place: _Place, *, is_parameter: bool
    ) -> int | TensorView | _Taken:
        """Return where a tensor of a call comes from; keep it if it is new."""
        view = tuple(tensor.shape), tensor.stride()
        owner = self.owners.get(storage_of(tensor))
        # Memory that nobody uses any more may have been allocated again, by no operator.
        if owner is not None and not self.results[owner[0]][owner[1]][0].expired():
            return TensorView(*owner, *view, tensor.storage_offset(), tensor.dtype)
        if is_parameter:
            key = tensor.data_ptr(), *view, tensor.dtype
            return self.parameters.setdefault(key, (len(self.parameters), tensor, place))[0]
        span = _Span(tensor.device, tensor.data_ptr(), span_of(tensor) * tensor.element_size())
        if span not in self.contents:
            self.contents[span] = place, bytes_of(tensor).clone() if self.is_copied else None
        return _Taken(span, *view, tensor.dtype)

    def regions(self) -> list[_Span]:
        """Return the memory of the tensors that are taken; those that overlap share a region."""
        found: list[_Span] = []
        for span in sorted(self.contents, key=lambda one: (str(one.device), one.address)):
            device, begin, size_bytes = found[-1] if found else (None, 0, 0)
            if device == span.device and span.address < begin + size_bytes:
                size_bytes = max(size_bytes, span.address + span.size_bytes - begin)
                found[-1] = _Span(device, begin, size_bytes)
            else:
                found.append(span)
        return found

    def chain(self) -> tuple[LiveChain, list[_Place]]:
        """Return the chain, and the places of the tensors that it takes, and of its results."""
        regions = self.regions()
        begins = [region.address for region in regions]
        first = len(self.parameters)

        def region_of(span: _Span) -> int:
            return max(
                number
                for number, region in enumerate(regions)
                if region.device == span.device and begins[number] <= span.address
            )

        def resolved(source: int | TensorView | _Taken) -> int | TensorView:
            if not isinstance(source, _Taken):
                return source
            number = region_of(source.span)
            offset = (source.span.address - begins[number]) // source.dtype.itemsize
            own = source.shape, source.strides, offset, source.dtype
            return TensorView(None, first + number, *own)

        parts = [
            Part(
                first + (number := region_of(span)), span.address - begins[number], span.size_bytes
            )
            for span in self.contents
        ]
        memory = [
            _room(region) if self.is_copied else torch.empty(0, dtype=torch.uint8)
            for region in regions
        ]
        places = [_Place(-1, -1)] * len(regions)
        # The earliest content comes last, since calls may have overwritten it since.
        for span, (place, content) in reversed(self.contents.items()):
            number = region_of(span)
            places[number] = place
            if content is not None:
                begin = span.address - begins[number]
                memory[number][begin : begin + span.size_bytes].copy_(content)
        kept = [
            {result: at for result, (weak, at) in own.items() if not weak.expired()}
            for own in self.results
        ]
        parameters = self.parameters.values()
        chain = LiveChain(
            self.calls,
            [_once_each(sources, resolved) for sources in self.sources],
            [*(tensor for _, tensor, _ in parameters), *memory],
            [frozenset(group) for group in kept],
            parts,
        )
        of_results = [
            _Place(call, group[result])
            for call, group in enumerate(kept)
            for result in sorted(group)
        ]
        return chain, [*(place for _, _, place in parameters), *places, *of_results]


class ChainRecorder(CallRecorder):
    """A recorder that keeps chains of the calls that a model makes, see `LiveChain`.

    Args:
        modules: See `CallRecorder`.
        chains: The numbers of the calls of each chain, in order. What the model calls between them
            must launch nothing.
        copied: The chains that keep what their regions contain, by their number in ``chains``; the
            regions of others contain anything.

    Attributes:
        chains: The chains whose calls have all been made, by their number in ``chains``.
        reuse_of: For each of them, where `CallRecorder.reuse` of such a run has the reuse of each
            tensor that the chain takes, and then of each that it returns: the numbers of a call in
            the chain and of the tensor. A region has that of the tensor that was taken first.
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
        self.reuse_of: dict[int, list[_Place]] = {}

    def see(self, name: str, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """See `CallRecorder`."""
        if self.is_inside:
            return super().see(name, func, args, keywords)
        self._close()
        number = len(self.forms)
        chain, group = self._chain_of.get(number, (None, ()))
        if chain is not None:
            if number == group[0]:
                self._open = _OpenChain(is_copied=chain in self._copied)
            self.is_inside = True  # copies do not count
            try:
                self._take(func, args, keywords)
            finally:
                self.is_inside = False
        returned = super().see(name, func, args, keywords)
        self._note_results((args, keywords), returned, in_chain=chain is not None)
        if chain is not None and number == group[-1]:
            self._complete = chain
        return returned

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._close()

    def _take(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Note a call of the open chain, and where its tensors come from."""
        chain = self._open
        if chain is None:
            return
        sources: list[int | TensorView | _Taken] = []
        tensors = tensors_in((args, keywords))
        for position, (first, tensor) in enumerate(
            zip(first_places(tensors), tensors, strict=True)
        ):
            if first < position:
                sources.append(sources[first])
                continue
            place = _Place(len(chain.calls), position)
            is_parameter = storage_of(tensor) in self.names
            sources.append(chain.source(tensor, place, is_parameter=is_parameter))
        # Only the places of tensors matter, and their memory must be free for the model.
        form = tree_map_only(torch.Tensor, _without_memory, (args, keywords))
        chain.calls.append(LiveCall(func, form[0], form[1], frozenset(self.names)))
        chain.sources.append(sources)

    def _note_results(self, given: Any, returned: Any, *, in_chain: bool) -> None:
        """Note in whose memory later calls of the open chain find results."""
        chain = self._open
        if chain is None:
            return
        read = tensors_in(given)
        read_storages = {storage_of(tensor) for tensor in read}
        own: dict[int, tuple[StorageWeakRef, int]] = {}
        for result, tensor in enumerate(tensors_in(returned)):
            storage = storage_of(tensor)
            if not storage or storage in read_storages:
                continue
            if in_chain:
                chain.owners[storage] = len(chain.results), result
                own[result] = StorageWeakRef(tensor.untyped_storage()), len(read) + len(own)
            else:
                chain.owners.pop(storage, None)  # that of a result which is not used any more
        if in_chain:
            chain.results.append(own)

    def _close(self) -> None:
        """Keep the open chain, which is complete, and note which of its results still exist."""
        number, chain = self._complete, self._open
        if number is None or chain is None:
            return
        self.is_inside = True  # copies do not count
        try:
            self.chains[number], self.reuse_of[number] = chain.chain()
        finally:
            self.is_inside = False
        self._open = self._complete = None


def _once_each(values: Sequence[Given], function: Callable[[Given], Made]) -> list[Made]:
    """Return what a function makes of each value, made once for one that is there twice.

    So an operator that asks whether two of its tensors are one gets the same answer again.
    """
    made: dict[int, Made] = {}
    for value in values:
        if id(value) not in made:
            made[id(value)] = function(value)
    return [made[id(value)] for value in values]


def _without_memory(tensor: Any) -> Any:
    """Return an empty tensor; one of another layout as it is, since `LiveCall.is_plain` asks."""
    return torch.empty(0, dtype=tensor.dtype) if is_plain(tensor) else tensor


def _room(span: _Span) -> Any:
    """Return as many bytes of zeros with the same alignment."""
    lead = span.address % LARGEST_ALIGNMENT
    return torch.zeros(lead + span.size_bytes, dtype=torch.uint8, device=span.device)[lead:]
