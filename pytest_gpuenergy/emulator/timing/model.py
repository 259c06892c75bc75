"""The model of a kernel's time and power on an emulated GPU that nothing limits, and its range."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.devices import Work
from pytest_gpuenergy.emulator.card.governor import Demand
from pytest_gpuenergy.emulator.card.profiles import GpuProfile
from pytest_gpuenergy.emulator.timing.block import (
    COEFFICIENTS,
    L2_BYTES_PER_CYCLE,
    SCHEDULERS,
    SECTOR_BYTES,
    Coefficients,
    block_demand,
    sm_rate,
)
from pytest_gpuenergy.emulator.timing.traffic import Traffic
from pytest_gpuenergy.kernels import CacheState, Kernel, Launch, RecordedFigures, cuda_tokens

LAUNCH_S = 1e-6  # the time between dependent launches of a CUDA graph
# Guesses; fitted numbers are in `Coefficients`.
DRAM_SHARE = 0.9  # the share of the datasheet's bandwidth that a kernel reaches
_FLOPS_PER_READ = 2 / 4  # one multiply-add for each 4 bytes read, if the workload gives none
_SLOPE = 4.0  # the dynamic power saturates as 1 - exp(-_SLOPE activity)
POWER_DRAM = 0.3  # the activity of the device memory at its peak
_RECORDED_FP32 = 0.8  # the activity of arithmetic at its peak, to split a recorded power


def unlimited_power_w(activity: float, profile: GpuProfile) -> float:
    """Return the power that a card draws without a limit, by the activity of its units."""
    dynamic_w = profile.default_limit_w - profile.idle_w
    return profile.idle_w + dynamic_w * (1 - math.exp(-_SLOPE * activity))


def kernel_demand(
    kernel: Kernel,
    work: Work | None,
    traffic: Sequence[Traffic] | None,
    profile: GpuProfile,
    *,
    footprint_bytes: int = 0,
    cache: CacheState = "hot",
    restored_bytes: int = 0,
    coefficients: Coefficients = COEFFICIENTS,
) -> Demand:
    """Return what one run of ``kernel`` takes at the profile's default limit.

    Figures recorded on this GPU with a hot cache take precedence; without them every launch is
    modelled.

    Args:
        kernel: the kernel, all of whose launches are one run.
        work: the FLOPs and bytes of one run, if the workload gives them.
        traffic: the traffic of each launch, which is needed without recorded figures.
        profile: the GPU.
        footprint_bytes: the size of all buffers, taken as the bytes moved without ``work``.
        cache: whether the L2 keeps its contents from run to run.
        restored_bytes: the size of the tensors that are restored before each run.
        coefficients: the coefficients of the model.

    Raises:
        KernelFault: no block fits on a multiprocessor.
    """
    recorded = recorded_figures(kernel, profile, cache)
    if recorded is not None:
        moved = work.bytes_moved if work else footprint_bytes
        return recorded_demand(
            recorded.time_ms,
            recorded.power_w,
            dram_bytes=max(0, moved - profile.l2_bytes),
            launches=len(kernel.launches),
            profile=profile,
            flops=work.flops if work else 0,
        )
    if traffic is None:
        raise ValueError("a kernel without recorded figures needs its traffic")
    flops = _shares(kernel, work, traffic)
    moved = work.bytes_moved if work else footprint_bytes
    dram_share = _dram_share(kernel, moved, traffic, profile, cache)
    parts = [
        _launch(launch, entry, count, dram_share, profile, coefficients)
        for launch, entry, count in zip(kernel.launches, traffic, flops, strict=True)
    ]
    if restored_bytes:
        parts.append(_copy(restored_bytes, profile, cache, coefficients))
    time_s = sum(part.time_s for part in parts)
    activity = sum(part.activity_s for part in parts) / time_s
    dram_activity = sum(part.dram_activity_s for part in parts) / time_s
    return Demand(
        time_s=time_s,
        power_w=unlimited_power_w(activity, profile),
        memory_time=sum(part.memory_s for part in parts) / time_s,
        memory_power=dram_activity / activity if activity else 0.0,
    )


def recorded_figures(
    kernel: Kernel, profile: GpuProfile, cache: CacheState = "hot"
) -> RecordedFigures | None:
    """Return the figures recorded on this GPU under the highest limit, if there are any."""
    if cache == "cold":
        return None
    figures = [figure for figure in kernel.recorded if figure.gpu == profile.name]
    return max(figures, key=lambda figure: figure.power_limit_w, default=None)


@dataclass(frozen=True)
class _LaunchCost:
    """The modelled time and activity of one launch or copy.

    Attributes:
        time_s: the time of the launch.
        memory_s: the part of that time that does not depend on the clock.
        activity_s: the mean activity of the card meanwhile, times that time.
        dram_activity_s: the mean activity of the device memory alone, times that time.
    """

    time_s: float
    memory_s: float
    activity_s: float
    dram_activity_s: float


def _launch(
    launch: Launch,
    traffic: Traffic,
    flops: float,
    dram_share: float,
    profile: GpuProfile,
    c: Coefficients,
) -> _LaunchCost:
    block = block_demand(launch, traffic, flops, profile, c)
    blocks = -(-launch.blocks // profile.sm_count)  # on the busiest multiprocessor
    waves = -(-blocks // min(block.resident, blocks))
    cycles = blocks * block.busy_cycles + waves * block.wait_cycles
    # A slice of the L2 updates its sectors one after another, for all multiprocessors.
    cycles = max(cycles, traffic.contended_updates * c.update_cycles)
    core_s = cycles / (profile.max_clock_mhz * 1e6)
    l2_bytes = launch.blocks * block.l2_bytes
    dram_peak_s = l2_bytes * dram_share / (profile.bandwidth_gb_s * 1e9)
    dram_s = dram_peak_s / DRAM_SHARE
    time_s = max(core_s, dram_s) + LAUNCH_S
    cycles_per_s = sm_rate(profile)
    dram_activity_s = POWER_DRAM * dram_peak_s
    activity_s = (
        c.power_base * time_s
        + c.power_issue * launch.blocks * block.instructions / (cycles_per_s * SCHEDULERS)
        + c.power_spill * launch.blocks * block.spilled_fma / cycles_per_s
        + c.power_l2 * l2_bytes / (cycles_per_s * L2_BYTES_PER_CYCLE)
        + dram_activity_s
    )
    # Where the memory binds, a lower clock costs nothing until the cores would bind.
    memory_s = LAUNCH_S + max(0.0, dram_s - core_s)
    return _LaunchCost(time_s, memory_s, activity_s, dram_activity_s)


def _copy(nbytes: int, profile: GpuProfile, cache: CacheState, c: Coefficients) -> _LaunchCost:
    """Return the part of a copy within the card's memory."""
    l2_bytes = 2 * nbytes
    dram_bytes = l2_bytes if cache == "cold" else max(0, l2_bytes - profile.l2_bytes)
    dram_peak_s = dram_bytes / (profile.bandwidth_gb_s * 1e9)
    l2_s = l2_bytes / (sm_rate(profile) * L2_BYTES_PER_CYCLE)
    dram_s = dram_peak_s / DRAM_SHARE
    time_s = max(l2_s, dram_s) + LAUNCH_S
    activity_s = c.power_base * time_s + c.power_l2 * l2_s + POWER_DRAM * dram_peak_s
    return _LaunchCost(
        time_s, LAUNCH_S + max(0.0, dram_s - l2_s), activity_s, POWER_DRAM * dram_peak_s
    )


