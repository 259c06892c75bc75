"""Reads unique kernels without their trace: from our own file, or from that of an older tool.

The older tool's form is not published. Therefore each field may have any of several names, in which
case, blanks and underscores do not matter, and its value any of the forms that tools write. A value
that is missing or not understood is None.
"""

from __future__ import annotations

import math
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from msgspec.structs import replace

from pytest_gpuenergy.replay.extract.trace import (
    PHASES,
    CalledOperator,
    Sizes,
    Work,
    with_nulls,
)
from pytest_gpuenergy.replay.extract.unique_kernels import UniqueKernel, identity
from pytest_gpuenergy.support import FormError, InputError, counted, decode, read_unpacked

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


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _whole(value: object) -> int | None:
    """Return a whole number that is not negative."""
    number = _number(value)
    if number is None or not 0 <= number < _LARGEST or number != int(number):
        return None
    return value if type(value) is int else int(number)


def _sizes(value: object) -> Sizes | None:
    """Return three extents, from a list, an object with x, y and z, or text such as ``[4,2,1]``."""
    if isinstance(value, str):
        hit = _NUMBERS.fullmatch(value)
        value = None if hit is None else list(hit.groups())
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
    numbers = set()
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str):
            hit = _LAYER.fullmatch(item)
            number = None if hit is None else int(hit[1])
        else:
            number = _whole(item)
        if number is None:
            return None
        numbers.add(number)
    return tuple(sorted(numbers))


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


def read_list(path: Path) -> tuple[list[UniqueKernel], list[str]]:
    """Read the unique kernels in the lines of a file, and merge those that share everything.

    Returns:
        The unique kernels, the most total time first; and sentences without a period that say
        what was not understood.

    Raises:
        InputError: The file cannot be read, or a line is no kernel or lacks its name or time.
    """
    content = read_unpacked(path, "list of kernels", _LARGEST_BYTES).removeprefix(BOM_UTF8)
    found: dict[str, UniqueKernel] = {}
    unread: dict[str, list[int]] = {}
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            kernel, fields = _kernel(_fields(line))
        except FormError as error:
            raise InputError(f"Line {number} of {path} is not a kernel: {error}.") from None
        for name in fields:
            unread.setdefault(name, []).append(number)
        if (same := found.get(kernel.id)) is not None:
            known = same.calls is not None and kernel.calls is not None
            kernel = replace(
                same,
                calls=(same.calls or 0) + (kernel.calls or 0) if known else None,
                total_us=same.total_us + kernel.total_us,
                layers=tuple(sorted({*same.layers, *kernel.layers})),
            )
        found[kernel.id] = kernel
    if not found:
        raise InputError(f"{path} has no kernels: name another file, or a trace.")
    notes = [
        f"{name} is not understood in {counted(len(numbers), 'line')}, "
        f"such as line {numbers[0]}, and left out there"
        for name, numbers in unread.items()
    ]
    return sorted(found.values(), key=lambda kernel: (-kernel.total_us, kernel.id)), notes


def _fields(line: bytes) -> dict[str, Any]:
    """Return the fields of a line, None for numbers that JSON does not have."""
    try:
        return decode(line, dict[str, Any], "it")
    except FormError:
        return decode(with_nulls(line), dict[str, Any], "it")


def _kernel(line: Mapping[str, Any]) -> tuple[UniqueKernel, list[str]]:
    """Return the kernel of a line, and the names of its fields that are not understood."""
    values = {_bare(key): value for key, value in line.items()}
    name = _first(values, NAMES)
    if not isinstance(name, str) or not name.strip():
        raise FormError(f"it has no name; {', '.join(NAMES)} are understood")
    times = ((_number(values.get(_bare(field))), unit_us) for field, unit_us in TIMES.items())
    times_us = (number * unit_us for number, unit_us in times if number is not None)
    total_us = next((us for us in times_us if 0 <= us <= _LONGEST_US), None)
    if total_us is None:
        raise FormError(f"it has no time of all calls; {', '.join(TIMES)} are understood")
    operator = _first(values, _ALIASES["operator"])
    if isinstance(operator, dict):  # our own file
        inner = {_bare(key): value for key, value in operator.items()}
        operator = inner.pop("name", None)
        values |= inner
    fields: dict[str, Any] = {}
    unread = []
    for field, read in _READ.items():
        value = _first(values, _ALIASES[field])
        fields[field] = None if value is None else read(value)
        if value is not None and fields[field] is None:
            unread.append(field)
    arguments = {field: fields.pop(field) for field in _ARGUMENTS}
    if not (isinstance(operator, str) and operator):
        if operator is not None or any(arguments.values()):
            unread.append("operator")
        operator = None
    if fields["work"] is None:  # CUPTI's names of copies and sets
        word = name.lower()
        copies = {"memcpy": "copy", "memset": "set"}
        fields["work"] = copies.get(word[:6], "kernel")
    kernel = UniqueKernel(
        id="",
        name=name,
        operator=None if operator is None else CalledOperator(operator, **arguments),
        total_us=total_us,
        layers=fields.pop("layers") or (),
        **fields,
    )
    return replace(kernel, id=identity(kernel)), unread


def _first(values: Mapping[str, Any], names: Sequence[str]) -> Any:
    found = (values.get(_bare(name)) for name in names)
    return next((value for value in found if value is not None), None)


def _bare(name: str) -> str:
    """Return a field's name in lower case, without blanks and underscores."""
    return re.sub(r"[\s_-]", "", name).lower()


def understood() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each field with the names that it is understood by."""
    yield "name", NAMES
    yield "total_us", tuple(TIMES)
    yield from _ALIASES.items()
