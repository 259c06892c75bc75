"""Launches that do the same work, counted once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from pytest_gpuenergy.replay.extract.trace import Launch, Operator, Sizes, Work


class UniqueKernel(Struct, frozen=True):
    """What the launches with the same kernel, operator, arguments, launch plan and phase share.

    Attributes:
        id: ``k`` and the first hexadecimal digits of a hash of all that they share, so that the
            same kernel has the same id in every trace.
        calls: how many there are; None where that is not known.
        total_us: the sum of their durations.
        layers: of the model in which they occur; empty where the trace does not tell.
    """

    id: str
    name: str
    work: Work
    operator: Operator | None
    phase: str | None
    grid: Sizes | None
    block: Sizes | None
    shared_memory_bytes: int | None
    registers: int | None
    bytes: int | None
    calls: int | None
    total_us: float
    layers: tuple[int, ...] = ()


def unique_kernels(launches: Iterable[Launch]) -> list[tuple[UniqueKernel, Sequence[Launch]]]:
    """Each with its launches, the most total time first."""
    groups: dict[str, list[Launch]] = {}
    for launch in launches:
        groups.setdefault(identity(launch), []).append(launch)
    found = [(_unique(key, group), group) for key, group in groups.items()]
    return sorted(found, key=lambda pair: (-pair[0].total_us, pair[0].id))


def identity(launch: Launch) -> str:
    """The id of the unique kernel that a launch belongs to."""
    shared: list[Any] = [
        *(launch.name, launch.work, launch.operator, launch.phase, launch.grid, launch.block),
        *(launch.shared_memory_bytes, launch.registers, launch.bytes),
    ]
    text = msgspec.json.encode(shared, order="deterministic")
    return f"k{hashlib.sha256(text).hexdigest()[:12]}"


def _unique(key: str, group: Sequence[Launch]) -> UniqueKernel:
    first = group[0]
    return UniqueKernel(
        id=key,
        name=first.name,
        work=first.work,
        operator=first.operator,
        phase=first.phase,
        grid=first.grid,
        block=first.block,
        shared_memory_bytes=first.shared_memory_bytes,
        registers=first.registers,
        bytes=first.bytes,
        calls=len(group),
        total_us=sum(one.duration_us for one in group),
        layers=tuple(sorted({one.layer for one in group if one.layer is not None})),
    )


Category = Literal[
    "product",
    "convolution",
    "attention",
    "normalization",
    "reduction",
    "elementwise",
    "gather",
    "copy",
    "set",
    "communication",
    "other",
]

_CATEGORIES: tuple[tuple[Category, re.Pattern[str]], ...] = (
    ("communication", re.compile(r"nccl|rccl|nvshmem|all_?reduce|all_?gather|reduce_?scatter")),
    ("attention", re.compile(r"attention|flash_|fmha|attn|paged_kv|\bmha")),
    ("convolution", re.compile(r"conv|fprop|dgrad|wgrad|winograd")),
    ("product", re.compile(r"gemm|gemv|nvjet|xmma|cutlass|cublas|splitk|tensorop|cijk_")),
    ("normalization", re.compile(r"layer_?norm|rms_?norm|batch_?norm|\bbn_|group_?norm|softmax")),
    ("copy", re.compile(r"copy_kernel|direct_copy|catarray|copy_device|transpose")),
    ("gather", re.compile(r"index|gather|scatter|embedding|tri[ul]_")),
    ("reduction", re.compile(r"reduc|argmax|cumsum|scan|sort|topk|pool")),
    (
        "elementwise",
        re.compile(r"elementwise|pointwise|_poi_|fill|arange|lu_|multi_tensor|dropout"),
    ),
)
"""Tried in this order on the kernel's name and its operator's; a fused softmax of attention is one
of attention."""

_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "bmm", "baddbmm", "addbmm", "matmul", "linear", "mv", "addmv", "dot"),
        *("_scaled_mm", "_addmm_activation", "_int_mm"),
    )
)
TIERS = {
    1: "copies and sets, by the CUDA runtime",
    2: "matrix products, by cuBLASLt",
    3: "other operators, called again with their arguments",
    4: "Triton kernels, launched as kernels",
}
"""What a replay does in each tier."""


class Signature(Struct, frozen=True):
    """How a unique kernel can be replayed.

    Attributes:
        kernel: its id.
        category: what it does, by its name and its operator's.
        tier: see `TIERS`; None if it cannot be replayed.
        recipe: what to call, with which arguments.
        missing: why it cannot be replayed, as a clause; None if it can.
    """

    kernel: str
    category: Category
    tier: int | None
    recipe: dict[str, Any]
    missing: str | None = None


def signature_of(kernel: str, launch: Launch) -> Signature:
    """For the unique kernel ``kernel``, of which this is a launch."""
    category = category_of(launch)
    if launch.work == "operator":
        return Signature(kernel, category, None, {}, "it ran on the host")
    if launch.work != "kernel":
        recipe = {"call": launch.name, "bytes": launch.bytes}
        missing = None if launch.bytes else "it is not known how many bytes it concerns"
        return Signature(kernel, category, None if missing else 1, recipe, missing)
    if category == "communication":
        return Signature(kernel, category, None, {}, "it needs the other GPUs of its group")
    if launch.operator is None:
        return Signature(kernel, category, None, {}, "it is not known which operator launched it")
    recipe = {
        "operator": launch.operator.name,
        "shapes": launch.operator.shapes,
        "dtypes": launch.operator.dtypes,
        "strides": launch.operator.strides,
        "scalars": launch.operator.scalars,
    }
    missing = _missing(launch.operator)
    tier = None if missing else _tier(launch, category)
    return Signature(kernel, category, tier, recipe, missing)


def _tier(launch: Launch, category: Category) -> int:
    operator = "" if launch.operator is None else launch.operator.name
    if operator in _PRODUCTS and category == "product":
        return 2
    return 4 if "triton" in f"{launch.name} {operator}".lower() else 3


def _missing(operator: Operator) -> str | None:
    if operator.shapes is None or operator.dtypes is None:
        return "its operator's arguments were not recorded: profile with record_shapes=True"
    if operator.strides is None:
        return "the strides of its operator's arguments were not recorded"
    return None


def category_of(launch: Launch) -> Category:
    """What a launch does, by its name and its operator's."""
    if launch.work in ("copy", "set"):
        return "copy" if launch.work == "copy" else "set"
    operator = "" if launch.operator is None else launch.operator.name
    for text in (launch.name.lower(), operator.lower()):
        for category, pattern in _CATEGORIES:
            if pattern.search(text):
                return category
    return "product" if operator in _PRODUCTS else "other"
