"""Reads unique kernels without their trace: from our own file, or from that of an older tool.

The older tool's form is not published. So each field is understood by several names, whatever
their case, blanks and underscores, and its value in any of the forms that tools write. A value that
is missing or not understood is None.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from msgspec.structs import replace

from pytest_gpuenergy.replay.extract.trace import PHASES, CalledOperator, Sizes, TraceLaunch, Work
from pytest_gpuenergy.replay.extract.unique_kernels import UniqueKernel, identity
from pytest_gpuenergy.support import FormError, InputError, decode, read_unpacked

_LARGEST_BYTES = 1 << 28
_UNITS_US = {"_us": 1.0, "_ms": 1e3, "_ns": 1e-3, "": 1.0}
_TIMES = ("total", "total_time", "total_duration", "duration", "time")

NAMES = ("name", "kernel_name", "kernel")
TIMES = {
    f"{name}{unit}": us
    for name in _TIMES
    for unit, us in _UNITS_US.items()
    if unit or name != "total"  # which might be a number of calls
}
"""The names of the field with the time of all calls, each with its unit in microseconds."""

_LARGEST = 1 << 63
_LONGEST_US = 1e17
_NUMBERS = re.compile(r"\s*[\[(]?\s*(\d{1,18})\s*[,x]\s*(\d{1,18})\s*[,x]\s*(\d{1,18})\s*[\])]?\s*")
_LAYER = re.compile(r"\s*(?:layer[ ._:=]?)?(\d{1,6})\s*", re.IGNORECASE)
_PYTHON = str.maketrans({"(": "[", ")": "]", "'": '"'})
_TRAILING = re.compile(r",\s*\]")


def _bare(name: str) -> str:
    """Return a field's name in lower case, without blanks and underscores."""
    return re.sub(r"[\s_-]", "", name).lower()


def _microseconds(value: object, unit_us: float) -> float | None:
    """Return a time that is not negative."""
    number = _number(value)
    if number is None:
        return None
    found = number * unit_us
    return found if 0 <= found <= _LONGEST_US else None


def _whole(value: object) -> int | None:
    """Return a whole number that is not negative."""
    number = _number(value)
    if number is None or not 0 <= number < _LARGEST or number != int(number):
        return None
    return value if type(value) is int else int(number)


def _sizes(value: object) -> Sizes | None:
    """Return three extents, from a list, an object with x, y and z, or text such as ``[4,2,1]``."""
    if isinstance(value, str):
        found = _NUMBERS.fullmatch(value)
        value = None if found is None else list(found.groups())
    if isinstance(value, dict):
        value = [value.get(axis) for axis in "xyz"]
    if not isinstance(value, list) or len(value) != 3:
        return None
    numbers = [number for number in map(_whole, value) if number is not None]
    return tuple(numbers) if len(numbers) == 3 else None


def _entries(value: object) -> list[Any] | None:
    """Return a list with an entry for each argument, from a list or its text in JSON or Python."""
    if isinstance(value, str):
        text = _TRAILING.sub("]", value.translate(_PYTHON))
        try:
            value = decode(text, list[Any])
        except FormError:
            return None
    return value if isinstance(value, list) else None


def _phase(value: object) -> str | None:
    """Return the phase that a text names."""
    word = value.lower() if isinstance(value, str) else ""
    return next((name for name in PHASES if name in word), None)


def _layers(value: object) -> tuple[int, ...] | None:
    """Return the numbers of one or several layers, also from words such as ``layer 3``."""
    found = [_layer(item) for item in (value if isinstance(value, list) else [value])]
    numbers = {number for number in found if number is not None}
    return tuple(sorted(numbers)) if None not in found else None


def _layer(value: object) -> int | None:
    if isinstance(value, str):
        found = _LAYER.fullmatch(value)
        return None if found is None else int(found[1])
    return _whole(value)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


_ALIASES: dict[str, tuple[str, ...]] = {
    "operator": ("operator", "operator_name", "op", "op_name", "aten_op", "cpu_op"),
    "shapes": ("shapes", "input_shapes", "input_dims", "arg_shapes"),
    "dtypes": ("dtypes", "input_dtypes", "input_types", "input_type", "types"),
    "strides": ("strides", "input_strides", "arg_strides"),
    "scalars": ("scalars", "scalar_arguments", "scalar_args", "concrete_inputs"),
    "grid": ("grid", "grid_size", "grid_dim", "grid_dims"),
    "block": ("block", "block_size", "block_dim", "block_dims"),
    "shared_memory_bytes": ("shared_memory_bytes", "shared_memory", "shared_mem", "smem"),
    "registers": ("registers", "registers_per_thread", "regs"),
    "bytes": ("bytes", "size_bytes"),
    "calls": ("calls", "count", "call_count", "num_calls", "launches"),
    "phase": ("phase", "stage"),
    "layers": ("layers", "layer", "layer_ids", "layer_id"),
    "work": ("work",),
}
_ARGUMENTS = ("shapes", "dtypes", "strides", "scalars")
_READ: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_ARGUMENTS, _entries),
    **dict.fromkeys(("grid", "block"), _sizes),
    **dict.fromkeys(("shared_memory_bytes", "registers", "bytes", "calls"), _whole),
    "phase": _phase,
    "layers": _layers,
    "work": lambda value: value if value in get_args(Work) else None,
}


