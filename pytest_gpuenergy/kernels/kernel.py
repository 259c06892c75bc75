"""Kernels: immutable, identified by content, independent of any device."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import ClassVar, Literal

from pytest_gpuenergy.kernels.arguments import Argument, argument_names, checked_arguments
from pytest_gpuenergy.kernels.cuda_tokens import without_comments
from pytest_gpuenergy.kernels.tensor_map import TensorMap
from pytest_gpuenergy.record import AboveZero, LaunchInfo
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.workloads import Tensor, whole, whole_sizes

Kind = Literal["cuda", "triton", "library", "program"]
Dim3 = tuple[int, int, int]

_GRID = re.compile(r"(\w+)\s*[=({]\s*(?:\w+::)*this_grid\s*\(|\bgrid_group\s*&?\s*(\w+)")
"""Finds the names of groups that span a whole grid."""
# A function or an instance of a template. It is inserted into C++ text.
_ENTRY = re.compile(
    r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*(?: ?(?P<arguments><[\w :,<>()*&+-]*>))?", re.ASCII
)


_SHARED = re.compile(
    r"(?P<extern>\bextern\s+)?\b__shared__\s+"
    r"(?:(?:__align__|alignas)\s*\([^()]*\)\s*)?(?P<type>[A-Za-z_][\w \t]*?)\s*"
    r"(?P<names>\b[A-Za-z_]\w*\s*(?:\[[^;\]]*\]\s*)*(?:,\s*\w+\s*(?:\[[^;\]]*\]\s*)*)*);"
)
_DIMENSION = re.compile(r"\[([^\]]*)\]")
_ONE_BYTE = ("char", "bool", "int8_t", "uint8_t")
_TWO_BYTES = ("short", "half", "__half", "__nv_bfloat16", "int16_t", "uint16_t")
_FOUR_BYTES = ("int", "unsigned", "float", "int32_t", "uint32_t", "half2", "__half2")
_EIGHT_BYTES = ("double", "float2", "int2", "uint2", "long long", "int64_t", "uint64_t")
_SIXTEEN_BYTES = ("float4", "int4", "uint4", "double2")
_BYTES = {
    name: 1 << power
    for power, names in enumerate(
        (_ONE_BYTE, _TWO_BYTES, _FOUR_BYTES, _EIGHT_BYTES, _SIXTEEN_BYTES)
    )
    for name in names
}


@dataclass(frozen=True)
class Launch:
    """One entry of the source with its launch geometry.

    ``arguments`` names tensors, workspaces or scalars in the order of the entry's parameters; a
    struct that the entry takes by value is a tuple of its members in order, in which an array or
    another struct is a tuple again. ``shared_bytes`` is the dynamic shared memory of a block. With
    ``early``, blocks may begin while the launch before it ends, so that it costs less to begin: its
    threads wait for the results by ``griddepcontrol.wait`` (PTX ISA, sm_90; CUDA C++ Programming
    Guide, "Programmatic Dependent Launch").

    Raises:
        InputError: the entry is not the name of a function, an argument is neither a name nor a
            tuple of members, or a size is out of range.
    """

    entry: str
    grid: Dim3
    block: Dim3
    arguments: tuple[Argument, ...]
    shared_bytes: int = 0
    early: bool = False

    def __post_init__(self) -> None:
        if not is_entry(self.entry):
            raise InputError(
                f"The entry {self.entry!r} of a launch is not the name of a function: give a name "
                "such as 'f', 'n::f' or 'f<float, 4>'."
            )
        object.__setattr__(self, "arguments", checked_arguments(self.arguments, self.entry))
        object.__setattr__(self, "shared_bytes", whole(self.shared_bytes))
        for what in ("grid", "block"):
            dims = checked_dims(f"The {what} of {self.entry!r}", getattr(self, what))
            object.__setattr__(self, what, dims)
        if type(self.shared_bytes) is not int or self.shared_bytes < 0:
            raise InputError(
                f"The dynamic shared memory of {self.entry!r} must be a number of bytes, "
                f"not {self.shared_bytes!r}."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the arguments, with those of the members of structs."""
        return tuple(argument_names(self.arguments))

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


