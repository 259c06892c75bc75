"""The search space of templates: parameters as recipes, and the order in which they are tried.

`TemplateProposer` learns a linear model of what the estimate gets wrong. The logarithm of a cost
is that of its estimate plus the effects of its single choices (a tile's rows, the number of
stages, ...), which are learned from trials by Bayesian linear regression (Bishop, "Pattern
Recognition and Machine Learning", 2006, section 3.3). A batch consists of the kernels with the
lowest costs that are still plausible: the mean less `_CURIOSITY` standard deviations. Each kernel
that is chosen counts as known, at its mean, for the rest of the batch, so that a batch does not
repeat one idea.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct

from pytest_gpuenergy import __version__
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    KernelFault,
    convert,
    decode,
    member,
    read_bytes,
    shown,
    typed,
)
from pytest_gpuenergy.tuning.records import RecordFile
from pytest_gpuenergy.tuning.search_space import TEMPLATE, Candidate, Feedback
from pytest_gpuenergy.tuning.template import TemplateParameters, W
from pytest_gpuenergy.workloads import Workload

P = TypeVar("P", bound=TemplateParameters[Any])

_MAX_BYTES = 256 << 20


class _Recipe(Struct, frozen=True, forbid_unknown_fields=True):
    template: str
    parameters: dict[str, int]
    time_ms: float | None = None


@dataclass(frozen=True)
class TemplateForm(Generic[P]):
    """A `RecipeForm` whose recipes are a template's name, its parameters and a time.

    Attributes:
        templates: the known templates by name.
    """

    templates: Mapping[str, type[P]] = field(compare=False, repr=False)
    tuner: str = TEMPLATE
    file_name: str = "parameters.jsonl"
    variant: str = TEMPLATE

    def recipe(self, parameters: P) -> str:
        """Return the recipe of these parameters, without a time."""
        return recipe_of(parameters)

    def parameters(self, recipe: str) -> P:
        """Return the parameters in a recipe.

        Raises:
            FormError: it has no valid parameters.
        """
        return self._parameters(decode(recipe, _Recipe, "the recipe"))

    def identity(self, recipe: str) -> str:
        """Return the recipe without its time."""
        return untimed(recipe)

    def with_time(self, recipe: str, time_ms: float | None) -> str:
        """Return the recipe with the time of its trial; null stands for a failed trial."""
        decoded = decode(recipe, _Recipe)
        return _text(_Recipe(decoded.template, decoded.parameters, time_ms))

    def time_ms(self, recipe: str) -> float:
        """Return the time of its trial."""
        decoded = decode(recipe, _Recipe)
        return float("inf") if decoded.time_ms is None else decoded.time_ms

    def line(self, recipe: str) -> str:
        """The recipe itself."""
        return recipe

    def read(self, path: Path) -> list[str]:
        """Return the recipes in a file, one per line."""
        content = read_bytes(path, "list of parameters", _MAX_BYTES)
        recipes = []
        for number, line in enumerate(content.splitlines(), start=1):
            try:
                recipes.append(_text(decode(line, _Recipe)))
            except FormError as error:
                raise InputError(
                    f"Line {number} of {path} cannot be used, because {error}: restore the file, "
                    "or name another folder with --out."
                ) from None
        return recipes

    def check_stored(self, recipe: str, *, ran: bool) -> None:
        """Check that the parameters are valid, and that a trial that ran has a time."""
        self.parameters(recipe)
        if ran and decode(recipe, _Recipe).time_ms is None:
            raise FormError("its time is missing")

    def check(self, value: object, workload: Workload) -> str:
        """Return the recipe of a trial that ran, if its template computes the workload."""
        decoded = convert(value, _Recipe, "the recipe")
        if not self._parameters(decoded).computes(workload):
            raise FormError(f"the template {decoded.template} does not compute {workload.name}")
        if decoded.time_ms is None or not 0 < decoded.time_ms < float("inf"):
            raise FormError(f"the time is {shown(decoded.time_ms)}")
        return _text(decoded)

    def check_toolchain(self, header: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the version of this package, whose templates these are."""
        top = typed(header, dict, "the document")
        return {"gpuenergy": member(top, "gpuenergy", str)}

    @property
    def toolchain(self) -> Mapping[str, Any]:
        """The version of this package, with which new recipes are made."""
        return {"gpuenergy": __version__}

    def _parameters(self, recipe: _Recipe) -> P:
        kind = self.templates.get(recipe.template)
        if kind is None:
            raise FormError(
                f"the template is {shown(recipe.template)} instead of {' or '.join(self.templates)}"
            )
        try:
            return kind.of(recipe.parameters)
        except InputError as error:
            raise FormError(f"the parameters are not valid ({str(error).rstrip('.')})") from None


