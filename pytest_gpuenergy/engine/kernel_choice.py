"""Chooses the fastest correct kernel of a list, and caches the choice."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from msgspec import Struct

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine.arenas import seeded_arenas
from pytest_gpuenergy.engine.candidates import (
    KEEP_ONE_OF,
    Rig,
    measure_time_ms,
)
from pytest_gpuenergy.engine.identity import software
from pytest_gpuenergy.engine.seeds import SEEDS
from pytest_gpuenergy.engine.verification import verify_on_device
from pytest_gpuenergy.kernels import AnyKernel, Job
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.support import (
    FormError,
    GpuEnergyError,
    KernelFault,
    UnavailableError,
    cache_dir,
    decode,
    encode,
    keep_for_later,
)
from pytest_gpuenergy.workloads import Workload

_FORMAT = 1
_FINAL_S = 0.15
"""The time for which each of the fastest candidates is timed once more."""
_FIRST_SEED = SEEDS[:1]
"""The inputs that a choice is checked on: who measures the chosen kernel verifies it on all."""


def best_of(candidates: Sequence[AnyKernel], workload: Workload, device: Device) -> AnyKernel:
    """Return the fastest candidate that computes ``workload`` correctly.

    All are timed as a search times them, the fastest quarter a second time and for longer. They are
    then checked on ordinary inputs, the fastest first, until one is correct. A candidate that fails
    is dropped. The choice is cached by the GPU's name, the versions of its software, the workload
    and the candidates, but not by the power limit. The caller still has to verify the kernel.

    Args:
        candidates: kernels of the workload.
        workload: what they compute.
        device: the device that runs them, claimed by the caller.

    Returns:
        The candidate, with the number of ``candidates`` added to the details of its origin.

    Raises:
        UnavailableError: the device refuses every candidate, or lacks the resources for it.
        KernelFault: none is correct.
        DeviceError: the device does not respond.
    """
    refusals = {kernel.digest: device.refusal(kernel) for kernel in candidates}
    usable = {kernel.digest: kernel for kernel in candidates if refusals[kernel.digest] is None}
    if not usable:
        refusal = next(iter(refusals.values()), None)
        raise UnavailableError(refusal or f"{workload.name} has no candidates.")
    path: Path | None = None
    digest: str | None = None
    if workload.digest is not None:
        gpu = [device.name, device.emulated, sorted(software(device).items())]
        key = json.dumps([_FORMAT, gpu, workload.digest, sorted(usable)])
        path = cache_dir("chosen") / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
        with suppress(OSError, FormError):
            digest = decode(path.read_bytes(), _Choice).digest
    if digest not in usable:
        digest = _fastest_correct(list(usable.values()), workload, device).digest
        if path is not None:
            keep_for_later(path, encode(_Choice(digest)))
    chosen = usable[digest]
    details = {**chosen.origin.details, "candidates": len(usable)}
    return replace(chosen, origin=replace(chosen.origin, details=details))


def _fastest_correct(
    candidates: Sequence[AnyKernel], workload: Workload, device: Device
) -> AnyKernel:
    device.prepare(candidates)
    ranked, faults = _rank_by_time(candidates, workload, device)
    for index in ranked:
        try:
            verify_on_device(
                device,
                candidates[index],
                workload,
                seeds=_FIRST_SEED,
                measured=False,
                near_literals=False,
            )
        except KernelFault as fault:
            faults[index] = fault
        else:
            return candidates[index]
    raise _all_failed([faults[index] for index in sorted(faults)], workload)


def _rank_by_time(
    candidates: Sequence[AnyKernel], workload: Workload, device: Device
) -> tuple[list[int], dict[int, KernelFault]]:
    """Return positions of the candidates that run, fastest first, and the faults of the others."""
    # The timeout of `quick_job` may be too short for a worker that has to import PyTorch first.
    jobs = [Job.of(kernel, workload) for kernel in candidates]
    faults: dict[int, KernelFault] = {}
    first_ms: dict[int, float] = {}
    final_ms: dict[int, float] = {}
    with seeded_arenas(workload, 0, device.arrays) as arenas:
        for index, evaluation in Rig(device, arenas, Metric.TIME).evaluate(jobs, [], lambda: False):
            if evaluation.outcome == "timed":
                first_ms[index] = evaluation.time_ms or math.inf
            else:
                faults[index] = KernelFault(evaluation.outcome, evaluation.message or "It failed.")
        ranked = sorted(first_ms, key=first_ms.__getitem__)
        for index in ranked[: -(-len(ranked) // KEEP_ONE_OF)]:
            try:
                final_ms[index] = measure_time_ms(device, jobs[index], arenas, duration_s=_FINAL_S)
            except KernelFault as fault:
                faults[index] = fault
    rest = [index for index in ranked if index not in final_ms and index not in faults]
    return [*sorted(final_ms, key=final_ms.__getitem__), *rest], faults


def _all_failed(faults: Sequence[KernelFault], workload: Workload) -> GpuEnergyError:
    outcomes = Counter(fault.outcome for fault in faults)
    counted = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    message = (
        f"None of the {len(faults)} candidates for {workload.name} can be used ({counted}); the "
        f"first one failed: {faults[0]}"
    )
    if outcomes.keys() == {"constraints"}:
        return UnavailableError(message)
    wrong = (fault.outcome for fault in faults if fault.outcome != "constraints")
    return KernelFault(next(wrong), message)


class _Choice(Struct, frozen=True):
    """A cached choice."""

    digest: str
