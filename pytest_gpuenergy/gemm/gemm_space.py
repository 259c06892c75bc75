"""The parameters of our templates for matrix products, as the tuner searches them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.gemm.heuristics import PACKAGE, advice
from pytest_gpuenergy.gemm.mma import MmaParameters
from pytest_gpuenergy.gemm.simt import SimtParameters
from pytest_gpuenergy.gemm.wgmma import WgmmaParameters
from pytest_gpuenergy.gemm.wgmma_tf32 import WgmmaTf32Parameters
from pytest_gpuenergy.support import FormError, InputError, UnavailableError
from pytest_gpuenergy.tuning import Card, ParameterSpace, RecordFile, TemplateForm, card_of
from pytest_gpuenergy.workloads import Gemm, Workload

GemmParameters = SimtParameters | MmaParameters | WgmmaParameters | WgmmaTf32Parameters
GEMM_TEMPLATES: Mapping[str, type[GemmParameters]] = {
    kind.template: kind
    for kind in (SimtParameters, MmaParameters, WgmmaParameters, WgmmaTf32Parameters)
}
"""By name."""


def able_templates(gemm: Gemm, card: Card) -> list[type[GemmParameters]]:
    """Those that compute in the product's mode, with instructions that the card has.

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


def rank_gemm_kernels(gemm: Gemm, card: Card) -> list[GemmParameters]:
    """Parameters that fit the card, the most promising first; those of equal estimate as listed.

    Raises:
        UnavailableError: the card does not have the product's mode.
        InputError: no parameters fit.
    """
    found = [one for kind in able_templates(gemm, card) for one in kind.fitting(gemm, card)]
    if not found:
        raise InputError(f"No parameters of the template fit {gemm.name} on this GPU.")
    return sorted(found, key=lambda one: one.cycles(gemm, card))


GEMM_FORM: TemplateForm[GemmParameters] = TemplateForm(GEMM_TEMPLATES)


_MOST_ADVISED = 4
"""Trials that the heuristics may choose: a quarter of 16."""
_EFFECT_SD = 0.05
"""See `TemplateProposer`; with it, 16 trials find most of what long searches on an H100 found
(``docs/notes/products.md``)."""


class GemmSpace(ParameterSpace[Gemm]):
    """The kernels of our templates for one matrix product on one device.

    Args:
        workload: what they compute.
        device: compiles and runs them.

    Raises:
        InputError: there are none: it is no matrix product, or the device is not known.
    """

    def __init__(self, workload: Workload, device: Device) -> None:
        product, card = _product(workload), card_of(device)
        offered = rank_gemm_kernels(product, card)
        advised = advice(product, device.name, card.capability)
        first = _first(offered, advised.tiles)
        said = [f"first {len(first)} with the tiles of {PACKAGE}"] if first else []
        said += [advised.said] if advised.said else []
        super().__init__(
            product,
            device,
            card,
            GEMM_FORM,
            offered,
            first=first,
            said=said,
            effect_sd=_EFFECT_SD,
        )


def _first(
    offered: Sequence[GemmParameters], tiles: Sequence[tuple[int, int]]
) -> list[GemmParameters]:
    """Of each tile that the heuristics advise, the parameters with the best estimate."""
    best: dict[tuple[int, int], GemmParameters] = {}
    for one in offered:
        best.setdefault((one.tile_m, one.tile_n), one)
    return [best[tile] for tile in tiles if tile in best][:_MOST_ADVISED]


def fits_card(file: RecordFile, rank: int, card: Card) -> bool:
    """Whether a card has the resources for the kernel of one rank.

    Raises:
        InputError: no such rank, or the records are not of a template.
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