def _dram_share(
    kernel: Kernel,
    bytes_moved: float,
    traffic: Sequence[Traffic],
    profile: GpuProfile,
    cache: CacheState,
) -> float:
    """Return the share of the L2's traffic that the device memory carries too.

    Each launch that names a workspace moves it once more, besides ``bytes_moved`` of the workload.
    """
    l2_bytes = sum(
        launch.blocks * entry.l2_sectors * SECTOR_BYTES
        for launch, entry in zip(kernel.launches, traffic, strict=True)
    )
    moved = bytes_moved + sum(
        tensor.nbytes * sum(tensor.name in launch.names for launch in kernel.launches)
        for tensor in kernel.workspaces
    )
    kept_bytes = 0 if cache == "cold" else profile.l2_bytes  # there from run to run
    if not l2_bytes or moved <= kept_bytes:
        return 0.0
    return min(1.0, moved / l2_bytes) * (1 - kept_bytes / moved)


def _shares(kernel: Kernel, work: Work | None, traffic: Sequence[Traffic]) -> list[float]:
    """Divide the workload's FLOPs between the launches in proportion to what they read."""
    reads = [
        launch.blocks * max(entry.shared_read_bytes, entry.global_read_bytes)
        for launch, entry in zip(kernel.launches, traffic, strict=True)
    ]
    if work is None:
        return [read * _FLOPS_PER_READ for read in reads]
    total = sum(reads)
    if not total:
        return [work.flops / len(reads)] * len(reads)
    return [work.flops * read / total for read in reads]


def recorded_demand(
    time_ms: float,
    power_w: float,
    *,
    dram_bytes: int,
    launches: int,
    profile: GpuProfile,
    flops: int | None = None,
    clock_mhz: float | None = None,
) -> Demand:
    """Return what work with recorded figures takes at the profile's default limit.

    Args:
        time_ms: the time of one run.
        power_w: the power of the card while the work repeats.
        dram_bytes: the bytes that the device memory carries in one run.
        launches: the launches of one run.
        profile: the GPU.
        flops: the FLOPs of one run. If they are None, the cores are taken to work whenever they do
            not wait for the memory.
        clock_mhz: the effective SM clock meanwhile; the top clock if it is None.
    """
    clock = 1.0 if clock_mhz is None else min(1.0, clock_mhz / profile.max_clock_mhz)
    time_s = time_ms / 1e3
    dram_s = dram_bytes / (profile.bandwidth_gb_s * 1e9)
    memory_time = min(0.9, (launches * LAUNCH_S + dram_s) / time_s)
    core_s = max(0.0, time_s - dram_s) if flops is None else flops / (profile.fp32_tflops * 1e12)
    core = _RECORDED_FP32 * core_s
    memory_power = POWER_DRAM * dram_s / (core + POWER_DRAM * dram_s) if dram_s else 0.0
    return Demand(time_s, power_w, memory_time, min(0.9, memory_power), clock)


