"""The parameters of templates, as the tuner searches them; see `tuning.space.SearchSpace`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Generic

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import FormError, InputError, KernelFault
from pytest_gpuenergy.tuning.records import RecordFile
from pytest_gpuenergy.tuning.search_space import Candidate, Feedback
from pytest_gpuenergy.tuning.template import Card, TemplateParameters, W
from pytest_gpuenergy.tuning.template_form import TemplateForm, recipe_of, untimed
from pytest_gpuenergy.workloads import Workload


class ParameterSpace(Generic[W]):
    """The kernels of templates for one workload on one device.

    Args:
        workload: what they compute.
        device: compiles and runs them.
        card: its resources.
        form: of their recipes.
        parameters: of all kernels, the most promising first.
        first: those to try before all others, and ``said``, a phrase about them.
        at_once: see `TemplateProposer`, like ``effect_sd``.
    """

    def __init__(
        self,
        workload: W,
        device: Device,
        card: Card,
        form: TemplateForm[Any],
        parameters: Sequence[TemplateParameters[W]],
        *,
        first: Sequence[TemplateParameters[W]] = (),
        said: Sequence[str] = (),
        at_once: int = 4,
        effect_sd: float = 0.2,
    ) -> None:
        self.workload = workload
        self.form = form
        self._device = device
        self._card = card
        self._parameters = parameters
        self._first = first
        self._said = said
        self._at_once = at_once
        self._effect_sd = effect_sd

    @property
    def effort(self) -> str:
        """Number of kernels, and what is tried first."""
        return "; ".join([f"{len(self._parameters)} choices of parameters", *self._said])

    def propose(self, folder: Path, known: Callable[[], Sequence[Feedback]]) -> TemplateProposer[W]:
        """Begin with the most promising ones, as far as they are not known already."""
        del folder  # a proposer has no files
        proposer = TemplateProposer(
            self.workload,
            self._card,
            self._parameters,
            lambda kernel: self._device.prepare([kernel]),
            self._first,
            self._at_once,
            self._effect_sd,
        )
        proposer.learn(known())
        return proposer

    def kernel(self, recipe: str) -> Kernel:
        """The kernel that a template makes from a recipe."""
        return kernel_of(self.form, self.workload, recipe)

    def toolchain(self, recipe: str) -> Mapping[str, Any]:
        """The version of this package."""
        del recipe  # the same for all
        return self.form.toolchain


def kernel_of(form: TemplateForm[Any], workload: Workload, recipe: str) -> Kernel:
    """The kernel of a recipe.

    Raises:
        KernelFault: the parameters do not suit the workload.
    """
    try:
        parameters: TemplateParameters[Any] = form.parameters(recipe)
        return parameters.kernel(workload)
    except (FormError, InputError) as error:
        raise KernelFault("compile", str(error)) from None


def recorded_kernel(file: RecordFile, rank: int) -> Kernel:
    """The kernel of one rank of a record file whose recipes are of templates.

    Raises:
        InputError: no such rank.
        KernelFault: its parameters do not suit its workload.
    """
    assert isinstance(file.form, TemplateForm)
    return file.named(kernel_of(file.form, file.workload, file.record(rank).recipe), rank)


if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    _Numbers = npt.NDArray[np.float64]

_LARGEST_BATCH = 32
_SHARE = 4
"""A batch has as many candidates as a quarter of what is known: the model learns often at first."""
_COMMON_SD = 100.0
"""Of what all kernels have in common: the clock, and the unit of the cost."""
_NOISE_SD = 0.05
"""Of a cost around the sum of its effects."""
_CURIOSITY = 1.0
_FAILED, _FAILED_SD = math.log(2.0), 0.5
"""A kernel that fails counts as one that takes twice as long as expected, give or take."""


class TemplateProposer(Generic[W]):
    """Proposes parameters of templates; see `tuning.space.Proposer`.

    Args:
        workload: what they compute.
        card: on which it runs.
        space: all parameters.
        prepare: starts to compile a kernel.
        first: those of ``space`` to try before all others.
        at_once: candidates of a batch while little is known.
        effect_sd: of the effect of one choice on the logarithm of the cost, before anything is
            known.
    """

    processes = 1

    def __init__(
        self,
        workload: W,
        card: Card,
        space: Sequence[TemplateParameters[W]],
        prepare: Callable[[Kernel], object],
        first: Sequence[TemplateParameters[W]] = (),
        at_once: int = 4,
        effect_sd: float = 0.2,
    ) -> None:
        self._workload = workload
        self._space = space
        self._prepare = prepare
        self._at_once = at_once
        self._place = {recipe_of(one): place for place, one in enumerate(space)}
        self._left = set(range(len(space)))
        self._first = [self._place[recipe_of(one)] for one in first]
        self._model = _Effects(
            [one.choices(workload) for one in space],
            [one.cycles(workload, card) for one in space],
            effect_sd,
        )

    def take(self, wanted: int, stop: Event) -> list[Candidate]:
        """The most promising ones that were not taken before."""
        del stop  # they are made at once
        known = len(self._space) - len(self._left)
        batch = min(max(self._at_once, known // _SHARE), _LARGEST_BATCH)
        chosen = [place for place in self._first if place in self._left][:wanted]
        self._left.difference_update(chosen)
        best = self._model.best(self._left, max(0, min(wanted, batch) - len(chosen)))
        self._left.difference_update(best)
        chosen += best
        return [self._candidate(self._space[place]) for place in chosen]

    def learn(self, feedback: Sequence[Feedback]) -> None:
        """Learn from costs, and from which kernels fail."""
        for one in feedback:
            place = self._place.get(untimed(one.recipe))
            if place is not None:  # another card's folder may have others
                self._left.discard(place)
                self._model.learn(place, one.cost_s)

    def close(self) -> None:
        """Nothing is under way."""

    def _candidate(self, parameters: TemplateParameters[W]) -> Candidate:
        recipe = recipe_of(parameters)
        try:
            kernel = parameters.kernel(self._workload)
        except InputError as error:
            return Candidate(recipe, KernelFault("compile", str(error)))
        self._prepare(kernel)
        return Candidate(recipe, kernel)


class _Effects:
    """The linear model of all kernels of a space, by their places in it.

    Args:
        choices: of each kernel, by name; a pair of name and value has an effect.
        cycles: estimated for each.
        effect_sd: see `TemplateProposer`.
    """

    def __init__(
        self, choices: Sequence[dict[str, Any]], cycles: Sequence[float], effect_sd: float
    ) -> None:
        import numpy as np

        pairs = sorted({pair for one in choices for pair in one.items()}, key=repr)
        column = {pair: number for number, pair in enumerate(pairs, start=1)}
        self._rows = np.zeros((len(choices), len(pairs) + 1))
        self._rows[:, 0] = 1
        for place, one in enumerate(choices):
            self._rows[place, [column[pair] for pair in one.items()]] = 1
        self._expected = np.log(cycles)
        prior_sd = np.array([_COMMON_SD, *[effect_sd] * len(pairs)])
        self._covariance = np.diag(prior_sd**2)
        self._mean = np.zeros(len(pairs) + 1)

    def learn(self, place: int, cost: float | None) -> None:
        """Add what a kernel cost; None if it failed."""
        row = self._rows[place]
        if cost is None:
            surprise, sd = _FAILED, _FAILED_SD
        else:
            surprise = math.log(cost) - float(self._expected[place] + row @ self._mean)
            sd = _NOISE_SD
        gain, self._covariance = _learned(self._covariance, row, sd)
        self._mean = self._mean + gain * surprise

    def best(self, places: set[int], count: int) -> list[int]:
        """The most promising of ``places``, the best first."""
        import numpy as np

        left = np.array(sorted(places), dtype=int)
        rows, covariance = self._rows[left], self._covariance
        means = self._expected[left] + rows @ self._mean
        variances = np.einsum("ij,ij->i", rows @ covariance, rows)
        chosen: list[int] = []
        while len(chosen) < min(count, left.size):
            at = int(np.argmin(means - _CURIOSITY * np.sqrt(np.maximum(variances, 0))))
            chosen.append(int(left[at]))
            gain, after = _learned(covariance, rows[at], _NOISE_SD)
            variances -= (rows @ gain) * (rows @ (covariance @ rows[at]))
            covariance, means[at] = after, np.inf
        return chosen


def _learned(covariance: _Numbers, row: _Numbers, sd: float) -> tuple[_Numbers, _Numbers]:
    """The gain and the new covariance of effects whose sum over ``row`` was seen."""
    import numpy as np

    spread = covariance @ row
    gain = spread / (row @ spread + sd**2)
    return gain, covariance - np.outer(gain, spread)
