"""Verifies some of the kernels that templates offer for a workload."""

from __future__ import annotations

import random
from itertools import chain

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine import verify_on_device
from pytest_gpuenergy.tuners import TEMPLATES
from pytest_gpuenergy.tuning import TemplateParameters, card_resources
from pytest_gpuenergy.workloads import Conv2d, Gemm

TRIED = 2
"""Parameters of each template that are tried of each workload, which draws them."""


def verify_offered(gpu: Device, workload: Gemm | Conv2d) -> None:
    """Verify kernels of each template that computes a workload, others for each workload."""
    card, draw = card_resources(gpu), random.Random(repr(workload))
    able = [kind for kind in TEMPLATES.values() if kind.computes(workload) and kind.suits(card)]
    drawn = [_some(list(kind.fitting(workload, card)), draw) for kind in able]
    kernels = [parameters.kernel(workload) for parameters in chain(*drawn)]
    assert kernels
    gpu.prepare(kernels)
    for kernel in kernels:
        verified = verify_on_device(gpu, kernel, workload)
        assert verified.max_relative_error <= workload.error_bound.max_relative


def _some(
    offered: list[TemplateParameters[Gemm | Conv2d]], draw: random.Random
) -> list[TemplateParameters[Gemm | Conv2d]]:
    return draw.sample(offered, min(TRIED, len(offered)))
