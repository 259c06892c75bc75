"""Which templates there are, and the parameters of each that suit a convolution and a card."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_gpuenergy.conv.depthwise import DepthwiseParameters
from pytest_gpuenergy.conv.grouped import GroupedParameters
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuning import Card
from pytest_gpuenergy.workloads import Conv2d

Parameters = DepthwiseParameters | GroupedParameters
TEMPLATES: Mapping[str, type[Parameters]] = {
    kind.template: kind for kind in (DepthwiseParameters, GroupedParameters)
}
"""By name."""

_MOST = 5000
"""Parameters of a search: more would only make it slower."""


def ranked(conv: Conv2d, card: Card) -> list[Parameters]:
    """Parameters that fit the card, the most promising first; those of equal estimate as listed.

    Raises:
        InputError: no parameters fit.
    """
    kinds = [kind for kind in TEMPLATES.values() if kind.computes(conv)]
    found = [one for kind in kinds for one in kind.fitting(conv, card)]
    if not found:
        raise InputError(
            f"{conv.name} has a window of {conv.shape.KH} x {conv.shape.KW}, which does not fit "
            "the registers in which the templates keep it: search TVM's schedules with --tuner tvm."
        )
    return sorted(found, key=lambda one: one.cycles(conv, card))[:_MOST]
