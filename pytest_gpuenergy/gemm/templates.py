"""Which templates there are, and the parameters of each that suit a product and a card."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuenergy.gemm.card import Card
from pytest_gpuenergy.gemm.simt import SimtParameters
from pytest_gpuenergy.support.errors import InputError, UnavailableError
from pytest_gpuenergy.workloads.gemm import Gemm

Parameters = SimtParameters

TEMPLATES: Mapping[str, type[Parameters]] = {SimtParameters.template: SimtParameters}
"""By name."""


def ranked(gemm: Gemm, card: Card) -> list[Parameters]:
    """Parameters that fit the card, the most promising first; those of equal estimate as listed.

    Raises:
        UnavailableError: no template computes in the product's mode.
        InputError: no parameters fit.
    """
    able = [kind for kind in TEMPLATES.values() if gemm.mode in kind.modes]
    if not able:
        raise UnavailableError(f"No template computes {gemm.name} in mode {gemm.mode}.")
    found = [one for kind in able for one in kind.fitting(gemm, card)]
    if not found:
        raise InputError(f"No parameters of the template fit {gemm.name} on this GPU.")
    return sorted(found, key=lambda one: one.cycles(gemm, card))
