"""The baseline on each GPU of a search: figures are compared relative to it."""

from __future__ import annotations

from msgspec.structs import replace

from pytest_gpuenergy.search.evaluator import Evaluator
from pytest_gpuenergy.search.folder import KernelFolder
from pytest_gpuenergy.search.trust.result import Result


class Scales:
    """How the figures of each GPU compare with those of the GPU where the search began.

    Cards of one model differ by some percent in time and power. What a variant takes is therefore
    divided by what the baseline takes on the same card, and multiplied by what it takes on the
    first one.

    Args:
        evaluator: of the search.
        folder: where baselines are kept.
    """

    def __init__(self, evaluator: Evaluator, folder: KernelFolder) -> None:
        self._evaluator = evaluator
        self._folder = folder
        self._scales: dict[str, float] = {}

    def measure(self, first: Result | None) -> Result:
        """Evaluate the baseline on all GPUs where that is missing, at the same time.

        A GPU is used no more if the baseline fails on it and not on the first one.

        Args:
            first: the baseline on the GPU where the search began; None if it begins now.

        Returns:
            ``first``, or the result on the first GPU now, which may be a failure.

        Raises:
            DeviceError: no GPU is left.
            InputError: the reference cannot be computed.
        """
        known = {} if first is None else {**self._folder.known_baselines(), first.gpu: first}
        found = self._evaluated(known)
        if first is None:
            first, *found = found
        if first.cost is None:
            return first
        for result in found:
            if result.cost is not None:
                self._folder.keep_baseline(result)
            elif result.gpu in self._evaluator.working:
                why = f"the baseline fails there ({result.outcome}): {result.message}"
                self._evaluator.leave(result.gpu, why.removesuffix("."))
        self._scales = {
            one.gpu: first.cost / one.cost for one in [*known.values(), *found] if one.cost
        } | {first.gpu: 1.0}
        return first

    def scaled(self, result: Result) -> Result:
        """A result with the scale of its GPU."""
        return replace(result, scale=self._scales.get(result.gpu, 1.0))

    def _evaluated(self, known: dict[str, Result]) -> list[Result]:
        """The baseline on the GPUs where it is not known."""
        evaluator = self._evaluator
        baseline = evaluator.bench.spec.baseline
        pending = [
            evaluator.start(place, baseline)
            for place, gpu in enumerate(evaluator.gpus)
            if gpu in evaluator.working and gpu not in known
        ]
        return [future.result() for future in pending]
