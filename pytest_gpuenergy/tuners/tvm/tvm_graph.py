"""Graphs of TVM's objects as JSON text, and which of them are accepted. This needs no TVM.

TVM 0.27 writes an object as a list of nodes, each with a type, which refer to earlier nodes by
number. Reading them can create objects of any type that TVM has, under any name, and TVM copies
names into the CUDA text. Therefore only the types of index maps and of plain tensor programs are
accepted, and strings only where they are names.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from pytest_gpuenergy.support import FormError, member, parse, shown, typed

_LONGEST_MAP = 1 << 17
"""The most characters of a map; searches write maps of 3,500."""
_LARGEST_MAP = 1 << 12
"""The most nodes of a map, each counted every time it is used."""
_MOST_NODES = 50_000
_LENGTH_BYTES = 8
_LARGEST = (1 << 31) - 1

_AXIS = re.compile(r"axes_\d{1,2}", re.ASCII)
_NAME = re.compile(r"(?:[A-Za-z_][\w.]{0,127})?", re.ASCII)
_DTYPE = re.compile(r"(?:u?int|float)(?:8|16|32|64)|bfloat16|bool", re.ASCII)
_VERSION = re.compile(r"[\w.+-]{1,64}", re.ASCII)
# The operators of a plain program, which does not call functions by name.
_OPERATORS = frozenset(
    f"{prefix}.{name}"
    for prefix, names in (
        ("prim", "if_then_else likely"),
        ("tirx", "if_then_else likely exp log sqrt rsqrt tanh sigmoid erf pow floor ceil fabs"),
    )
    for name in names.split()
)

_Check = Callable[[Any], bool]


def _integer(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


def _flag(value: object) -> bool:
    return type(value) is bool


def _matching(pattern: re.Pattern[str]) -> _Check:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


_SCALARS: Mapping[str, _Check] = {
    "None": lambda value: value is None,
    "bool": _flag,
    "ffi.String": _matching(_NAME),
    "int": lambda value: type(value) is int and -_LARGEST <= value <= _LARGEST,
    "ir.Op": lambda value: isinstance(value, str) and value in _OPERATORS,
}
# Fields that contain a value; all others contain the number of a node.
_VALUES: Mapping[tuple[str, str], _Check] = {
    ("ir.PrimType", "dtype"): _matching(_DTYPE),
    ("ir.FloatImm", "value"): lambda value: type(value) in (int, float),
    ("relax.FuncType", "purity"): _flag,
    ("relax.ShapeType", "ndim"): _integer,
    ("relax.TensorType", "ndim"): _integer,
    ("tirx.BufferType", "data_alignment"): _integer,
    ("tirx.BufferType", "offset_factor"): _integer,
    ("tirx.For", "kind"): _integer,
    ("tirx.IterVar", "iter_type"): _integer,
}
_BINARY = "Add Sub Mul Div Mod FloorDiv FloorMod Min Max EQ NE LT LE GT GE And Or"
_MAP_FIELDS = {
    "ir.IntImm": "span ty value",
    "ir.PrimType": "span dtype",
    "ir.Var": "span ty name",
    "tirx.IndexMap": "initial_indices final_indices inverse_index_map",
    **{f"prim.{name}": "span ty a b" for name in ("Add", "Sub", "Mul", "FloorDiv", "FloorMod")},
}
_PROGRAM_FIELDS = {
    "ir.Call": "span ty op args attrs ty_args",
    "ir.DictAttrs": "__dict__",
    "ir.FloatImm": "span ty value",
    "ir.GlobalVar": "span ty name_hint",
    "ir.IRModule": "functions global_var_map_ source_map attrs global_infos",
    "ir.IntImm": "span ty value",
    "ir.PrimType": "span dtype",
    "ir.Range": "min extent span",
    "ir.SourceMap": "source_map",
    "ir.TensorLoad": "span ty source indices",
    "ir.TensorRegion": "span ty source region",
    "ir.TupleType": "span fields",
    "ir.Type": "span",
    "ir.Var": "span ty name",
    "prim.Cast": "span ty value",
    "prim.Not": "span ty a",
    "prim.Select": "span ty condition true_value false_value",
    "relax.FuncType": "span params ret derive_func purity",
    "relax.ShapeType": "span values ndim",
    "relax.TensorType": "span shape dtype vdevice ndim",
    "relax.expr.ShapeExpr": "span ty values",
    "s_tir.SBlock": "span iter_vars reads writes name_hint alloc_buffers match_buffers annotations "
    "init body",
    "s_tir.SBlockRealize": "span iter_values predicate block",
    "tirx.BufferRegionType": "span",
    "tirx.BufferStore": "span buffer value indices",
    "tirx.BufferType": "span dtype storage_scope shape strides elem_offset data_alignment "
    "offset_factor layout allocated_addr",
    "tirx.For": "span loop_var min extent kind body thread_binding annotations step",
    "tirx.IterVar": "dom var iter_type thread_tag span",
    "tirx.PrimFunc": "span ty attrs params ret_type body",
    "tirx.SeqStmt": "span seq",
    **{f"prim.{name}": "span ty a b" for name in _BINARY.split()},
}


@functools.lru_cache(maxsize=64)  # the traces of a search share theirs
def is_index_map(text: str) -> bool:
    """Return whether ``text`` is an index map as TVM writes it, with TVM's generic axis names."""
    if len(text) > _LONGEST_MAP:
        return False
    try:
        nodes = _nodes(text, _MAP_FIELDS)
    except FormError:
        return False
    names = (node["data"] for node in nodes if node["type"] == "ffi.String")
    return all(map(_AXIS.fullmatch, names)) and _size(nodes) <= _LARGEST_MAP


