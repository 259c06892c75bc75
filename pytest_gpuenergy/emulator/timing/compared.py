"""What the model of time and power was compared with on a real card.

`COMPARED` is the range of the kernels of docs/explanation/timing-model.md. ``python
studies/model_ranking.py`` prints that of the kernels which it reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from pytest_gpuenergy.devices import Work
from pytest_gpuenergy.emulator.timing.traffic import Traffic
from pytest_gpuenergy.kernels import CacheState, Kernel

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
