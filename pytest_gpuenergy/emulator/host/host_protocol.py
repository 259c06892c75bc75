"""The protocol of a compiled kernel's process: the plan and requests it reads, its answers."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.emulator.card.profiles import GpuProfile
from pytest_gpuenergy.emulator.host.kernel_limits import (
    STACK_BYTES,
    blocks_held,
    threads_held,
)
from pytest_gpuenergy.emulator.translation.marks import unmarked
from pytest_gpuenergy.emulator.translation.spin_loops import may_decide
from pytest_gpuenergy.kernels import Argument, Kernel, StructLayout, TensorMap, argument_text
from pytest_gpuenergy.support import KernelFault, Outcome
from pytest_gpuenergy.workloads import Scalar, is_floating, stored_as

_TENSOR_USES = {"input": 0, "output": 1, "inout": 2, "workspace": 1}
"""The number in the plan for each role of a tensor.

Launches only read those with 0 and write those with 1; those with 2 are restored before each.
"""
_OUTCOMES: dict[str, Outcome] = {
    "correctness": "correctness",
    "runtime": "runtime",
    "timeout": "timeout",
    "constraints": "constraints",
}
_RAN = re.compile(r"ran (\d{1,18}) (\d{1,9}\.\d{6})")
_WAITING = re.compile(r"waiting (\d{1,18}) (\d{1,18})")
_FAULT = re.compile(r"fault (\S+) (.+)", re.DOTALL)
_UNREAD = re.compile(r"unread (\S{1,300})((?: \d{1,15} \d{1,15})*)")
_COMPARED = re.compile(r"compared((?: [fi]-?\d[\d.e+-]{0,30})*)")
_MAX_ANSWER_BYTES = 1 << 20
"""The length of an answer from which on it must be the kernel that writes."""
_MAX_SHOWN_CHARACTERS = 1000
"""The length to which texts are cut that the kernel may have made up."""


@dataclass(frozen=True)
class Sampling:
    """The part of a kernel that a check runs.

    It counts accesses instead of seconds, so that every machine runs the same blocks.

    Attributes:
        profiled_blocks: the blocks of each launch that make its profile; all of them are run.
        profiled_accesses: the number of accesses after which no further block is profiled.
        accesses: the number of accesses after which no further block is run.
    """

    profiled_blocks: int
    profiled_accesses: int
    accesses: int

    @property
    def words(self) -> str:
        """The numbers as the plan has them."""
        return f"{self.profiled_blocks} {self.profiled_accesses} {self.accesses}"


def kernel_entries(kernel: Kernel) -> tuple[str, ...]:
    """Return the distinct kernel functions in the order of their first launches."""
    return tuple(dict.fromkeys(launch.entry for launch in kernel.launches))


def used_arenas(kernel: Kernel, arenas: Mapping[str, Arena]) -> dict[str, Arena]:
    """Return the arenas that the launches name, in a fixed order."""
    named = dict.fromkeys(name for launch in kernel.launches for name in launch.names)
    named |= dict.fromkeys(map_.tensor for map_ in kernel.tensor_maps if map_.name in named)
    return {name: arenas[name] for name in named if name in arenas}


def address_bytes(kernel: Kernel, arenas: Mapping[str, Arena], profile: GpuProfile) -> int:
    """Return the address space that the process may need, in bytes.

    The race detector takes up to 96 bytes for each byte of a tensor.
    """
    stacks = STACK_BYTES * threads_held(kernel, profile)
    tensors = [arena.tensor for arena in used_arenas(kernel, arenas).values()]
    tensors += kernel.workspaces
    return (2 << 30) + stacks + sum(100 * tensor.nbytes + (1 << 27) for tensor in tensors)


def write_plan(
    kernel: Kernel,
    arenas: Mapping[str, Arena],
    files: Mapping[str, int],
    scalars: Mapping[str, Scalar],
    *,
    sampling: Sampling | None,
    profile: GpuProfile,
    on_request: bool = False,
) -> str:
    """Return the text of the plan.

    ``files`` are the open descriptors of the arenas that the launches use. ``sampling`` says how
    much to run with every access checked: at once, or, with ``on_request``, for each request and
    with the contents that the arenas then have.

    Raises:
        KernelFault: ``constraints`` when an argument is neither a tensor, a workspace, a scalar nor
            a tensor map, or when such a map reaches beyond its tensor.
    """
    kernel.check_arguments(arenas, scalars)
    tensors = [(arenas[name].tensor, file) for name, file in files.items()]
    tensors += [(tensor, -1) for tensor in kernel.workspaces]
    numbers = {name: k for k, name in enumerate(files)}
    numbers |= {t.name: len(files) + k for k, t in enumerate(kernel.workspaces)}
    checks, defers = (1 + on_request) * (sampling is not None), int(may_decide(kernel.source))
    lines = [
        f"{checks} {defers} {sampling.words if sampling else '0 0 0'}",
        f"{profile.shared_per_block} {profile.shared_per_sm * profile.sm_count} "
        f"{threads_held(kernel, profile)} {profile.sm_count} {profile.threads_per_sm // 32}",
        str(len(tensors)),
    ]
    for tensor, file in tensors:
        use, item = _TENSOR_USES[tensor.role], stored_as(tensor.dtype).itemsize
        lines.append(f"{_word(tensor.name)} {tensor.dtype} {file} {use} {tensor.nbytes} {item}")
    sizes = [tensor.nbytes for tensor, _ in tensors]
    maps = {map_.name: _tensor_map_text(map_, numbers, sizes) for map_ in kernel.tensor_maps}
    lines.append(str(len(kernel.launches)))
    entries = kernel_entries(kernel)
    for launch in kernel.launches:
        arguments = []
        for name in launch.arguments:
            if not isinstance(name, str):
                arguments.append(_struct_text(name, numbers, scalars))
            elif name in maps:
                arguments.append(maps[name])
            elif name in numbers:
                arguments.append(f"t{numbers[name]}")
            else:
                scalar = scalars[name]
                kind, number = ("f", float) if is_floating(scalar.dtype) else ("i", int)
                word, size = _word(name), stored_as(scalar.dtype).itemsize
                value = number(scalar.rounded)
                arguments.append(f"{kind}{value!r} {word} {scalar.dtype} {size}")
        dims = " ".join(map(str, (*launch.grid, *launch.block, launch.shared_bytes)))
        resident = blocks_held(kernel, launch, profile)
        lines.append(f"{entries.index(launch.entry)} {dims} {resident} {len(arguments)}")
        lines += arguments
    return "\n".join(lines) + "\n"


def _word(name: str) -> str:
    return re.sub(r"\s", "_", name)[:200] or "_"


def _struct_text(
    members: Argument, numbers: Mapping[str, int], scalars: Mapping[str, Scalar]
) -> str:
    """Return the line of the plan for an argument that is a struct.

    It begins with the size in bytes, the members as text and their number. For each member follow
    its offset and the number of its tensor, or the bytes of its scalar in hexadecimal.
    """
    layout = StructLayout.of(members, scalars)
    words = [
        f"s{layout.nbytes}",
        _word(argument_text(members).replace(" ", "")),
        str(len(layout.members)),
    ]
    for offset, name in layout.members:
        stored = f"t{numbers[name]}" if name in numbers else scalars[name].stored.tobytes().hex()
        words.append(f"{offset} {stored}")
    return " ".join(words)


def _tensor_map_text(given: TensorMap, numbers: Mapping[str, int], sizes: Sequence[int]) -> str:
    """Return the line of the plan for an argument that is a tensor map.

    It has the number of the tensor; the rank, the swizzle in bytes and whether the map is of
    im2col; for each dimension its extent and its stride in bytes; and the box. For im2col, the
    lower corner, the upper corner and the stride of each dimension of an image follow. The line is
    empty if no launch takes the tensor.
    """
    number = numbers.get(given.tensor)
    if number is None:
        return ""
    if given.nbytes > sizes[number]:
        raise KernelFault(
            "constraints",
            f"The tensor map {given.name!r} covers {given.nbytes} bytes, and {given.tensor!r} has "
            f"{sizes[number]}.",
        )
    walk = given.im2col
    words: list[int] = [len(given.dims), given.swizzle_bytes, int(walk is not None)]
    for dimension in zip(given.dims, (given.itemsize, *given.strides_bytes), strict=True):
        words += dimension
    words += given.box
    if walk is not None:
        for each in zip(walk.lower, walk.upper, walk.strides, strict=True):
            words += each
    return f"m{number} {' '.join(map(str, words))}"


class ProcessAnswers:
    """The answers of a process, on a pipe to which its kernel can write, too.

    Each question carries a token, and each line of its answer begins with that token. The kernel
    does not know the token, so it wrote any line without it. A kernel that searches the memory of
    its process for the token can still answer in place of its runtime, but gains nothing: its
    outputs decide whether it is right.

    Args:
        entry: the name of the kernel in messages.

    Attributes:
        compared: the numbers that inspected runs have compared others with, see comparisons.cpp:
            ``f`` or ``i``, for real numbers or integers, and the number.
        unread: by input, the ranges of bytes that no inspected run has read, see shadow.cpp.
    """

    def __init__(self, entry: str) -> None:
        self._entry = entry
        self._token = b""
        self._answered = True
        self._rest = b""
        self._read_bytes = 0
        self._lines: list[str] = []
        self._waiting: tuple[str, ...] = ()
        self.compared: dict[str, None] = {}
        self.unread: dict[str, list[tuple[int, int]]] = {}

    def ask(self) -> str:
        """Return the token of a new question, or of the last one if it has no answer yet."""
        if self._answered:
            self._token = secrets.token_hex(8).encode()
            self._answered = False
            self._lines.clear()
            self._waiting = ()
            self._read_bytes = len(self._rest)
        return self._token.decode()

    def take(self, piece: bytes) -> None:
        """Add a piece of the answer.

        Raises:
            KernelFault: ``runtime``, when the piece does not answer the question.
        """
        self._rest += piece
        self._read_bytes += len(piece)
        *lines, self._rest = self._rest.split(b"\n")
        start = self._token + b" "
        begun = self._rest[: len(start)]
        if (
            not all(line.startswith(start) for line in lines)
            or begun != start[: len(begun)]
            or self._read_bytes > _MAX_ANSWER_BYTES
        ):
            raise forged_answer(self._entry)
        for line in lines:
            text = line[len(start) :].decode(errors="replace")
            if waiting := _WAITING.fullmatch(text):
                self._waiting = waiting.groups()
            elif compared := _COMPARED.fullmatch(text):
                self.compared |= dict.fromkeys(compared[1].split())
            elif unread := _UNREAD.fullmatch(text):
                ends = list(map(int, unread[2].split()))
                self.unread[unread[1]] = list(zip(ends[::2], ends[1::2], strict=True))
            else:
                self._lines.append(text)

    def timeout_fault(self, timeout_s: float) -> KernelFault:
        """Return the fault of a kernel that takes longer than ``timeout_s``."""
        text = f"{self._entry} did not finish within {timeout_s:g} s"
        if self._waiting:
            count, most = self._waiting
            text += f": {count} blocks wait for one another, and the GPU holds {most} at once"
        return KernelFault("timeout", f"{text}.")

    @property
    def has_begun(self) -> bool:
        """Whether an answer has begun."""
        return bool(self._lines)

    def runs(self, *, most: int, budget_s: float, elapsed_s: float) -> tuple[int, float]:
        """Return the number of runs and their processor time in seconds.

        Args:
            most: the greatest number of runs, as requested.
            budget_s: the processor time after which no further run begins, as requested.
            elapsed_s: the time since the request.

        Raises:
            KernelFault: the answer reports a fault, or cannot be true.
        """
        self.raise_fault()
        answer = _RAN.fullmatch(self._lines[0]) if len(self._lines) == 1 else None
        if answer is None:
            raise forged_answer(self._entry)
        count, spent_s = int(answer[1]), float(answer[2])
        enough = count == most or spent_s >= budget_s - 1e-6  # the answer is rounded
        possible = spent_s <= 1.01 * elapsed_s + 0.005  # clocks differ a little
        if not 1 <= count <= most or not enough or not possible:
            raise forged_answer(self._entry)
        self._lines.clear()
        self._answered = True
        return count, spent_s

    def profiles(self) -> list[str] | None:
        """Return the lines before the last if that is ``done``, otherwise None.

        Raises:
            KernelFault: the last line reports a fault, or is incomplete.
        """
        self.raise_fault()
        if self._rest:
            raise forged_answer(self._entry)
        return self._lines[:-1] if self._lines[-1:] == ["done"] else None

    def raise_fault(self) -> None:
        """Raise the fault that the last line reports, if it reports one.

        Raises:
            KernelFault: the fault that the process reported.
        """
        if self._lines and (fault := _FAULT.fullmatch(self._lines[-1])):
            raise KernelFault(_OUTCOMES.get(fault[1], "runtime"), shown(unmarked(fault[2])))


def forged_answer(entry: str) -> KernelFault:
    """Return the fault of a kernel that answers in place of its runtime."""
    return KernelFault(
        "runtime",
        f"{entry} wrote to the pipe on which the emulated GPU answers, which no kernel on a GPU "
        "can do.",
    )


def shown(text: str) -> str:
    """Return the beginning of a text that a kernel may have made up, without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text[:_MAX_SHOWN_CHARACTERS])