def checked_dims(what: str, sizes: object) -> Dim3:
    """Return three sizes as integers of Python.

    Raises:
        InputError: they are not three positive integers; the message begins with ``what``.
    """
    dims = whole_sizes(sizes)
    if len(dims) != 3 or any(type(d) is not int or d < 1 for d in dims):
        raise InputError(f"{what} must be three positive integers, not {dims!r}.")
    x, y, z = dims
    return x, y, z


def function_name(entry: str) -> str:
    """Return the bare name of the function, without namespaces and template arguments."""
    return entry.partition("<")[0].rpartition("::")[2].strip()


def is_entry(name: str) -> bool:
    """Return whether ``name`` is a function or an instance of a template, and no other text."""
    match = _ENTRY.fullmatch(name)
    if match is None:
        return False
    open_brackets: list[str] = []
    arguments = match["arguments"] or ""
    for position, character in enumerate(arguments, start=1):
        if character in "<(":
            open_brackets.append({"<": ">", "(": ")"}[character])
        elif character in ">)" and (not open_brackets or open_brackets.pop() != character):
            return False
        if not open_brackets and position < len(arguments):
            return False  # the argument list ends before the text does
    return not open_brackets


@dataclass(frozen=True)
class RecordedFigures:
    """Time, power and energy of one launch on a real GPU, at that card's own power limit."""

    gpu: str
    power_limit_w: AboveZero
    time_ms: AboveZero
    power_w: AboveZero
    energy_mj: AboveZero