def recipe_of(parameters: TemplateParameters[Any]) -> str:
    """Return the recipe of these parameters, without a time."""
    return _text(_Recipe(parameters.template, parameters.numbers))


def untimed(recipe: str) -> str:
    """Return a recipe without its time."""
    decoded = decode(recipe, _Recipe)
    return _text(_Recipe(decoded.template, decoded.parameters))


def _text(recipe: _Recipe) -> str:
    content = {"template": recipe.template, "parameters": recipe.parameters}
    return json.dumps({**content, "time_ms": recipe.time_ms}, separators=(",", ":"))


@dataclass(frozen=True)
class ParameterSpace(Generic[W]):
    """The kernels of templates for one workload on one device.

    Attributes:
        workload: the workload that they compute.
        device: compiles and runs the kernels.
        form: the form of the recipes.
        parameters: the parameters of all kernels, the most promising first.
        expected: the expected cost of each of them, such as its clock cycles.
        first: the parameters to try before all others.
        remarks: phrases about these, for the user.
        at_once: see `TemplateProposer`.
        effect_sd: see `TemplateProposer`.
    """

    workload: W
    device: Device
    form: TemplateForm[Any]
    parameters: Sequence[TemplateParameters[W]]
    expected: Sequence[float]
    first: Sequence[TemplateParameters[W]] = ()
    remarks: Sequence[str] = ()
    at_once: int = 4
    effect_sd: float = 0.2

    @property
    def effort(self) -> str:
        """The number of kernels, and what is tried first."""
        return "; ".join([f"{len(self.parameters)} choices of parameters", *self.remarks])

    def propose(self, folder: Path, known: Callable[[], Sequence[Feedback]]) -> TemplateProposer[W]:
        """Start with the most promising parameters that are not known already."""
        del folder  # a proposer has no files
        proposer = TemplateProposer(
            self.workload,
            self.parameters,
            self.expected,
            lambda kernel: self.device.prepare([kernel]),
            self.first,
            self.at_once,
            self.effect_sd,
            # On an emulated GPU, the processors that would compile are those that run kernels.
            ahead=0 if self.device.emulated else _AHEAD,
        )
        proposer.learn(known())
        return proposer

    def kernel(self, recipe: str) -> Kernel:
        """Return the kernel that a template makes from a recipe."""
        return kernel_of(self.form, self.workload, recipe)

    def toolchain(self, recipe: str) -> Mapping[str, Any]:
        """Return the version of this package."""
        del recipe  # the same for all
        return self.form.toolchain


def kernel_of(form: TemplateForm[Any], workload: Workload, recipe: str) -> Kernel:
    """Return the kernel of a recipe.

    Raises:
        KernelFault: the parameters do not suit the workload.
    """
    try:
        parameters: TemplateParameters[Any] = form.parameters(recipe)
        return parameters.kernel(workload)
    except (FormError, InputError) as error:
        raise KernelFault("compile", str(error)) from None


def recorded_kernel(form: TemplateForm[Any], file: RecordFile, rank: int) -> Kernel:
    """Return the kernel of one rank of a record file whose recipes have this form.

    Raises:
        InputError: there is no such rank.
        KernelFault: its parameters do not suit its workload.
    """
    return file.named(kernel_of(form, file.workload, file.record(rank).recipe), rank)


