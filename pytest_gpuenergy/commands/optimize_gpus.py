"""The GPUs of ``gpuenergy optimize``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands import gpus as several
from pytest_gpuenergy.commands.command_line import tell
from pytest_gpuenergy.commands.gpus import gpu_names

if TYPE_CHECKING:
    from pytest_gpuenergy.commands.gpus import ClaimedGpus
    from pytest_gpuenergy.devices import Device
    from pytest_gpuenergy.engine import Settings
    from pytest_gpuenergy.record import Metric
    from pytest_gpuenergy.search import Evaluator, KernelSpec

_OPTION = "--gpus"
_FACTORY = "pytest_gpuenergy.search.running.evaluators:SearchGpuProcess"


def claim_gpus(stack: ExitStack, gpus: str, settings: Settings) -> ClaimedGpus:
    """See `commands.gpus.claim_gpus`."""
    return several.claim_gpus(stack, gpus, settings, option=_OPTION, factory=_FACTORY)


def claim_one(stack: ExitStack, gpus: str, place: int, settings: Settings) -> Device:
    """As `claim_gpus`, but only the GPU at a place of the list."""
    from pytest_gpuenergy.engine import claim
    from pytest_gpuenergy.opening import open_device

    names = gpu_names(gpus, _OPTION)
    gpu, index = names[min(place, len(names) - 1)]
    device = stack.enter_context(open_device(gpu, index=index))
    claim(stack, device, settings, tell)
    return device


def evaluator_of(gpus: ClaimedGpus, spec: KernelSpec, objective: Metric, seed: int) -> Evaluator:
    """What evaluates the states of a spec on claimed GPUs."""
    from pytest_gpuenergy.search import Bench, OwnProcess, TeamEvaluator

    benches = tuple(Bench(spec, device, objective, seed) for device in gpus.devices)
    if len(benches) == 1:
        return OwnProcess(benches[0])
    for device in gpus.devices:
        device.renew()  # so that no process of this one keeps a context on the GPU
    return TeamEvaluator(gpus.team, benches)