@dataclass(frozen=True)
class Origin:
    """Where a kernel comes from: a tuner's record, a template, a file, a search's moves.

    ``rank`` is its rank in its selection (1 = fastest), ``details`` whatever the kind adds.
    """

    kind: str
    rank: int | None = None
    details: Mapping[str, str | int | float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AnyKernel(ABC):
    """The work of a worker process on a job's tensors, as plain data.

    Equality and `digest` cover what is executed, not where it comes from.

    Attributes:
        kind: the kind of kernel, which tells a worker how to run it.
        workspaces: buffers that only the kernel itself uses.
        origin: where the kernel comes from.
    """

    kind: ClassVar[Kind]
    workspaces: tuple[Tensor, ...] = ()
    origin: Origin = field(default=Origin("source"), compare=False)

    @property
    @abstractmethod
    def label(self) -> str:
        """Its default name in reports: not the hash, which changes with every version."""

    @property
    def content(self) -> Mapping[str, object]:
        """What is executed, apart from the workspaces, as JSON values."""
        names = [field.name for field in fields(self) if field.name not in ("workspaces", "origin")]
        return {"kind": self.kind, **{name: getattr(self, name) for name in names}}

    @property
    @abstractmethod
    def taken(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the tensors, workspaces and scalars that each function or map takes."""

    @property
    def modules(self) -> tuple[str, ...]:
        """Python modules that a process needs to run it on a real GPU."""
        return ()

    @property
    def launch_infos(self) -> tuple[LaunchInfo, ...]:
        """The launches for reports; none where a library or a host program decides."""
        return ()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content and the workspaces, in hexadecimal."""
        content = {**self.content, "workspaces": self.stored_workspaces}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def stored_workspaces(self) -> list[dict[str, object]]:
        """The workspaces as JSON values."""
        return [
            {
                "name": workspace.name,
                "shape": workspace.shape,
                "dtype": workspace.dtype,
                "role": workspace.role,
            }
            for workspace in self.workspaces
        ]

    def check_arguments(self, tensors: Iterable[str], scalars: Iterable[str]) -> None:
        """Check that the launches take only ``tensors``, workspaces and ``scalars``.

        Raises:
            KernelFault: ``constraints``, if a launch takes anything else.
        """
        known = [*tensors, *(space.name for space in self.workspaces), *scalars]
        for function, names in self.taken.items():
            for name in names:
                if name not in known:
                    raise KernelFault(
                        "constraints",
                        f"{function} takes an argument {name!r}, which is not a tensor, workspace "
                        f"or scalar (there are {', '.join(known)}).",
                    )

    @property
    def short_digest(self) -> str:
        """The first twelve characters of `digest`, for people."""
        return self.digest[:12]


@dataclass(frozen=True)
class Kernel(AnyKernel):
    """CUDA text with everything needed to launch it.

    Attributes:
        source: the CUDA text.
        launches: launches of its functions, one after another.
        tensor_maps: the tensor maps that the launches take.
        recorded: figures of the kernel on real GPUs.
    """

    kind = "cuda"
    source: str
    launches: tuple[Launch, ...]
    tensor_maps: tuple[TensorMap, ...] = ()
    recorded: tuple[RecordedFigures, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "launches", tuple(self.launches))
        if not self.launches:
            raise InputError("A kernel needs at least one launch.")
        for launch in self.launches:
            members = argument_names(
                argument for argument in launch.arguments if not isinstance(argument, str)
            )
            if mapped := {tensor_map.name for tensor_map in self.tensor_maps}.intersection(members):
                raise InputError(
                    f"A struct of {launch.entry!r} has the tensor map {min(mapped)!r}: only "
                    "tensors and scalars can be members."
                )
        check_source(self.source)

    @property
    def label(self) -> str:
        return self.launches[0].entry

    @property
    def content(self) -> Mapping[str, object]:
        launches = [asdict(launch) for launch in self.launches]
        for launch in launches:
            if not launch["early"]:  # most are not, and keep their digest
                del launch["early"]
        maps = [tensor_map.content for tensor_map in self.tensor_maps]
        return {
            "source": self.source,
            "language": self.kind,
            "launches": launches,
            **({"tensor_maps": maps} if maps else {}),  # most have none, and keep their digest
        }

    @property
    def launch_infos(self) -> tuple[LaunchInfo, ...]:
        # With several launches, the text does not say which of them an array belongs to.
        static = _static_shared_bytes(self.source) if len(self.launches) == 1 else None
        return tuple(
            LaunchInfo(launch.entry, launch.grid, launch.block, launch.shared_bytes, static)
            for launch in self.launches
        )

    @cached_property
    def has_grid_barrier(self) -> bool:
        """Whether blocks may wait for one another at ``this_grid().sync()``, by the text.

        Such a kernel needs a cooperative launch.
        """
        return _finds_grid_barrier(self.source)

    @property
    def taken(self) -> Mapping[str, tuple[str, ...]]:
        maps = {tensor_map.name: tensor_map.tensor for tensor_map in self.tensor_maps}
        taken = {f"The tensor map {name!r}": (tensor,) for name, tensor in maps.items()}
        for launch in self.launches:
            own = tuple(name for name in launch.names if name not in maps)
            taken[launch.entry] = (*taken.get(launch.entry, ()), *own)
        return taken


@functools.lru_cache(maxsize=64)
def _finds_grid_barrier(source: str) -> bool:
    if "this_grid" not in source and "grid_group" not in source:  # which takes a hundredth as long
        return False
    return any(
        re.search(rf"(?<![\w.]){re.escape(name)}\s*\.\s*sync\s*\(", source)
        or re.search(rf"(?<![\w.])sync\s*\(\s*{re.escape(name)}\s*\)", source)
        for name in {"this_grid()", *filter(None, sum(_GRID.findall(source), ()))}
    )


def check_source(source: str) -> None:
    """Check that a kernel's source is text.

    Raises:
        InputError: it is empty, binary, or cannot be written as UTF-8.
    """
    if "\0" in source or not source.strip():
        raise InputError("A kernel needs source text; this one is empty or binary.")
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"The kernel's text has half of a surrogate pair at position {error.start}, which JSON "
            "allows: write it as UTF-8."
        ) from None


def _static_shared_bytes(source: str) -> int | None:
    """Return the bytes of the arrays that CUDA text declares ``__shared__``, without dynamic ones.

    None when a size is not a number in the text, or the type of an element is not known.
    """
    text = without_comments(source)
    total = 0
    declarations = 0
    for declaration in _SHARED.finditer(text):
        declarations += 1
        if declaration["extern"]:
            continue
        words = declaration["type"].split()
        element = " ".join(word for word in words if word not in ("signed", "volatile", "const"))
        size = _BYTES.get(element.removeprefix("unsigned ") or "int")
        if size is None:
            return None
        for name in declaration["names"].split(","):
            dimensions = [words.strip() for words in _DIMENSION.findall(name)]
            if not all(words.isascii() and words.isdecimal() for words in dimensions):
                return None
            total += size * math.prod(map(int, dimensions))
    return total if declarations == len(re.findall(r"\b__shared__\b", text)) else None
