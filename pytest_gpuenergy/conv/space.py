"""The parameters of our templates for convolutions, as the tuner searches them."""

from __future__ import annotations

from pytest_gpuenergy.conv.templates import TEMPLATES, Parameters, ranked
from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.tuning import ParameterSpace, TemplateForm, card_of
from pytest_gpuenergy.workloads import Conv2d

TEMPLATE_FORM: TemplateForm[Parameters] = TemplateForm(TEMPLATES)
_AT_ONCE = 16
"""They compile in tenths of a second, on several cores at the same time."""
_EFFECT_SD = 0.1
"""Smaller than of matrix products, because the launch is the greater part of most times."""


class ConvSpace(ParameterSpace[Conv2d]):
    """The kernels of our templates for one convolution on one device.

    Args:
        workload: what they compute.
        device: compiles and runs them.

    Raises:
        InputError: there are none, or the device is not known.
    """

    def __init__(self, workload: Conv2d, device: Device) -> None:
        card = card_of(device)
        offered = ranked(workload, card)
        super().__init__(
            workload,
            device,
            card,
            TEMPLATE_FORM,
            offered,
            at_once=_AT_ONCE,
            effect_sd=_EFFECT_SD,
        )
