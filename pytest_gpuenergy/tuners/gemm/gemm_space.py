"""The search space of matrix products: the templates, and the order in which they are tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.support import FormError, InputError, UnavailableError
from pytest_gpuenergy.tuners.gemm.heuristics import PACKAGE, advise_tiles
from pytest_gpuenergy.tuners.gemm.mma import MmaParameters
from pytest_gpuenergy.tuners.gemm.simt import SimtParameters
from pytest_gpuenergy.tuners.gemm.wgmma import WgmmaParameters
from pytest_gpuenergy.tuners.gemm.wgmma_tf32 import WgmmaTf32Parameters
from pytest_gpuenergy.tuning import (
    CardResources,
    ParameterSpace,
    RecordFile,
    TemplateForm,
    card_resources,
)
from pytest_gpuenergy.workloads import Gemm, Workload

GemmParameters = SimtParameters | MmaParameters | WgmmaParameters | WgmmaTf32Parameters
GEMM_TEMPLATES: Mapping[str, type[GemmParameters]] = {
    kind.template: kind
    for kind in (SimtParameters, MmaParameters, WgmmaParameters, WgmmaTf32Parameters)
}
"""The templates by name."""


def able_templates(gemm: Gemm, card: CardResources) -> list[type[GemmParameters]]:
    """Return the templates for the product's mode whose instructions the card has.

    Raises:
        UnavailableError: there are none.
    """
    kinds = [kind for kind in GEMM_TEMPLATES.values() if gemm.mode in kind.modes]
    able = [kind for kind in kinds if kind.suits(card)]
    if not able:
        least = min(kind.least_capability for kind in kinds)
        raise UnavailableError(
            f"{gemm.name} in mode {gemm.mode} takes a GPU of sm_{least} or later, and this one is "
            f"of sm_{card.capability}."
        )
    return able


def rank_gemm_kernels(gemm: Gemm, card: CardResources) -> list[GemmParameters]:
    """Return the parameters that fit the card, the most promising first.

    Raises:
        UnavailableError: the card does not have the product's mode.
        InputError: no parameters fit.
    """
    kinds = able_templates(gemm, card)
    found = [parameters for kind in kinds for parameters in kind.fitting(gemm, card)]
    if not found:
        raise InputError(f"No parameters of the template fit {gemm.name} on this GPU.")
    return sorted(found, key=lambda parameters: parameters.cycles(gemm, card))


GEMM_FORM: TemplateForm[GemmParameters] = TemplateForm(GEMM_TEMPLATES)
"""The form of these templates' recipes."""


_MOST_ADVISED = 4
"""The number of trials that the heuristics may choose: a quarter of 16."""
_EFFECT_SD = 0.05
"""See `TemplateProposer`; with it, 16 trials find most of what long searches on an H100 found
(``docs/notes/products.md``)."""


class GemmSpace(ParameterSpace[Gemm]):
    """The kernels of our templates for one matrix product on one device.

    Args:
        workload: the workload that they compute.
        device: compiles and runs the kernels.

    Raises:
        InputError: the workload is no matrix product, or no parameters fit.
        UnavailableError: the device is not known, or does not have the product's mode.
    """

    def __init__(self, workload: Workload, device: Device) -> None:
        product, card = _product(workload), card_resources(device)
        offered = rank_gemm_kernels(product, card)
        advised = advise_tiles(product, device.name, card.capability)
        first = _first(offered, advised.tiles)
        remarks = [f"first {len(first)} with the tiles of {PACKAGE}"] if first else []
        remarks += [advised.problem] if advised.problem else []
        super().__init__(
            product,
            device,
            card,
            GEMM_FORM,
            offered,
            first=first,
            remarks=remarks,
            effect_sd=_EFFECT_SD,
        )


def _first(
    offered: Sequence[GemmParameters], tiles: Sequence[tuple[int, int]]
) -> list[GemmParameters]:
    """Return, for each tile that the heuristics advise, the parameters with the best estimate."""
    best: dict[tuple[int, int], GemmParameters] = {}
    for parameters in offered:
        best.setdefault((parameters.tile_m, parameters.tile_n), parameters)
    return [best[tile] for tile in tiles if tile in best][:_MOST_ADVISED]


def fits_card(file: RecordFile, rank: int, card: CardResources) -> bool:
    """Return whether a card has the resources for the kernel of one rank.

    Raises:
        InputError: there is no such rank, or the records are not of a template.
    """
    try:
        parameters = GEMM_FORM.parameters(file.record(rank).recipe)
    except FormError as error:
        raise InputError(f"Kernel {rank} of {file.workload.name}: {error}.") from None
    return parameters.runs_on(card) and parameters.resident(_product(file.workload), card) > 0


def _product(workload: Workload) -> Gemm:
    if not isinstance(workload, Gemm):
        raise InputError(
            f"{workload.name} is of the kind {workload.kind}: the templates compute matrix "
            "products, of the kind gemm."
        )
    return workload