def check_stored_workload(content: list[str]) -> None:
    """Check that an entry of ``database_workload.json``, a hash and a module, is a plain program.

    Raises:
        FormError: it is not one, or cannot be read.
    """
    try:
        packed = base64.b64decode(content[1], validate=True)
    except (binascii.Error, ValueError):
        raise FormError("its module is not in base64") from None
    length = int.from_bytes(packed[:_LENGTH_BYTES], "little")
    if length != len(packed) - _LENGTH_BYTES:
        raise FormError("its module is not complete")
    _nodes(packed[_LENGTH_BYTES:], _PROGRAM_FIELDS)


def _nodes(text: str | bytes, fields: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the nodes of an object made of scalars, lists, maps and the types in ``fields``."""
    top = typed(parse(text), dict, "it")
    nodes = member(top, "nodes", list)
    metadata = member(top, "metadata", dict)
    if set(top) != {"root_index", "nodes", "metadata"} or set(metadata) != {"tvm_version"}:
        raise FormError("it is not an object that TVM 0.27 wrote")
    if not _matching(_VERSION)(metadata["tvm_version"]):
        raise FormError(f"its TVM version is {shown(metadata['tvm_version'])}")
    if len(nodes) > _MOST_NODES or member(top, "root_index", int) != len(nodes) - 1:
        raise FormError(f"it has {len(nodes)} nodes and the root {shown(top['root_index'])}")
    for number, node in enumerate(nodes):
        if not _is_known(node, number, fields):
            raise FormError(f"its node {number} is {shown(node)}, which no plain program has")
    return nodes


def _is_known(node: Any, number: int, fields: Mapping[str, str]) -> bool:
    if type(node) is not dict or not {"type"} <= set(node) <= {"type", "data"}:
        return False
    kind, data = node["type"], node.get("data")
    if not isinstance(kind, str):
        return False
    if kind in _SCALARS:
        return _SCALARS[kind](data)
    if kind in ("ffi.Array", "ffi.Map"):
        return type(data) is list and all(_is_earlier(item, number) for item in data)
    if kind not in fields or type(data) is not dict or set(data) != set(fields[kind].split()):
        return False
    return all(
        _VALUES[kind, name](value) if (kind, name) in _VALUES else _is_earlier(value, number)
        for name, value in data.items()
    )


def _is_earlier(value: object, number: int) -> bool:
    return type(value) is int and 0 <= value < number


def _size(nodes: list[dict[str, Any]]) -> int:
    """Return the number of nodes of the root as a tree, in which shared nodes are repeated."""
    sizes: list[int] = []
    for node in nodes:
        data = node.get("data")
        used = list(data.values()) if isinstance(data, dict) else data
        referred = [n for n in used if type(n) is int] if isinstance(used, list) else []
        sizes.append(1 + sum(sizes[number] for number in referred))
    return sizes[-1]
