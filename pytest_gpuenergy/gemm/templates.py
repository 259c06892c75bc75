"""Which templates there are, and the parameters of each that suit a product and a card."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuenergy.gemm.mma import MmaParameters
from pytest_gpuenergy.gemm.simt import SimtParameters
from pytest_gpuenergy.gemm.wgmma import WgmmaParameters
from pytest_gpuenergy.gemm.wgmma_tf32 import WgmmaTf32Parameters
from pytest_gpuenergy.support import InputError, UnavailableError
from pytest_gpuenergy.tuning import Card
from pytest_gpuenergy.workloads import Gemm

Parameters = SimtParameters | MmaParameters | WgmmaParameters | WgmmaTf32Parameters
TEMPLATES: Mapping[str, type[Parameters]] = {
    kind.template: kind
    for kind in (SimtParameters, MmaParameters, WgmmaParameters, WgmmaTf32Parameters)
}
"""By name."""


def able_templates(gemm: Gemm, card: Card) -> list[type[Parameters]]:
    """Those that compute in the product's mode, with instructions that the card has.

    Raises:
        UnavailableError: there are none.
    """
    kinds = [kind for kind in TEMPLATES.values() if gemm.mode in kind.modes]
    able = [kind for kind in kinds if kind.suits(card)]
    if not able:
        least = min(kind.least_capability for kind in kinds)
        raise UnavailableError(
            f"{gemm.name} in mode {gemm.mode} takes a GPU of sm_{least} or later, and this one is "
            f"of sm_{card.capability}."
        )
    return able


def ranked(gemm: Gemm, card: Card) -> list[Parameters]:
    """Parameters that fit the card, the most promising first; those of equal estimate as listed.

    Raises:
        UnavailableError: the card does not have the product's mode.
        InputError: no parameters fit.
    """
    found = [one for kind in able_templates(gemm, card) for one in kind.fitting(gemm, card)]
    if not found:
        raise InputError(f"No parameters of the template fit {gemm.name} on this GPU.")
    return sorted(found, key=lambda one: one.cycles(gemm, card))
