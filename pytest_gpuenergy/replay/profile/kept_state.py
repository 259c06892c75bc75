"""Functions that can be called again and again, because what a call has changed is set back.

A static cache of keys and values, for example, counts its tokens in place. If its program ran again
and again, it would write beyond the cache, which ends the process on a GPU.

Imports PyTorch: import this module only where it is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pytest_gpuenergy.replay.profile.capture import (
    TRITON_MODULES,
    CallRecorder,
    bytes_of,
    storage_of,
    tensors_in,
)


class StateChanges(CallRecorder):
    """A recorder that also notes the tensors that a run changes, if they outlive the run.

    A Triton kernel may change each tensor that it takes, but none of the model's parameters.

    Args:
        modules: See `CallRecorder`.

    Attributes:
        before: The tensors that may have been changed, each with its bytes before that.
    """

    def __init__(self, modules: Mapping[str, Any]) -> None:
        super().__init__(modules)
        self.before: list[tuple[Any, Any]] = []
        self._noted: set[tuple[int, torch.Size]] = set()
        self._made: set[int] = set()

    def see(self, name: str, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Note what a call may change, and record the call as `CallRecorder` does."""
        is_counted = not self.is_inside
        if is_counted:
            self.is_inside = True  # copies do not count
            try:
                for tensor in self._changed(func, args, keywords):
                    self._note(tensor)
            finally:
                self.is_inside = False
        returned = super().see(name, func, args, keywords)
        if is_counted:
            given = {storage_of(tensor) for tensor in tensors_in((args, keywords))}
            made = {storage_of(tensor) for tensor in tensors_in(returned)} - given
            self._made |= made
        return returned

    def _changed(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> list[Any]:
        """Return the tensors that a call may change."""
        schema = getattr(func, "_schema", None)
        if schema is None:
            given = tensors_in((args, keywords))
            return [tensor for tensor in given if storage_of(tensor) not in self.names]
        if not schema.is_mutable:
            return []
        own = [
            args[place] if place < len(args) else keywords.get(argument.name)
            for place, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        return tensors_in(own)

    def _note(self, tensor: Any) -> None:
        key = tensor.data_ptr(), tensor.shape
        if storage_of(tensor) in self._made or key in self._noted or not tensor.numel():
            return
        self._noted.add(key)
        self.before.append((tensor, bytes_of(tensor).clone()))


def with_state_kept(function: Callable[[], Any], modules: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a function that calls ``function``, and then sets back what the call has changed.

    Integers that a call changes are set back, such as the number of tokens in a cache. Then a
    second call is made. A floating-point tensor is set back only if this call changes it once more:
    a cache, to whose same place both calls write the same, is left as it is.

    Args:
        function: The function, which is called twice if it changes anything.
        modules: The modules whose parameters it uses, by name.

    Returns:
        The function itself if there is nothing to set back.
    """
    compilers = _compilers()
    noted = _noted(function, modules)
    if compilers != _compilers():  # launches of a compiler that was imported meanwhile are not seen
        noted = _noted(function, modules)
    changed = [pair for pair in noted.before if not torch.equal(bytes_of(pair[0]), pair[1])]
    counts = [pair for pair in changed if not pair[0].is_floating_point()]
    others = [pair for pair in changed if pair[0].is_floating_point()]
    if not changed:
        return function
    after = [bytes_of(tensor).clone() for tensor, _ in others]
    _set_back(counts)
    function()
    kept = [pair for pair in counts if not torch.equal(bytes_of(pair[0]), pair[1])]
    kept += [
        pair
        for pair, content in zip(others, after, strict=True)
        if not torch.equal(bytes_of(pair[0]), content)
    ]

    _set_back(kept)

    def kept_function() -> Any:
        returned = function()
        _set_back(kept)
        return returned

    return kept_function if kept else function


def _compilers() -> list[str]:
    return [name for name in TRITON_MODULES if name in sys.modules]


def _noted(function: Callable[[], Any], modules: Mapping[str, Any]) -> StateChanges:
    noted = StateChanges(modules)
    with noted:
        function()
    return noted


def _set_back(pairs: list[tuple[Any, Any]]) -> None:
    """Write the earlier bytes of tensors, on a GPU by one kernel."""
    if pairs:
        torch._foreach_copy_(
            [bytes_of(tensor) for tensor, _ in pairs], [content for _, content in pairs]
        )
