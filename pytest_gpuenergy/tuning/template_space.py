"""The parameters of templates, as the tuner searches them; see `tuning.space.SearchSpace`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import FormError, InputError, KernelFault
from pytest_gpuenergy.tuning.card import Card
from pytest_gpuenergy.tuning.records import RecordFile
from pytest_gpuenergy.tuning.space import Feedback
from pytest_gpuenergy.tuning.template import TemplateParameters, W
from pytest_gpuenergy.tuning.template_form import TemplateForm
from pytest_gpuenergy.tuning.template_proposer import TemplateProposer
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
