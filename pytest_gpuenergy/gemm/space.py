"""The parameters of our templates, as the tuner searches them; see `tuning.space.SearchSpace`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.gemm.card import Card, card_of
from pytest_gpuenergy.gemm.heuristics import PACKAGE, Advice, advice
from pytest_gpuenergy.gemm.proposer import TemplateProposer
from pytest_gpuenergy.gemm.recipe import TEMPLATE_FORM, TemplateForm
from pytest_gpuenergy.gemm.templates import Parameters, ranked
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.support.errors import InputError, KernelFault
from pytest_gpuenergy.support.json_input import FormError
from pytest_gpuenergy.tuning.records import RecordFile
from pytest_gpuenergy.tuning.space import Feedback
from pytest_gpuenergy.workloads.gemm import Gemm
from pytest_gpuenergy.workloads.workload import Workload

_MOST_ADVISED = 4
"""Trials that the heuristics may choose: a quarter of 16."""


@dataclass(frozen=True)
class TemplateSpace:
    """The kernels of our templates for one matrix product on one device.

    Attributes:
        workload: what they compute.
        device: compiles and runs them.

    Raises:
        InputError: there are none: it is no matrix product, or the device is not known.
    """

    workload: Workload
    device: Device
    _card: Card = field(init=False)
    _ranked: Sequence[Parameters] = field(init=False, repr=False)
    _advice: Advice = field(init=False, repr=False)

    def __post_init__(self) -> None:
        product, card = _product(self.workload), card_of(self.device)
        object.__setattr__(self, "_card", card)
        object.__setattr__(self, "_ranked", ranked(product, card))
        advised = advice(product, self.device.name, card.capability)
        object.__setattr__(self, "_advice", advised)

    @property
    def form(self) -> TemplateForm:
        """Recipes are parameters."""
        return TEMPLATE_FORM

    @property
    def effort(self) -> str:
        """Number of kernels, and what part the heuristics have."""
        parts = [f"{len(self._ranked)} choices of parameters"]
        if first := self._first():
            parts.append(f"first {len(first)} with the tiles of {PACKAGE}")
        if self._advice.said:
            parts.append(self._advice.said)
        return "; ".join(parts)

    def propose(self, folder: Path, known: Callable[[], Sequence[Feedback]]) -> TemplateProposer:
        """Begin with the most promising ones, as far as they are not known already."""
        del folder  # a proposer has no files
        proposer = TemplateProposer(
            _product(self.workload),
            self._card,
            self._ranked,
            lambda kernel: self.device.prepare([kernel]),
            self._first(),
        )
        proposer.learn(known())
        return proposer

    def _first(self) -> list[Parameters]:
        """Of each tile that the heuristics advise, the parameters with the best estimate."""
        best: dict[tuple[int, int], Parameters] = {}
        for one in self._ranked:
            best.setdefault((one.tile_m, one.tile_n), one)
        return [best[tile] for tile in self._advice.tiles if tile in best][:_MOST_ADVISED]

    def kernel(self, recipe: str) -> Kernel:
        """The kernel that a template makes from a recipe."""
        return kernel_of(self.workload, recipe)

    def toolchain(self, recipe: str) -> Mapping[str, Any]:
        """The version of this package."""
        del recipe  # the same for all
        return self.form.toolchain


def kernel_of(workload: Workload, recipe: str) -> Kernel:
    """The kernel of a recipe.

    Raises:
        KernelFault: the parameters do not suit the workload.
    """
    try:
        return TEMPLATE_FORM.parameters(recipe).kernel(_product(workload))
    except (FormError, InputError) as error:
        raise KernelFault("compile", str(error)) from None


def recorded_kernel(file: RecordFile, rank: int) -> Kernel:
    """The kernel of one rank of a record file.

    Raises:
        InputError: no such rank.
        KernelFault: its parameters do not suit its workload.
    """
    return file.named(kernel_of(file.workload, file.record(rank).recipe), rank)


def fits(file: RecordFile, rank: int, card: Card) -> bool:
    """Whether a card has the resources for the kernel of one rank.

    Raises:
        InputError: no such rank, or the records are not of a template.
    """
    try:
        parameters = TEMPLATE_FORM.parameters(file.record(rank).recipe)
    except FormError as error:
        raise InputError(f"Kernel {rank} of {file.workload.name}: {error}.") from None
    able = parameters.least_capability <= card.capability
    return able and parameters.resident(_product(file.workload), card) > 0


def _product(workload: Workload) -> Gemm:
    if not isinstance(workload, Gemm):
        raise InputError(
            f"{workload.name} is of the kind {workload.kind}: the templates compute matrix "
            "products, of the kind gemm."
        )
    return workload
