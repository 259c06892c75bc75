"""How long a kernel takes on an emulated GPU that nothing limits, and what power it draws."""

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
    block_of,
    sm_rate,
)
from pytest_gpuenergy.emulator.timing.traffic import Traffic
from pytest_gpuenergy.kernels import CacheState, Kernel, Launch, RecordedFigures

_LAUNCH_S = 1e-6  # between dependent launches of a CUDA graph
# Guesses; fitted numbers are in `Coefficients`.
_DRAM_SHARE = 0.9  # of the datasheet's bandwidth
_FLOPS_PER_READ = 2 / 4  # one multiply-add for each 4 bytes read, if the workload gives no number
_SLOPE = 4.0  # the dynamic power saturates as 1 - exp(-_SLOPE activity)
_POWER_DRAM = 0.3  # activity of the device memory at its peak
_RECORDED_FP32 = 0.8  # activity of arithmetic at its peak, where a recorded power is split


def demand_of(
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
    """What one run of ``kernel`` takes at the profile's default limit, in seconds and watts.

    Figures recorded on this GPU, which hold for a hot cache, take precedence; without them every
    launch is modelled.

    Args:
        kernel: all its launches are one run.
        work: FLOPs and bytes of one run, if the workload is known.
        traffic: of each launch; required unless the kernel has figures recorded on this GPU.
        profile: the GPU.
        footprint_bytes: size of all buffers; without ``work`` they are the bytes moved.
        cache: whether what fits in the L2 stays there from run to run.
        restored_bytes: size of the tensors that are copied to before each run.
        coefficients: of the model.

    Raises:
        KernelFault: no block fits on a multiprocessor.
    """
    recorded = recorded_on(kernel, profile, cache)
    if recorded is not None:
        return _from_record(recorded, kernel, work, footprint_bytes, profile)
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
    return _demand(parts, profile)


def recorded_on(
    kernel: Kernel, profile: GpuProfile, cache: CacheState = "hot"
) -> RecordedFigures | None:
    """The figures recorded on this GPU under the highest limit, if there are any."""
    if cache == "cold":
        return None
    figures = [figure for figure in kernel.recorded if figure.gpu == profile.name]
    return max(figures, key=lambda figure: figure.power_limit_w, default=None)


@dataclass(frozen=True)
class _Part:
    """One launch.

    Attributes:
        time_s: its time.
        memory_s: the part of it that does not depend on the clock.
        activity_s: its activity times its time.
        dram_activity_s: likewise of the device memory alone.
    """

    time_s: float
    memory_s: float
    activity_s: float
    dram_activity_s: float


def _demand(parts: Sequence[_Part], profile: GpuProfile) -> Demand:
    """What launches that follow one another take together."""
    time_s = sum(part.time_s for part in parts)
    memory_s = sum(part.memory_s for part in parts)
    activity = sum(part.activity_s for part in parts) / time_s
    dram_activity = sum(part.dram_activity_s for part in parts) / time_s
    dynamic_w = (profile.default_limit_w - profile.idle_w) * (1 - math.exp(-_SLOPE * activity))
    return Demand(
        time_s=time_s,
        power_w=profile.idle_w + dynamic_w,
        memory_time=memory_s / time_s,
        memory_power=dram_activity / activity if activity else 0.0,
    )


def _launch(
    launch: Launch,
    traffic: Traffic,
    flops: float,
    dram_share: float,
    profile: GpuProfile,
    c: Coefficients,
) -> _Part:
    block = block_of(launch, traffic, flops, profile, c)
    blocks = -(-launch.blocks // profile.sm_count)  # on the busiest multiprocessor
    waves = -(-blocks // min(block.resident, blocks))
    cycles = blocks * block.busy_cycles + waves * block.wait_cycles
    # What a slice of the L2 updates, it updates one after another, for all multiprocessors.
    cycles = max(cycles, traffic.contended_updates * c.update_cycles)
    core_s = cycles / (profile.max_clock_mhz * 1e6)
    l2_bytes = launch.blocks * block.l2_bytes
    dram_peak_s = l2_bytes * dram_share / (profile.bandwidth_gb_s * 1e9)
    dram_s = dram_peak_s / _DRAM_SHARE
    time_s = max(core_s, dram_s) + _LAUNCH_S
    cycles_per_s = sm_rate(profile)
    dram_activity_s = _POWER_DRAM * dram_peak_s
    activity_s = (
        c.power_base * time_s
        + c.power_issue * launch.blocks * block.instructions / (cycles_per_s * SCHEDULERS)
        + c.power_spill * launch.blocks * block.spilled_fma / cycles_per_s
        + c.power_l2 * l2_bytes / (cycles_per_s * L2_BYTES_PER_CYCLE)
        + dram_activity_s
    )
    # Where the memory binds, a lower clock costs nothing until the cores would bind.
    memory_s = _LAUNCH_S + max(0.0, dram_s - core_s)
    return _Part(time_s, memory_s, activity_s, dram_activity_s)


def _copy(nbytes: int, profile: GpuProfile, cache: CacheState, c: Coefficients) -> _Part:
    """A copy within the card's memory."""
    l2_bytes = 2 * nbytes
    dram_bytes = l2_bytes if cache == "cold" else max(0, l2_bytes - profile.l2_bytes)
    dram_peak_s = dram_bytes / (profile.bandwidth_gb_s * 1e9)
    l2_s = l2_bytes / (sm_rate(profile) * L2_BYTES_PER_CYCLE)
    dram_s = dram_peak_s / _DRAM_SHARE
    time_s = max(l2_s, dram_s) + _LAUNCH_S
    activity_s = c.power_base * time_s + c.power_l2 * l2_s + _POWER_DRAM * dram_peak_s
    return _Part(time_s, _LAUNCH_S + max(0.0, dram_s - l2_s), activity_s, _POWER_DRAM * dram_peak_s)


def _dram_share(
    kernel: Kernel,
    bytes_moved: float,
    traffic: Sequence[Traffic],
    profile: GpuProfile,
    cache: CacheState,
) -> float:
    """The share of the L2's traffic that the device memory carries too.

    ``bytes_moved`` are the workload's; each launch that names a workspace moves it once more.
    """
    l2_bytes = sum(
        launch.blocks * entry.l2_sectors * SECTOR_BYTES
        for launch, entry in zip(kernel.launches, traffic, strict=True)
    )
    moved = bytes_moved + sum(
        tensor.nbytes * sum(tensor.name in launch.arguments for launch in kernel.launches)
        for tensor in kernel.workspaces
    )
    kept_bytes = 0 if cache == "cold" else profile.l2_bytes  # there from run to run
    if not l2_bytes or moved <= kept_bytes:
        return 0.0
    return min(1.0, moved / l2_bytes) * (1 - kept_bytes / moved)


def _shares(kernel: Kernel, work: Work | None, traffic: Sequence[Traffic]) -> list[float]:
    """FLOPs of each launch: the workload's, in proportion to what the launches read."""
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


def _from_record(
    recorded: RecordedFigures,
    kernel: Kernel,
    work: Work | None,
    footprint_bytes: int,
    profile: GpuProfile,
) -> Demand:
    moved = work.bytes_moved if work else footprint_bytes
    return demand_of_figures(
        recorded.time_ms,
        recorded.power_w,
        dram_bytes=max(0, moved - profile.l2_bytes),
        launches=len(kernel.launches),
        profile=profile,
        flops=work.flops if work else 0,
    )


def demand_of_figures(
    time_ms: float,
    power_w: float,
    *,
    dram_bytes: int,
    launches: int,
    profile: GpuProfile,
    flops: int | None = None,
) -> Demand:
    """What work with recorded figures takes at the profile's default limit.

    Args:
        time_ms: of one run.
        power_w: of the card while it repeats.
        dram_bytes: that the device memory carries in one run.
        launches: of one run.
        profile: the GPU.
        flops: of one run; None if not known: then the cores work while they do not wait for the
            memory.
    """
    time_s = time_ms / 1e3
    dram_s = dram_bytes / (profile.bandwidth_gb_s * 1e9)
    memory_time = min(0.9, (launches * _LAUNCH_S + dram_s) / time_s)
    core_s = max(0.0, time_s - dram_s) if flops is None else flops / (profile.fp32_tflops * 1e12)
    core = _RECORDED_FP32 * core_s
    memory_power = _POWER_DRAM * dram_s / (core + _POWER_DRAM * dram_s) if dram_s else 0.0
    return Demand(time_s, power_w, memory_time, min(0.9, memory_power))


COMPARED_GPU = "NVIDIA H200"

COMPARED = {
    "launches": (1, 2),
    "threads a block": (32, 784),
    "blocks": (2, 18496),
    "operations for each byte of its tensors": (12.3, 330.0),
    "operations for each byte that it reads": (1.9, 189.0),
    "sectors of 32 bytes for each access by a warp": (3.2, 31.7),
    "wavefronts for each access to shared memory": (1.0, 10.4),
}
"""By quantity, the least and the greatest value among the kernels that were compared."""

_TYPES = frozenset({"float32"})
_CALLS = frozenset(
    {
        *("make_float2", "make_float4", "make_int2", "make_int4", "min", "max", "fmaf", "__ldg"),
        *("__syncthreads", "__launch_bounds__", "alignas", "__align__", "__attribute__"),
        *("if", "for", "while", "switch", "return", "sizeof", "defined", "static_cast"),
        *("reinterpret_cast", "const_cast", "float", "int", "unsigned", "bool", "size_t"),
    }
)
"""What the text of the compared kernels calls, and what costs no more: other calls take time that
the model does not know."""

_TEXT = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|^[ \t]*#[^\n]*', re.DOTALL | re.MULTILINE
)
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
        kernel: its text and launches.
        dtypes: of its tensors.
        work: FLOPs and bytes of one run, if the workload tells them.
        traffic: of each launch.
        gpu: the emulated GPU's name.
        cache: the state of the L2 in which it runs.

    Returns:
        A clause such as ``it calls expf``.
    """
    if gpu != COMPARED_GPU:
        return f"this is a {gpu}"
    if cache != "hot":
        return "its inputs come from the device memory"
    if other := sorted(set(dtypes) - _TYPES):
        return f"it has tensors of {other[0]}"
    if (call := _unknown_call(kernel)) is not None:
        return call
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


def _unknown_call(kernel: Kernel) -> str | None:
    text = _TEXT.sub("", kernel.source)
    if other := _OTHER.search(text):
        return f"it uses {other[1]}"
    own = {launch.entry for launch in kernel.launches} | set(_DEFINED.findall(text))
    calls = (name for name in _CALL.findall(text) if name not in own | _CALLS)
    return None if (call := next(calls, None)) is None else f"it calls {call}"
