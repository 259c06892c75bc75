"""Makes the figures of several cards of one model comparable."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar


class Cards(Protocol):
    """The GPUs of a search: an `engine.Team`, or an evaluator of `search`."""

    @property
    def working(self) -> tuple[str, ...]:
        """The UUIDs of the GPUs that are still used."""
        ...

    def leave(self, gpu: str, why: str) -> None:
        """Stop using a GPU for a reason, which is a clause.

        Raises:
            DeviceError: it is the last GPU.
        """
        ...


class _Result(Protocol):
    """The result of a kernel on the GPU with the UUID ``gpu``."""

    @property
    def gpu(self) -> str | None: ...
    @property
    def outcome(self) -> str: ...
    @property
    def message(self) -> str | None: ...


R = TypeVar("R", bound=_Result)


class CardScales(Generic[R]):
    """The factors between the figures of each GPU and those of the GPU where a search began.

    Cards of one model differ by some percent in time and power. Therefore a candidate's figures are
    divided by the reference kernel's on the same card, and multiplied by the reference kernel's on
    the card where the search began. All figures can then be compared as if one card had produced
    them.

    Args:
        cards: the GPUs of the search.
        reference: what the reference kernel is called in messages.
        figures: returns the figures of a result that are compared; empty if the kernel failed.
    """

    def __init__(
        self, cards: Cards, reference: str, figures: Callable[[R], tuple[float | None, ...]]
    ) -> None:
        self._cards = cards
        self._reference = reference
        self._figures = figures
        self._factors: dict[str | None, tuple[float, ...]] = {}

    def of(self, gpu: str | None) -> tuple[float, ...] | None:
        """Return the factors of a GPU, one for each figure; None if they are not known."""
        return self._factors.get(gpu)

    def compare(self, results: Iterable[R], base: R) -> None:
        """Note the factors of GPUs, and stop using those on which the reference kernel failed.

        Args:
            results: the results of the reference kernel on the GPUs.
            base: its result where the search began.

        Raises:
            DeviceError: no GPU is left.
        """
        for result in results:
            if figures := self._figures(result):
                self._factors[result.gpu] = tuple(
                    there / here if there and here else 1.0
                    for there, here in zip(self._figures(base), figures, strict=True)
                )
            elif result.gpu in self._cards.working:
                assert result.gpu is not None
                why = f"the {self._reference} fails there ({result.outcome}): {result.message}"
                self._cards.leave(result.gpu, why.removesuffix("."))
