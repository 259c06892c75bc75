"""The templates for products and convolutions, and the order in which their kernels are tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.support import InputError, UnavailableError
from pytest_gpuenergy.tuners.conv.conv_templates import (
    DepthwiseParameters,
    GroupedParameters,
    NarrowParameters,
)
from pytest_gpuenergy.tuners.conv.implicit import ImplicitParameters
from pytest_gpuenergy.tuners.conv.implicit_mma import ImplicitMmaParameters
from pytest_gpuenergy.tuners.conv.shallow import ShallowParameters
from pytest_gpuenergy.tuners.gemm.costs import FittedCosts, fitted
from pytest_gpuenergy.tuners.gemm.estimate import estimated_cycles
from pytest_gpuenergy.tuners.gemm.heuristics import PACKAGE, advise_tiles
from pytest_gpuenergy.tuners.gemm.mma import MmaParameters
from pytest_gpuenergy.tuners.gemm.simt import SimtParameters
from pytest_gpuenergy.tuners.gemm.skinny import SkinnyParameters
from pytest_gpuenergy.tuners.gemm.tiling import Tiling
from pytest_gpuenergy.tuners.gemm.wgmma import WgmmaParameters
from pytest_gpuenergy.tuners.gemm.wgmma_float8 import WgmmaFloat8Parameters
from pytest_gpuenergy.tuners.gemm.wgmma_tf32 import WgmmaTf32Parameters
from pytest_gpuenergy.tuning import (
    CardResources,
    ParameterSpace,
    TemplateForm,
    TemplateParameters,
    card_resources,
)
from pytest_gpuenergy.workloads import Conv2d, Gemm, SumsOfProducts, Workload

TEMPLATES: Mapping[str, type[TemplateParameters[Any]]] = {
    kind.template: kind
    for kind in (
        *(SimtParameters, MmaParameters),
        *(WgmmaParameters, WgmmaFloat8Parameters, WgmmaTf32Parameters, SkinnyParameters),
        *(DepthwiseParameters, GroupedParameters, NarrowParameters),
        *(ImplicitParameters, ImplicitMmaParameters, ShallowParameters),
    )
}
"""The templates by name."""

TEMPLATE_FORM: TemplateForm[Any] = TemplateForm(TEMPLATES)
"""The form of all templates' recipes."""

_MAX_CONVOLUTION_KERNELS = 5000
"""The most parameters in the search of a convolution: more would only make it slower."""


def templates_of(workload: Workload) -> list[type[TemplateParameters[Any]]]:
    """Return the templates for a workload.

    Raises:
        InputError: there are none.
    """
    kinds = [kind for kind in TEMPLATES.values() if kind.computes(workload)]
    if not kinds and isinstance(workload, Conv2d):
        options = " ".join(f"{name}={value}" for name, value in workload.options.items())
        instead = ": choose mode 3xtf32, which is as exact" if workload.mode == "float32" else ""
        raise InputError(
            f"{workload.name} is a convolution with {options}, which no template computes{instead}."
        )
    if not kinds:
        raise InputError(
            f"{workload.name} is of the kind {workload.kind}: the templates compute matrix "
            "products, of the kind gemm, and convolutions, of the kind conv2d."
        )
    return kinds


def able_templates(workload: Workload, card: CardResources) -> list[type[TemplateParameters[Any]]]:
    """Return the templates for a workload whose instructions the card has.

    Raises:
        InputError: there are no templates for the workload.
        UnavailableError: there are some, but none for the card.
    """
    kinds = templates_of(workload)
    able = [kind for kind in kinds if kind.suits(card)]
    if not able:
        least = min(kind.min_capability for kind in kinds)
        mode = f" in mode {workload.mode}" if isinstance(workload, SumsOfProducts) else ""
        raise UnavailableError(
            f"{workload.name}{mode} takes a GPU of sm_{least} or later, and this one is of "
            f"sm_{card.capability}."
        )
    return able


def rank_kernels(
    workload: Workload, card: CardResources, estimate: FittedCosts | None = None
) -> list[TemplateParameters[Any]]:
    """Return the parameters of templates that fit the card, the most promising first.

    Args:
        workload: what they compute.
        card: the resources of the card.
        estimate: what is known of products; None stands for what was fitted to stored trials.

    Raises:
        InputError: there are no templates for the workload, or no parameters fit.
        UnavailableError: no template for the workload suits the card.
    """
    return [parameters for parameters, _ in _estimated(workload, card, estimate)]


