"""Groups launches that do the same work into unique kernels, and says how to replay each."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import Struct

from pytest_gpuenergy.replay.extract.trace import CalledOperator, Sizes, TraceLaunch, Work


class UniqueKernel(Struct, frozen=True):
    """All launches with the same kernel, operator, arguments, launch plan and phase.

    See `TraceLaunch` for the attributes that they share.

    Attributes:
        id: ``k`` and the first hexadecimal digits of a hash of all that the launches share, so
            that the same kernel has the same id in every trace.
        calls: The number of launches; None where it is unknown.
        total_us: The sum of their durations, in microseconds.
        layers: The layers of the model in which they occur; empty where that is unknown.
    """

    id: str
    name: str
    work: Work
    operator: CalledOperator | None
    phase: str | None
    grid: Sizes | None
    block: Sizes | None
    shared_memory_bytes: int | None
    registers: int | None
    bytes: int | None
    calls: int | None
    total_us: float
    layers: tuple[int, ...] = ()


_SHARED = (
    *("name", "work", "operator", "phase", "grid", "block"),
    *("shared_memory_bytes", "registers", "bytes"),
)
"""The attributes in which all launches of a unique kernel agree."""


def unique_kernels(launches: Iterable[TraceLaunch]) -> list[UniqueKernel]:
    """Return the unique kernels of some launches, the most total time first."""
    groups: dict[str, list[TraceLaunch]] = {}
    for launch in launches:
        groups.setdefault(identity(launch), []).append(launch)
    found = [
        UniqueKernel(
            id=key,
            **{name: getattr(group[0], name) for name in _SHARED},
            calls=len(group),
            total_us=sum(launch.duration_us for launch in group),
            layers=tuple(sorted({launch.layer for launch in group if launch.layer is not None})),
        )
        for key, group in groups.items()
    ]
    return sorted(found, key=lambda kernel: (-kernel.total_us, kernel.id))


def identity(launch: TraceLaunch | UniqueKernel) -> str:
    """Return the id of the unique kernel that a launch belongs to."""
    shared = [getattr(launch, name) for name in _SHARED]
    return f"k{digest(shared)}"


def digest(value: object) -> str:
    """Return the first hexadecimal digits of a hash of a value's JSON."""
    text = msgspec.json.encode(value, order="deterministic")
    return hashlib.sha256(text).hexdigest()[:12]


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
"""The patterns of each category, tried in this order on the names of the kernel and its operator.

Attention comes before normalization, because it contains a softmax."""

_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        *("mm", "addmm", "bmm", "baddbmm", "addbmm", "matmul", "linear", "mv", "addmv", "dot"),
        *("_scaled_mm", "_addmm_activation", "_int_mm"),
    )
)
_OF_ROCM = re.compile(r"^Cijk_|rocblas|hipblas|tensile", re.IGNORECASE)
"""The names of kernels of ROCm's libraries for matrix products."""
_LARGEST = 1 << 63
"""The least number that is no size of a tensor, which has 64 bits with a sign."""
TIERS = {
    1: "copies and sets, by the CUDA runtime",
    2: "matrix products, by cuBLASLt",
    3: "other operators, called again with their arguments",
    4: "Triton kernels, launched as kernels",
}
"""The way in which a kernel is replayed, by its tier."""


class Signature(Struct, frozen=True):
    """The way to replay a unique kernel.

    Attributes:
        kernel: The id of the unique kernel.
        category: What it does, by the names of the kernel and its operator.
        tier: The tier, see `TIERS`; None if it cannot be replayed.
        recipe: What to call, and the arguments.
        missing: Why it cannot be replayed, as a clause; None if it can.
    """

    kernel: str
    category: Category
    tier: int | None
    recipe: dict[str, Any]
    missing: str | None = None


def replay_signature(kernel: UniqueKernel) -> Signature:
    """Return how a unique kernel can be replayed."""
    category, operator = kernel_category(kernel), kernel.operator
    tier: int | None = None
    recipe: dict[str, Any] = {}
    missing = None
    if kernel.work == "operator":
        missing = "it ran on the host"
    elif kernel.work != "kernel":
        recipe = {"call": kernel.name, "bytes": kernel.bytes}
        tier, missing = 1, None if kernel.bytes else "it is not known how many bytes it concerns"
    elif category == "communication":
        missing = "it needs the other GPUs of its group"
    elif operator is None:
        missing = "it is not known which operator launched it"
    else:
        recipe = {"operator": operator.name, **msgspec.structs.asdict(operator)}
        del recipe["name"]
        if operator.shapes is None or operator.dtypes is None:
            missing = "its operator's arguments were not recorded: profile with record_shapes=True"
        elif not isinstance(operator.shapes, list) or not _are_sizes(operator.shapes):
            missing = "the shapes of its operator's arguments are no sizes of tensors"
        elif not _alike(operator.shapes, operator.strides):
            missing = "the strides of its operator's arguments were not recorded"
        if (
            operator.name in _PRODUCTS
            and category == "product"
            and not _OF_ROCM.search(kernel.name)
        ):
            tier = 2
        else:
            tier = 4 if "triton" in f"{kernel.name} {operator.name}".lower() else 3
    return Signature(kernel.id, category, None if missing else tier, recipe, missing)


def _are_sizes(shapes: Any) -> bool:
    """Return whether nested lists have nothing but sizes."""
    if isinstance(shapes, list):
        return all(map(_are_sizes, shapes))
    return type(shapes) is int and 0 <= shapes < _LARGEST


def _alike(shapes: Any, strides: Any) -> bool:
    """Return whether there is a stride for each size, in lists that are nested alike."""
    if not isinstance(shapes, list) or not isinstance(strides, list):
        return isinstance(shapes, list) == isinstance(strides, list) and strides is not None
    return len(shapes) == len(strides) and all(map(_alike, shapes, strides))


def kernel_category(launch: TraceLaunch | UniqueKernel) -> Category:
    """Return what a launch does, by its name and that of its operator."""
    if launch.work in ("copy", "set"):
        return "copy" if launch.work == "copy" else "set"
    operator = "" if launch.operator is None else launch.operator.name
    for text in (launch.name.lower(), operator.lower()):
        for category, pattern in _CATEGORIES:
            if pattern.search(text):
                return category
    return "product" if operator in _PRODUCTS else "other"
