"""The parameters of our templates for matrix products, as the tuner searches them."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.gemm.heuristics import PACKAGE, advice
from pytest_gpuenergy.gemm.recipe import TEMPLATE_FORM
from pytest_gpuenergy.gemm.templates import Parameters, ranked
from pytest_gpuenergy.support import FormError, InputError
from pytest_gpuenergy.tuning import Card, ParameterSpace, RecordFile, card_of
from pytest_gpuenergy.workloads import Gemm, Workload

_MOST_ADVISED = 4
"""Trials that the heuristics may choose: a quarter of 16."""
_EFFECT_SD = 0.05
"""See `TemplateProposer`; with it, 16 trials find most of what long searches on an H100 found
(``docs/notes/products.md``)."""


class TemplateSpace(ParameterSpace[Gemm]):
    """The kernels of our templates for one matrix product on one device.

    Args:
        workload: what they compute.
        device: compiles and runs them.

    Raises:
        InputError: there are none: it is no matrix product, or the device is not known.
    """

    def __init__(self, workload: Workload, device: Device) -> None:
        product, card = _product(workload), card_of(device)
        offered = ranked(product, card)
        advised = advice(product, device.name, card.capability)
        first = _first(offered, advised.tiles)
        said = [f"first {len(first)} with the tiles of {PACKAGE}"] if first else []
        said += [advised.said] if advised.said else []
        super().__init__(
            product,
            device,
            card,
            TEMPLATE_FORM,
            offered,
            first=first,
            said=said,
            effect_sd=_EFFECT_SD,
        )


def _first(offered: Sequence[Parameters], tiles: Sequence[tuple[int, int]]) -> list[Parameters]:
    """Of each tile that the heuristics advise, the parameters with the best estimate."""
    best: dict[tuple[int, int], Parameters] = {}
    for one in offered:
        best.setdefault((one.tile_m, one.tile_n), one)
    return [best[tile] for tile in tiles if tile in best][:_MOST_ADVISED]


def fits(file: RecordFile, rank: int, card: Card) -> bool:
    """Whether a card has the resources for the kernel of one rank.

    Raises:
        InputError: no such rank, or the records are not of a template.
    """
    try:
        parameters = TEMPLATE_FORM.parameters(file.record(rank).recipe)
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
