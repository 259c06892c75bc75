"""The limits of a GPU that a kernel must keep to, and what it holds of a kernel at once."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.emulator.card.profiles import GpuProfile
from pytest_gpuenergy.emulator.translation.cuda_syntax import (
    CLUSTER_DIMS,
    CudaExpressions,
    read_expressions,
)
from pytest_gpuenergy.emulator.translation.spin_loops import may_wait
from pytest_gpuenergy.kernels import Kernel, Launch, function_name
from pytest_gpuenergy.support import KernelFault

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": 9.0.
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)
_MAX_THREADS = 1024
_MAX_REGISTERS = 65536
_MAX_REGISTERS_PER_THREAD = 255
_MAX_SHARED_BYTES = 232448


def check_limits(kernel: Kernel) -> None:
    """Refuse launches that no GPU of compute capability 9.0 can make."""
    for launch in kernel.launches:
        for what, sizes, limits in (
            ("grid", launch.grid, _MAX_GRID),
            ("block", launch.block, _MAX_BLOCK),
        ):
            if any(size > limit for size, limit in zip(sizes, limits, strict=True)):
                raise KernelFault(
                    "constraints", f"The {what} {sizes} of {launch.entry} is larger than {limits}."
                )
        if launch.threads > _MAX_THREADS:
            raise KernelFault(
                "constraints",
                f"{launch.entry} has {launch.threads} threads per block; a block may have at most "
                f"{_MAX_THREADS}.",
            )
        many = launch.threads > _MAX_REGISTERS // _MAX_REGISTERS_PER_THREAD
        registers = registers_at_least(kernel.source, launch.entry) if many else 0
        if registers * launch.threads > _MAX_REGISTERS:
            raise KernelFault(
                "constraints",
                f"{launch.entry} keeps at least {registers} values in registers of each of its "
                f"{launch.threads} threads; a block may have {_MAX_REGISTERS} registers. "
                f"__launch_bounds__({launch.threads}) makes the compiler keep them elsewhere.",
            )
        if launch.shared_bytes > _MAX_SHARED_BYTES:
            raise KernelFault(
                "constraints",
                f"{launch.entry} needs {launch.shared_bytes} bytes of shared memory; a block may "
                f"have at most {_MAX_SHARED_BYTES}.",
            )


def check_geometry(kernel: Kernel, profile: GpuProfile) -> None:
    """Refuse launches that a real GPU of this model would refuse."""
    check_limits(kernel)
    for launch in kernel.launches:
        if launch.shared_bytes > profile.shared_per_block:
            raise KernelFault(
                "constraints",
                f"{launch.entry} needs {launch.shared_bytes} bytes of dynamic shared memory; a "
                f"block of the {profile.name} may have at most {profile.shared_per_block}.",
            )


def check_memory(kernel: Kernel, arenas: Mapping[str, Arena], profile: GpuProfile) -> None:
    """Refuse buffers that do not fit into the memory of a real GPU of this model."""
    tensors = [*(arena.tensor for arena in arenas.values()), *kernel.workspaces]
    needed_mib = sum(tensor.nbytes for tensor in tensors) / 2**20
    if needed_mib > profile.memory_mib:
        raise KernelFault(
            "constraints",
            f"Out of memory: {needed_mib:.0f} MiB of buffers do not fit into the "
            f"{profile.memory_mib} MiB of the {profile.name}.",
        )


# Registers. Only sums that must be kept are counted: arrays of a thread that loops update again and
# again, with subscripts that are constant once inner loops are unrolled. What else a kernel needs,
# the compiler decides.
_PRAGMA = re.compile(r"#\s*pragma\s+unroll(?!\s*\(?\s*1\b)[^\n]*\s*\Z")
_CONSTANT = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\d+)[ \t]*$"
    r"|\bconst(?:expr)?\s+(?:unsigned\s+)?int\s+(\w+)\s*=\s*(\d+)\s*;",
    re.MULTILINE,
)
_COUNTED = re.compile(r"(?:int|unsigned) (\w+) = 0 ; \1 < (\w+) ; (?:\+\+ \1|\1 \+\+)$")
_UPDATES = frozenset(("+=", "-=", "*="))
_UNROLLED = 8  # iterations of a loop that compilers always unroll if their number is known


@dataclass(frozen=True)
class _CountedLoop:
    """A loop in a kernel's text.

    Attributes:
        variable: the variable that it counts with, or empty.
        begin: the position of its first token.
        end: the position after its last token.
        unrolled: whether compilers unroll it.
    """

    variable: str
    begin: int
    end: int
    unrolled: bool


@functools.lru_cache(maxsize=64)
def registers_at_least(source: str, entry: str) -> int:
    """Return the words of the largest array that the function ``entry`` must keep in registers.

    They are 0 as well if launch bounds tell the compiler how many registers there are, or if the
    function is not found.
    """
    constants = {a or c: int(b or d) for a, b, c, d in _CONSTANT.findall(source)}
    text = next(read_expressions(source))
    body = _body(text, function_name(entry))
    if body is None:
        return 0
    loops = list(_loops(text, *body, source, constants))
    arrays = [  # the names of arrays of 32-bit words that the body declares
        k
        for k in range(body[0] + 2, body[1])
        if text.text(k - 1) in ("float", "int", "unsigned")
        and text.text(k + 1) == "["
        and text.text(k - 2) != "__shared__"
    ]
    return max((_register_words(text, body, k, loops, constants) for k in arrays), default=0)


def _body(text: CudaExpressions, name: str) -> tuple[int, int] | None:
    """Return the positions of the kernel's braces, or None if it has launch bounds."""
    for k, token in enumerate(text.tokens):
        if token.text != name or text.text(k + 1) != "(":
            continue
        opening = text.partner.get(k + 1, k) + 1
        header = [text.text(j) for j in range(max(0, k - 12), k)]
        if text.text(opening) == "{" and "__global__" in header:
            bounded = "__launch_bounds__" in header[header.index("__global__") :]
            return None if bounded else (opening, text.partner.get(opening, opening))
    return None