if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    _Numbers = npt.NDArray[np.float64]

_MAX_UNTIMED = 32
"""The largest number of kernels that have been chosen and not timed yet."""
_AHEAD = 24
"""The number of these that are compiled while the others, a batch, are timed. Timing a kernel takes
a twelfth of the time that compiling it takes, so that 16 processes that compile must not wait for a
choice."""
_SHARE = 4
"""A batch is at most a quarter as large as the number of known kernels: early on, the model learns
often."""
_COMMON_SD = 100.0
"""The standard deviation of what all kernels share: the clock, and the unit of the cost."""
_NOISE_SD = 0.05
"""The standard deviation of the logarithm of a cost around the sum of its effects."""
_CURIOSITY = 1.0
"""The number of standard deviations below the mean at which a cost is still plausible."""
_FEW = 8
"""For each kernel to choose, the number of candidates whose costs are updated after each choice."""
_FAILED, _FAILED_SD = math.log(2.0), 0.5
"""A kernel that fails counts as taking about twice as long as expected."""


class TemplateProposer(Generic[W]):
    """A `Proposer` of parameters of templates.

    Args:
        workload: the workload that they compute.
        space: all parameters.
        expected: the expected cost of each of them; its unit has no effect.
        prepare: starts to compile a kernel.
        first: the parameters in ``space`` to try before all others.
        at_once: the number of candidates in a batch while little is known.
        effect_sd: the standard deviation of the effect of one choice on the logarithm of the cost,
            before anything is known.
        ahead: the largest number of candidates to choose and prepare beyond those of a batch, at
            most a quarter of those still wanted. They are the next ones, so that a choice knows
            that many costs fewer.
    """

    processes = 1

    def __init__(
        self,
        workload: W,
        space: Sequence[TemplateParameters[W]],
        expected: Sequence[float],
        prepare: Callable[[Kernel], object],
        first: Sequence[TemplateParameters[W]] = (),
        at_once: int = 4,
        effect_sd: float = 0.2,
        ahead: int = 0,
    ) -> None:
        self._workload = workload
        self._space = space
        self._prepare = prepare
        self._ahead = ahead
        self._at_once = at_once
        self._places: dict[str, int] = {}
        """The places of the recipes of which costs may be learned."""
        self._left = set(range(len(space)))
        self._first = [space.index(parameters) for parameters in first]
        self._chosen: deque[Candidate] = deque()
        self._model = _Effects(
            [parameters.choices(workload) for parameters in space],
            expected,
            effect_sd,
        )

    def take(self, wanted: int, stop: Event) -> list[Candidate]:
        """Return the most promising parameters that were not taken before."""
        del stop  # they are made at once
        known = len(self._space) - len(self._left) - len(self._chosen)
        first = [place for place in self._first if place in self._left]
        most = _MAX_UNTIMED - self._ahead
        batch = max(len(first), min(max(self._at_once, known // _SHARE), most))
        ahead = min(self._ahead, wanted // _SHARE)
        more = min(batch + ahead, wanted) - len(self._chosen)
        self._choose(first[: max(0, more)])
        if (more := more - len(first)) > 0:
            self._choose(self._model.best(self._left, more))
        return [self._chosen.popleft() for _ in range(min(batch, wanted, len(self._chosen)))]

    def _choose(self, places: Sequence[int]) -> None:
        """Make the candidates of ``places`` the last of those that are chosen."""
        self._left.difference_update(places)
        for place in places:
            recipe = recipe_of(self._space[place])
            self._places[recipe] = place
            try:
                kernel = self._space[place].kernel(self._workload)
            except InputError as error:
                self._chosen.append(Candidate(recipe, KernelFault("compile", str(error))))
            else:
                self._prepare(kernel)
                self._chosen.append(Candidate(recipe, kernel))

    def learn(self, feedback: Sequence[Feedback]) -> None:
        """Learn from costs, and from which kernels fail."""
        if any(untimed(trial.recipe) not in self._places for trial in feedback):
            # Of an earlier search; a folder of another card may have recipes of no place.
            self._places = {recipe_of(one): place for place, one in enumerate(self._space)}
        for trial in feedback:
            place = self._places.get(untimed(trial.recipe))
            if place is not None:
                self._left.discard(place)
                self._model.learn(place, trial.cost_s)

    def close(self) -> None:
        """Do nothing: no work is in progress."""


class _Effects:
    """The linear model of all kernels of a space, by their places in it.

    Args:
        choices: the choices of each kernel, by name; each pair of name and value has an effect.
        expected: the expected cost of each kernel.
        effect_sd: see `TemplateProposer`.
    """

    def __init__(
        self, choices: Sequence[dict[str, Any]], expected: Sequence[float], effect_sd: float
    ) -> None:
        import numpy as np

        columns: dict[tuple[str, Any], int] = {}
        places, numbers = list[int](), list[int]()
        for place, parameters in enumerate(choices):
            for pair in parameters.items():
                places.append(place)
                numbers.append(columns.setdefault(pair, len(columns) + 1))
        self._rows = np.zeros((len(choices), len(columns) + 1))
        self._rows[:, 0] = 1
        self._rows[places, numbers] = 1
        self._expected = np.log(expected)
        prior_sd = np.array([_COMMON_SD, *[effect_sd] * len(columns)])
        self._covariance = np.diag(prior_sd**2)
        self._mean = np.zeros(len(columns) + 1)

    def learn(self, place: int, cost: float | None) -> None:
        """Learn the cost of a kernel; None if it failed."""
        row = self._rows[place]
        if cost is None:
            surprise, sd = _FAILED, _FAILED_SD
        else:
            surprise = math.log(cost) - float(self._expected[place] + row @ self._mean)
            sd = _NOISE_SD
        gain, self._covariance = _learned(self._covariance, row, sd)
        self._mean = self._mean + gain * surprise

    def best(self, places: set[int], count: int) -> list[int]:
        """Return the most promising of ``places``, the best first."""
        import numpy as np

        left = np.array(sorted(places), dtype=int)
        rows = self._rows[left]
        means = self._expected[left] + rows @ self._mean
        variances = ((rows @ self._covariance) * rows).sum(axis=1)
        least = means - _CURIOSITY * np.sqrt(np.maximum(variances, 0))
        few = _FEW * count
        while few < left.size:
            order = np.argpartition(least, few)
            near = np.sort(order[:few])
            chosen, last = self._best_of(rows[near], means[near], variances[near], count)
            # A choice only makes other costs less uncertain, so that no cost seems lower for it:
            # what is not among the few is no better if it did not seem better at first.
            if last <= least[order[few]]:
                return [int(place) for place in left[near[chosen]]]
            few *= _FEW
        chosen, _ = self._best_of(rows, means, variances, count)
        return [int(place) for place in left[chosen]]

    def _best_of(
        self, rows: _Numbers, means: _Numbers, variances: _Numbers, count: int
    ) -> tuple[list[int], float]:
        """Return the indices of the most promising rows, and the least cost of the last one."""
        import numpy as np

        covariance, chosen, last = self._covariance, list[int](), -math.inf
        while len(chosen) < min(count, len(rows)):
            least = means - _CURIOSITY * np.sqrt(np.maximum(variances, 0))
            at = int(np.argmin(least))
            last = float(least[at])
            chosen.append(at)
            gain, after = _learned(covariance, rows[at], _NOISE_SD)
            variances = variances - (rows @ gain) * (rows @ (covariance @ rows[at]))
            covariance, means[at] = after, np.inf
        return chosen, last


def _learned(covariance: _Numbers, row: _Numbers, sd: float) -> tuple[_Numbers, _Numbers]:
    """Return the gain and the new covariance of effects whose sum over ``row`` was observed."""
    import numpy as np

    spread = covariance @ row
    gain = spread / (row @ spread + sd**2)
    return gain, covariance - np.outer(gain, spread)
