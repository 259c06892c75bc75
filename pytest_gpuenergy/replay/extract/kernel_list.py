"""Reads unique kernels without their trace: from our own file, or from that of an older tool.

The form of the latter is not published, so each field is understood by several names, whatever
their case, blanks and underscores. What a line does not tell is None.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from msgspec.structs import replace

from pytest_gpuenergy.replay.extract.trace import PHASES, Launch, Operator, Sizes, Work
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
"""What the time of all calls is called, with the microseconds in its unit."""

_LARGEST = 1 << 63
_LONGEST_US = 1e17
_NUMBERS = re.compile(r"\s*[\[(]?\s*(\d{1,18})\s*[,x]\s*(\d{1,18})\s*[,x]\s*(\d{1,18})\s*[\])]?\s*")
_LAYER = re.compile(r"\s*(?:layer[ ._:=]?)?(\d{1,6})\s*", re.IGNORECASE)
_PYTHON = str.maketrans({"(": "[", ")": "]", "'": '"'})
_TRAILING = re.compile(r",\s*\]")


def _bare(name: str) -> str:
    """A field's name, whatever its case, blanks and underscores."""
    return re.sub(r"[\s_-]", "", name).lower()


def _microseconds(value: object, unit_us: float) -> float | None:
    """A time that is not negative."""
    number = _number(value)
    if number is None:
        return None
    found = number * unit_us
    return found if 0 <= found <= _LONGEST_US else None


def _whole(value: object) -> int | None:
    """A whole number that is not negative."""
    number = _number(value)
    if number is None or not 0 <= number < _LARGEST or number != int(number):
        return None
    return value if type(value) is int else int(number)


def _sizes(value: object) -> Sizes | None:
    """Three extents: a list, an object with x, y and z, or a text such as ``[4,2,1]``."""
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
    """A list with an entry for each argument, or the text of one, by JSON or Python."""
    if isinstance(value, str):
        text = _TRAILING.sub("]", value.translate(_PYTHON))
        try:
            value = decode(text, list[Any])
        except FormError:
            return None
    return value if isinstance(value, list) else None


def _phase(value: object) -> str | None:
    """One of our phases, if it is named."""
    word = value.lower() if isinstance(value, str) else ""
    return next((one for one in PHASES if one in word), None)


def _layers(value: object) -> tuple[int, ...] | None:
    """The numbers of layers, one or several, also in words such as ``layer 3``."""
    found = [_layer(one) for one in (value if isinstance(value, list) else [value])]
    known = {one for one in found if one is not None}
    return tuple(sorted(known)) if None not in found else None


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
    """A unique kernel, and a launch that stands for its own; the time of that has no meaning."""

    kernel: UniqueKernel
    launch: Launch


class KernelList(NamedTuple):
    """The content of a file.

    Attributes:
        kernels: the most total time first.
        notes: sentences without a period that say what was not understood.
    """

    kernels: Sequence[Listed]
    notes: Sequence[str]


def read_list(path: Path) -> KernelList:
    """The unique kernels in the lines of a file; those that share everything count once.

    Raises:
        InputError: it cannot be read, or a line is no kernel or lacks its name or time.
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
        found[key] = _sum(found[key], listed) if key in found else listed
    if not found:
        raise InputError(f"{path} has no kernels: name another file, or a trace.")
    ordered = sorted(found.values(), key=lambda one: (-one.kernel.total_us, one.kernel.id))
    return KernelList(ordered, list(map(_note, odd, odd.values())))


def _listed(line: Mapping[str, Any]) -> tuple[Listed, list[str]]:
    """What a line tells, and the names of fields in it that are not understood."""
    given = {_bare(key): value for key, value in line.items()}
    name, total_us = _name(given), _total_us(given)
    operator = _first(given, _ALIASES["operator"])
    if isinstance(operator, dict):  # our own file
        inner = {_bare(key): value for key, value in operator.items()}
        operator = inner.pop("name", None)
        given |= inner
    known, unread = {}, []
    for field, read in _READ.items():
        value = _first(given, _ALIASES[field])
        known[field] = None if value is None else read(value)
        if value is not None and known[field] is None:
            unread.append(field)
    arguments = {field: known.pop(field) for field in _ARGUMENTS}
    if not (isinstance(operator, str) and operator):
        if operator is not None or any(arguments.values()):
            unread.append("operator")
        operator = None
    calls, layers = known.pop("calls"), known.pop("layers") or ()
    work = known.pop("work") or _work(name)
    launch = Launch(
        name=name,
        work=work,
        begin_us=0.0,
        duration_us=0.0,
        operator=None if operator is None else Operator(operator, **arguments),
        **known,
    )
    kernel = UniqueKernel(
        id=identity(launch),
        name=name,
        operator=launch.operator,
        work=work,
        calls=calls,
        total_us=total_us,
        layers=layers,
        **known,
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
    """By the names that CUPTI has for copies and sets."""
    word = name.lower()
    return "copy" if word.startswith("memcpy") else "set" if word.startswith("memset") else "kernel"


def _sum(one: Listed, other: Listed) -> Listed:
    first, second = one.kernel, other.kernel
    known = first.calls is not None and second.calls is not None
    kernel = replace(
        first,
        calls=(first.calls or 0) + (second.calls or 0) if known else None,
        total_us=first.total_us + second.total_us,
        layers=tuple(sorted({*first.layers, *second.layers})),
    )
    return Listed(kernel, one.launch)


def _note(field: str, numbers: Sequence[int]) -> str:
    count = "1 line" if len(numbers) == 1 else f"{len(numbers)} lines"
    return f"{field} is not understood in {count}, such as line {numbers[0]}, and left out there"


def understood() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each field with the names that it is understood by."""
    yield "name", NAMES
    yield "total_us", tuple(TIMES)
    yield from _ALIASES.items()