def _loops(
    text: CudaExpressions, begin: int, end: int, source: str, constants: dict[str, int]
) -> Iterator[_CountedLoop]:
    for k in range(begin, end):
        if text.text(k) not in ("for", "while") or text.text(k + 1) != "(":
            continue
        closing = text.partner.get(k + 1, k + 1)
        header = " ".join(text.text(j) for j in range(k + 2, closing))
        counted = _COUNTED.match(header)
        extent = constants.get(counted[2]) if counted else None
        if counted and counted[2].isdecimal():
            extent = int(counted[2])
        pragma = _PRAGMA.search(source[: text.tokens[k].start]) is not None
        unrolled = extent is not None and (pragma or extent <= _UNROLLED)
        yield _CountedLoop(
            counted[1] if counted else "", k, _statement_end(text, closing + 1), unrolled
        )


def _statement_end(text: CudaExpressions, k: int) -> int:
    """Return the position after the statement that begins at ``k``."""
    while text.text(k) in ("for", "while", "if"):
        k = text.partner.get(k + 1, k + 1) + 1
    if text.text(k) == "{":
        return text.partner.get(k, k) + 1
    while k < len(text.tokens) and text.text(k) != ";":
        k = text.partner.get(k, k) + 1 if text.text(k) in ("(", "[", "{") else k + 1
    return k + 1


def _register_words(
    text: CudaExpressions,
    body: tuple[int, int],
    declared: int,
    loops: list[_CountedLoop],
    constants: dict[str, int],
) -> int:
    """Return the words of the array declared at a position; 0 unless registers must hold it."""
    words, k = 1, declared + 1
    while text.text(k) == "[":
        extent = text.text(k + 1)
        words *= int(extent) if extent.isdecimal() else constants.get(extent, 0)
        if text.partner.get(k) != k + 2:
            return 0
        k += 3
    kept = False
    for at in range(k, body[1]):
        if text.text(at) != text.text(declared):
            continue
        around = [loop for loop in loops if loop.begin < at < loop.end]
        constant = {loop.variable for loop in around if loop.unrolled} | constants.keys()
        subscripts = at + 1
        while text.text(subscripts) == "[":
            closing = text.partner.get(subscripts, subscripts)
            inner = range(subscripts + 1, closing)
            names = {text.text(j) for j in inner if text.tokens[j].kind == "name"}
            if names - constant:
                return 0
            subscripts = closing + 1
        if subscripts == at + 1:
            return 0  # used as a whole, perhaps by its address
        repeated = any(not loop.unrolled for loop in around)
        # An assignment updates an element with a value that is made from one.
        assigned = [text.text(j) for j in range(subscripts, _statement_end(text, subscripts))]
        updated = assigned[:1] == ["="] and text.text(at) in assigned
        kept |= repeated and (updated or text.text(subscripts) in _UPDATES)
    return words if kept else 0


STACK_BYTES = 10 * 65536
"""The address space of a thread that waits, as in stacks.cpp."""

_WARP = 32
_MOST_THREADS = 1 << 17  # half the threads of an H200: a stack takes 8 KiB of memory or more


def blocks_held(kernel: Kernel, launch: Launch, profile: GpuProfile) -> int:
    """Return how many blocks that wait for one another the GPU holds at once.

    It is 1 if no block waits for another. Only threads are counted: shared memory may leave room
    for fewer blocks, which the runtime finds out, since it knows the static part.
    """
    waits = may_wait(kernel.source) or kernel.has_grid_barrier or CLUSTER_DIMS in kernel.source
    if not waits:
        return 1
    threads = -(-launch.threads // _WARP) * _WARP
    each = min(profile.blocks_per_sm, profile.threads_per_sm // threads)
    return max(1, min(profile.sm_count * each, _MOST_THREADS // threads, launch.blocks))


def threads_held(kernel: Kernel, profile: GpuProfile) -> int:
    """Return how many threads the GPU holds at once, at least those of the largest block."""
    return max(
        _MAX_THREADS,
        *(blocks_held(kernel, launch, profile) * launch.threads for launch in kernel.launches),
    )