def best_parameters(gemm: Gemm, card: CardResources) -> TemplateParameters[Any]:
    """Return the first of `rank_kernels` for a product, which takes less time than all of them.

    Raises:
        InputError: as of `rank_kernels`.
        UnavailableError: as of `rank_kernels`.
    """
    best, _ = _estimated(gemm, card, None, of_best=True)[0]
    return best


def _estimated(
    workload: Workload,
    card: CardResources,
    estimate: FittedCosts | None,
    *,
    of_best: bool = False,
) -> list[tuple[TemplateParameters[Any], float]]:
    """Return the parameters as of `rank_kernels`, with their expected clock cycles."""
    kinds = able_templates(workload, card)
    ranked = [parameters for kind in kinds for parameters in kind.fitting(workload, card)]
    if not ranked and isinstance(workload, Conv2d):
        s = workload.shape
        height, width = s.window
        dilated = f", {height} x {width} with its dilation" if s.dilation > 1 else ""
        raise InputError(
            f"{workload.name} has a window of {s.KH} x {s.KW}{dilated}, which "
            "does not fit the registers in which the templates keep it: search TVM's schedules "
            "with --tuner tvm."
        )
    if not ranked:
        reasons = [
            f"{kind.template} {reason}"
            for kind in kinds
            if issubclass(kind, Tiling) and isinstance(workload, Gemm)
            if (reason := kind.refusal(workload))
        ]
        why = f": {', and '.join(reasons)}" if reasons else ""
        raise InputError(f"No parameters of the templates fit {workload.name} on this GPU{why}.")
    if isinstance(workload, Gemm):
        tilings = cast("list[Tiling]", ranked)
        costs = estimate or fitted()
        expected = estimated_cycles(workload, card, tilings, costs, of_best=of_best)
    else:
        expected = [parameters.cycles(workload, card) for parameters in ranked]
    order = sorted(zip(ranked, expected, strict=True), key=lambda pair: pair[1])
    return order[:_MAX_CONVOLUTION_KERNELS] if isinstance(workload, Conv2d) else order


_CONVOLUTIONS_AT_ONCE = 16
"""The convolutions of an early batch: they compile in tenths of a second, on several cores at
once."""
_EFFECT_SD_OF_CONVOLUTION = 0.1
"""See `TemplateProposer`. It is small because the launch is the greater part of most times."""
_EFFECT_SD_OF_PRODUCT = 0.05
"""See `TemplateProposer`; with it, 16 trials find most of what long searches on an H100 found
(``docs/notes/products.md``)."""
_MAX_ADVISED = 4
"""The number of trials that the heuristics may choose: a quarter of 16."""


def template_space(
    workload: Workload, device: Device, estimate: FittedCosts | None = None
) -> ParameterSpace[Any]:
    """Return the search space of our templates for a workload on a device.

    Args:
        workload: what the kernels compute.
        device: the device.
        estimate: see `rank_kernels`.

    Raises:
        InputError: as of `rank_kernels`.
        UnavailableError: as of `rank_kernels`, or the device is not known.
    """
    card = card_resources(device)
    estimated = _estimated(workload, card, estimate)
    offered = [parameters for parameters, _ in estimated]
    expected = [cycles for _, cycles in estimated]
    if not isinstance(workload, Gemm):
        return ParameterSpace(
            workload,
            device,
            TEMPLATE_FORM,
            offered,
            expected,
            at_once=_CONVOLUTIONS_AT_ONCE,
            effect_sd=_EFFECT_SD_OF_CONVOLUTION,
        )
    tiles, problem = advise_tiles(workload, device.name, card.capability)
    best: dict[tuple[int, int], Tiling] = {}  # by the estimate, of each tile
    for parameters in offered:
        assert isinstance(parameters, Tiling)
        best.setdefault((parameters.tile_m, parameters.tile_n), parameters)
    first = [best[tile] for tile in tiles if tile in best][:_MAX_ADVISED]
    remarks = [f"first {len(first)} with the tiles of {PACKAGE}"] if first else []
    return ParameterSpace(
        workload,
        device,
        TEMPLATE_FORM,
        offered,
        expected,
        first=first,
        remarks=[*remarks, *([problem] if problem else [])],
        effect_sd=_EFFECT_SD_OF_PRODUCT,
    )