class Listed(NamedTuple):
    """A unique kernel with one representative launch, whose duration is not used."""

    kernel: UniqueKernel
    launch: TraceLaunch


class KernelList(NamedTuple):
    """The content of a file.

    Attributes:
        kernels: The unique kernels, the most total time first.
        notes: Sentences without a period that say what was not understood.
    """

    kernels: Sequence[Listed]
    notes: Sequence[str]


def read_list(path: Path) -> KernelList:
    """Read the unique kernels in the lines of a file, and merge those that share everything.

    Raises:
        InputError: The file cannot be read, or a line is no kernel or lacks its name or time.
    """
    content = read_unpacked(path, "list of kernels", _LARGEST_BYTES)
    found: dict[str, Listed] = {}
    odd: dict[str, list[int]] = {}
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            listed, unread = _listed(decode(line, dict[str, Any], "it"))
        except FormError as error:
            raise InputError(f"Line {number} of {path} is not a kernel: {error}.") from None
        for name in unread:
            odd.setdefault(name, []).append(number)
        key = listed.kernel.id
        found[key] = _sum(found[key], listed.kernel) if key in found else listed
    if not found:
        raise InputError(f"{path} has no kernels: name another file, or a trace.")
    ordered = sorted(found.values(), key=lambda listed: (-listed.kernel.total_us, listed.kernel.id))
    return KernelList(ordered, list(map(_note, odd, odd.values())))


def _listed(line: Mapping[str, Any]) -> tuple[Listed, list[str]]:
    """Return the kernel of a line, and the names of its fields that are not understood."""
    given = {_bare(key): value for key, value in line.items()}
    name, total_us = _name(given), _total_us(given)
    operator = _first(given, _ALIASES["operator"])
    if isinstance(operator, dict):  # our own file
        inner = {_bare(key): value for key, value in operator.items()}
        operator = inner.pop("name", None)
        given |= inner
    fields, unread = {}, []
    for field, read in _READ.items():
        value = _first(given, _ALIASES[field])
        fields[field] = None if value is None else read(value)
        if value is not None and fields[field] is None:
            unread.append(field)
    arguments = {field: fields.pop(field) for field in _ARGUMENTS}
    if not (isinstance(operator, str) and operator):
        if operator is not None or any(arguments.values()):
            unread.append("operator")
        operator = None
    calls, layers = fields.pop("calls"), fields.pop("layers") or ()
    work = fields.pop("work") or _work(name)
    launch = TraceLaunch(
        name=name,
        work=work,
        begin_us=0.0,
        duration_us=0.0,
        operator=None if operator is None else CalledOperator(operator, **arguments),
        **fields,
    )
    kernel = UniqueKernel(
        id=identity(launch),
        name=name,
        operator=launch.operator,
        work=work,
        calls=calls,
        total_us=total_us,
        layers=layers,
        **fields,
    )
    return Listed(kernel, launch), unread


def _first(given: Mapping[str, Any], names: Sequence[str]) -> Any:
    found = (given.get(_bare(name)) for name in names)
    return next((value for value in found if value is not None), None)


def _name(given: Mapping[str, Any]) -> str:
    found = _first(given, NAMES)
    if not isinstance(found, str) or not found.strip():
        raise FormError(f"it has no name; {', '.join(NAMES)} are understood")
    return found


def _total_us(given: Mapping[str, Any]) -> float:
    for name, unit_us in TIMES.items():
        value = given.get(_bare(name))
        if value is not None and (found := _microseconds(value, unit_us)) is not None:
            return found
    raise FormError(f"it has no time of all calls; {', '.join(TIMES)} are understood")


def _work(name: str) -> Work:
    """Return the kind of work, by the names that CUPTI has for copies and sets."""
    word = name.lower()
    return "copy" if word.startswith("memcpy") else "set" if word.startswith("memset") else "kernel"


def _sum(listed: Listed, other: UniqueKernel) -> Listed:
    kernel = listed.kernel
    calls = None if kernel.calls is None or other.calls is None else kernel.calls + other.calls
    total = replace(
        kernel,
        calls=calls,
        total_us=kernel.total_us + other.total_us,
        layers=tuple(sorted({*kernel.layers, *other.layers})),
    )
    return Listed(total, listed.launch)


def _note(field: str, numbers: Sequence[int]) -> str:
    count = "1 line" if len(numbers) == 1 else f"{len(numbers)} lines"
    return f"{field} is not understood in {count}, such as line {numbers[0]}, and left out there"


def understood() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each field with the names that it is understood by."""
    yield "name", NAMES
    yield "total_us", tuple(TIMES)
    yield from _ALIASES.items()
