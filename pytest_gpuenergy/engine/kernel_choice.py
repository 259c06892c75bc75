"""Chooses the fastest correct kernel of a list, and remembers the choice."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import Struct

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine.candidates import (
    KEEP_ONE_OF,
    Rig,
    evaluate,
    measure_time_ms,
    verify_timed,
)
from pytest_gpuenergy.engine.identity import software
from pytest_gpuenergy.engine.verification import arenas_for
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
"""How long each of the fastest candidates is timed once more."""


def best_of(candidates: Sequence[AnyKernel], workload: Workload, device: Device) -> AnyKernel:
    """The fastest candidate that computes ``workload`` correctly.

    All are timed as a search times them, the fastest quarter a second time and for longer. They are
    then verified in the order of their times, until one is correct. A candidate that fails is
    dropped. The choice is cached by the GPU's name, the versions of its software, the workload and
    the candidates, but not by the power limit.

    Args:
        candidates: kernels of the workload.
        workload: what they compute.
        device: claimed by the caller.

    Returns:
        The candidate; the details of its origin also have the number of ``candidates``.

    Raises:
        UnavailableError: the device runs none of them, or has the resources for none.
        KernelFault: none is correct.
        DeviceError: the device does not respond.
    """
    refusals = {one.digest: device.refusal(one) for one in candidates}
    usable = {one.digest: one for one in candidates if refusals[one.digest] is None}
    if not usable:
        told = next(iter(refusals.values()), None)
        raise UnavailableError(told or f"{workload.name} has no candidates.")
    memory = _memory_path(device, workload, sorted(usable))
    digest = _recall(memory) if memory is not None else None
    if digest not in usable:
        digest = _fastest(list(usable.values()), workload, device).digest
        if memory is not None:
            keep_for_later(memory, encode(_Choice(digest)))
    chosen = usable[digest]
    details = {**chosen.origin.details, "candidates": len(usable)}
    return replace(chosen, origin=replace(chosen.origin, details=details))


def _fastest(candidates: Sequence[AnyKernel], workload: Workload, device: Device) -> AnyKernel:
    device.prepare(candidates)
    ranked, faults = _by_time(candidates, workload, device)
    for place in ranked:
        try:
            verify_timed(device, candidates[place], workload)
        except KernelFault as fault:
            faults[place] = fault
        else:
            return candidates[place]
    raise _none_left([faults[place] for place in sorted(faults)], workload)


def _by_time(
    candidates: Sequence[AnyKernel], workload: Workload, device: Device
) -> tuple[list[int], dict[int, KernelFault]]:
    """Places of the candidates that run, fastest first; the faults of the others by place."""
    # Not `quick_job`, whose timeout may be too short for a worker to import PyTorch first.
    jobs = [Job.of(one, workload) for one in candidates]
    faults: dict[int, KernelFault] = {}
    first_ms: dict[int, float] = {}
    final_ms: dict[int, float] = {}
    with arenas_for(workload, 0, device.arrays) as arenas:
        for place, found in evaluate(Rig(device, arenas, Metric.TIME), jobs, [], lambda: False):
            if found.outcome == "timed":
                first_ms[place] = found.time_ms or math.inf
            else:
                faults[place] = KernelFault(found.outcome, found.message or "It failed.")
        ranked = sorted(first_ms, key=first_ms.__getitem__)
        for place in ranked[: -(-len(ranked) // KEEP_ONE_OF)]:
            try:
                final_ms[place] = measure_time_ms(device, jobs[place], arenas, duration_s=_FINAL_S)
            except KernelFault as fault:
                faults[place] = fault
    rest = [place for place in ranked if place not in final_ms and place not in faults]
    return [*sorted(final_ms, key=final_ms.__getitem__), *rest], faults


def _none_left(faults: Sequence[KernelFault], workload: Workload) -> GpuEnergyError:
    outcomes = Counter(fault.outcome for fault in faults)
    counted = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    told = (
        f"None of the {len(faults)} candidates for {workload.name} can be used ({counted}); the "
        f"first one failed: {faults[0]}"
    )
    if outcomes.keys() == {"constraints"}:
        return UnavailableError(told)
    wrong = (fault.outcome for fault in faults if fault.outcome != "constraints")
    return KernelFault(next(wrong), told)


class _Choice(Struct, frozen=True):
    """A cached choice."""

    digest: str


def _memory_path(device: Device, workload: Workload, digests: Sequence[str]) -> Path | None:
    """Where the choice among candidates is cached; None if nothing identifies the workload."""
    if workload.digest is None:
        return None
    gpu = [device.name, device.emulated, sorted(software(device).items())]
    key = json.dumps([_FORMAT, gpu, workload.digest, list(digests)])
    return cache_dir("chosen") / f"{hashlib.sha256(key.encode()).hexdigest()}.json"


def _recall(path: Path) -> str | None:
    try:
        return decode(path.read_bytes(), _Choice).digest
    except (OSError, FormError):
        return None