# The range of the kernels with which the model was compared on a real card, which are those of
# docs/explanation/timing-model.md. ``python studies/model_ranking.py`` prints the range of others.
_COMPARED_GPU = "NVIDIA H200"
COMPARED = {
    "launches": (1, 2),
    "threads a block": (32, 784),
    "blocks": (2, 18496),
    "operations for each byte of its tensors": (12.3, 330.0),
    "operations for each byte that it reads": (1.9, 189.0),
    "sectors of 32 bytes for each access by a warp": (3.2, 31.7),
    "wavefronts for each access to shared memory": (1.0, 10.4),
}
"""The least and the greatest value among the compared kernels, by quantity."""

_TYPES = frozenset({"float32"})
_CALLS = frozenset(
    {
        *("make_float2", "make_float4", "make_int2", "make_int4", "min", "max", "fmaf", "__ldg"),
        *("__syncthreads", "__launch_bounds__", "alignas", "__align__", "__attribute__"),
        *("if", "for", "while", "switch", "return", "sizeof", "defined", "static_cast"),
        *("reinterpret_cast", "const_cast", "float", "int", "unsigned", "bool", "size_t"),
    }
)
"""The calls of the compared kernels and others that cost no more; the model knows no others."""

_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*(?:<[\w\s,*:&]*>\s*)?\(")
_DEFINED = re.compile(r"\b([A-Za-z_]\w*)\s*\([^;{}]*\)\s*(?:const\s*)?\{")
_OTHER = re.compile(r"\b(asm|double|__half2?|__nv_bfloat162?|bfloat16|wmma|volatile)\b")


def beyond_comparison(
    kernel: Kernel,
    dtypes: Iterable[str],
    work: Work | None,
    traffic: Sequence[Traffic],
    gpu: str,
    cache: CacheState = "hot",
) -> str | None:
    """Return how a kernel differs from all that the model was compared with, or None.

    Args:
        kernel: the kernel with its text and launches.
        dtypes: the dtypes of its tensors.
        work: the FLOPs and bytes of one run, if the workload gives them.
        traffic: the traffic of each launch.
        gpu: the name of the emulated GPU.
        cache: the state of the L2 in which the kernel runs.

    Returns:
        A clause such as ``it calls expf``.
    """
    if gpu != _COMPARED_GPU:
        return f"this is a {gpu}"
    if cache != "hot":
        return "its inputs come from the device memory"
    if other := sorted(set(dtypes) - _TYPES):
        return f"it has tensors of {other[0]}"
    tokens = cuda_tokens(kernel.source)
    text = " ".join(token.text for token in tokens if token.kind not in ("directive", "literal"))
    if used := _OTHER.search(text):
        return f"it uses {used[1]}"
    own = {launch.entry for launch in kernel.launches} | set(_DEFINED.findall(text))
    if call := next((name for name in _CALL.findall(text) if name not in own | _CALLS), None):
        return f"it calls {call}"
    if work is None or not work.flops or not work.bytes_moved:
        return "its workload tells no number of operations and bytes"
    for name, value in quantities(kernel, work, traffic):
        low, high = COMPARED[name]
        if not low <= value <= high:
            return f"it has {value:.3g} {name}, and those had {low:g} to {high:g}"
    return None


def quantities(
    kernel: Kernel, work: Work, traffic: Sequence[Traffic]
) -> Iterator[tuple[str, float]]:
    """Yield the quantities that `COMPARED` names, which decide how a kernel spends its time."""
    for launch, entry in zip(kernel.launches, traffic, strict=True):
        if not (accesses := entry.global_loads + entry.global_stores):
            continue
        yield "threads a block", launch.threads
        yield "sectors of 32 bytes for each access by a warp", entry.global_sectors / accesses
        if entry.shared_accesses:
            shared = entry.shared_wavefronts / entry.shared_accesses
            yield "wavefronts for each access to shared memory", shared
    read = sum(
        launch.blocks * entry.global_read_bytes
        for launch, entry in zip(kernel.launches, traffic, strict=True)
    )
    yield "launches", len(kernel.launches)
    yield "blocks", max(launch.blocks for launch in kernel.launches)
    yield "operations for each byte of its tensors", work.flops / work.bytes_moved
    yield "operations for each byte that it reads", work.flops / max(1, read)
