"""A model's cache of keys and values as a list of tensors.

Imports PyTorch: import this module only where it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import Dim

from pytest_gpuenergy.replay.programs import appendable
from pytest_gpuenergy.support import InputError


@dataclass(frozen=True)
class CacheForm:
    """Where a cache holds its tensors.

    Attributes:
        example: such a cache.
        places: numbers of its layers, each with the name of an attribute.
    """

    example: Any
    places: Sequence[tuple[int, str]]

    @classmethod
    def of(cls, example: Any) -> CacheForm:
        """That of a cache that a model has returned.

        Raises:
            InputError: it is no cache with layers.
        """
        if not hasattr(example, "layers"):
            raise InputError("its cache of keys and values has no layers")
        places = [
            (number, name)
            for number, layer in enumerate(example.layers)
            for name, value in vars(layer).items()
            if isinstance(value, torch.Tensor)
        ]
        return cls(example, places)

    def tensors(self, cache: Any) -> list[Any]:
        """Those of another cache of this form, in the order of the places."""
        return [getattr(cache.layers[number], name) for number, name in self.places]

    def holding(self, tensors: Sequence[Any]) -> Any:
        """A cache of this form with other tensors."""
        cache = appendable(self.example)
        for (number, name), one in zip(self.places, tensors, strict=True):
            setattr(cache.layers[number], name, one)
        return cache

    def growing(self, later: CacheForm) -> list[dict[int, Any]]:
        """For each tensor, the dimensions that differ from those in a later step, as open ones.

        Raises:
            InputError: more than the sizes of tensors differs, so that one program would not do
                for all decode steps.
        """
        if self.places != later.places or self._others() != later._others():
            raise InputError("its cache of keys and values changes in more than its tensors")
        pairs = zip(self.tensors(self.example), later.tensors(later.example), strict=True)
        return [
            {
                number: Dim.DYNAMIC
                for number, (before, after) in enumerate(zip(one.shape, other.shape, strict=True))
                if before != after
            }
            for one, other in pairs
        ]

    def _others(self) -> list[dict[str, Any]]:
        """What each layer holds beside tensors."""
        return [
            {name: one for name, one in vars(layer).items() if not isinstance(one, torch.Tensor)}
            for layer in self.example.layers
        ]
