"""A kernel to improve, with what it has to compute: the input of a search."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

Language = Literal["cuda", "triton"]
Constant = bool | int | float
Size = int | str
"""A number, or an expression such as ``ceil_div(N, BLOCK)``; see `sizes`."""


class LaunchPlan(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a kernel is launched, for any sizes of its tensors.

    Expressions may use the names of sizes, the constants, and ``block_x`` to ``block_z``.

    Attributes:
        grid: blocks (Triton: programs) in x, y and z; those left out are 1.
        block: threads of a block in x, y and z, for CUDA; those left out are 1.
        shared_bytes: dynamic shared memory of a block, for CUDA.
        constants: macros of CUDA text, ``tl.constexpr`` parameters of a Triton function.
        num_warps, num_stages: of a Triton function.
    """

    grid: tuple[Size, ...]
    block: tuple[int, ...] = ()
    shared_bytes: Size = 0
    constants: dict[str, Constant] = {}
    num_warps: int = 4
    num_stages: int = 3


class State(Struct, frozen=True):
    """One kernel that a search has reached.

    Two paths of moves that lead to the same text and launch plan lead to the same state.

    Attributes:
        language: of the source.
        source: CUDA text, or a Python module with a Triton function.
        launch: with which it runs.
    """

    language: Language
    source: str
    launch: LaunchPlan

    @property
    def id(self) -> str:
        """``s`` and the first hexadecimal digits of a hash of everything above."""
        text = msgspec.json.encode(self, order="deterministic")
        return f"s{hashlib.sha256(text).hexdigest()[:12]}"


class TensorSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tensor among a kernel's arguments.

    Attributes:
        shape: numbers, or expressions of sizes.
        dtype: such as ``float32`` or ``bfloat16``.
        role: what the kernel does with it. An ``inout`` has its initial contents, as an input has
            them, before each launch; the copy that restores them counts as part of it.
        strides: in elements; None where it is contiguous. The kernel gets a buffer of as many
            elements as the tensor spans.
        init: how an input is drawn. An output can be ``zeros``: it is then set to zero before each
            launch of a CUDA kernel, by a launch that counts as part of it.
        low, high: ends of ``uniform`` and ``randint``, the second one excluded.
        value: of ``full``.
        data: the elements of an input themselves, instead of ``init``: a nested list, or base64 of
            zlib-compressed bytes.
        bound: the largest error of this output, relative to its largest element and to its norm.
        steps: how far an integer output may be off; at most an eighth of its elements may be.
    """

    name: str
    shape: tuple[Size, ...]
    dtype: str = "float32"
    role: Literal["input", "output", "inout"] = "input"
    strides: tuple[Size, ...] | None = None
    init: Literal["randn", "uniform", "zeros", "ones", "full", "arange", "randint"] = "randn"
    low: float = 0.0
    high: float = 1.0
    value: float = 0.0
    data: Any = None
    bound: float | None = None
    steps: int | None = None

    @property
    def is_read(self) -> bool:
        """Whether it has contents before a launch."""
        return self.role != "output"

    @property
    def is_written(self) -> bool:
        """Whether a launch leaves a result in it."""
        return self.role != "input"


class ScalarSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An argument passed by value; ``value`` may be an expression of sizes."""

    name: str
    dtype: str
    value: float | int | str


class Checkout(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A repository of which the user has a copy, because its sources are not shipped with a spec.

    Attributes:
        repository: where it can be cloned.
        revision: the commit that the spec was written for.
        sha256: of the spec's ``file`` and the files of the repository that it includes, one after
            the other in the order in which they are read; empty if any will do.
    """

    repository: str
    revision: str
    sha256: str = ""


class Emulation(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What replaces parts of a spec on the emulated GPU, which is too slow for some sizes.

    Attributes:
        sizes: instead of the spec's.
        constants: of the launch, instead of those with the same names.
    """

    sizes: tuple[dict[str, int], ...]
    constants: dict[str, Constant] = {}


class KernelSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A kernel with its launch and its contract.

    Attributes:
        name: letters, digits, ``-`` and ``_``.
        source: the text; or ``file``, a path relative to the spec, inside its folder.
        checkout: in which ``file`` is, instead of the folder of the spec.
        extract: whether ``file`` contains more than the kernel, which then is taken out of it with
            all that it needs; for CUDA.
        entry: name of the ``__global__`` or Triton function.
        arguments: names of tensors and scalars, in the order of the entry's parameters.
        sizes: one or more sets of sizes, each with the same names. The first is measured; all are
            verified.
        other_sizes: whether sizes between the listed ones are allowed; every variant is then
            verified on a set of them that it cannot know.
        emulation: other sizes for the emulated GPU.
        reference: a NumPy expression for each output, by its name, of the inputs and scalars;
            empty if the baseline itself is the reference.
        reduction_length: how many products are summed for an output, for the error bound; see
            `pytest_gpuenergy.workloads.Contract`.
        tolerance: of an element relative to the largest of a floating-point output, instead of
            that bound.
        flops: of one launch.
        bytes_moved: least memory traffic of one launch; by default each tensor once.
        tensor_cores: whether float32 products may use them.
    """

    name: str
    language: Language
    entry: str
    launch: LaunchPlan
    arguments: tuple[str, ...]
    tensors: tuple[TensorSpec, ...]
    source: str = ""
    file: str = ""
    checkout: Checkout | None = None
    extract: bool = False
    scalars: tuple[ScalarSpec, ...] = ()
    sizes: tuple[dict[str, int], ...] = ({},)
    other_sizes: bool = True
    emulation: Emulation | None = None
    reference: dict[str, str] = {}
    reduction_length: Size = 1
    tolerance: float | None = None
    flops: Size = 0
    bytes_moved: Size | None = None
    tensor_cores: bool = False
    schema_version: int = 1

    @property
    def baseline(self) -> State:
        """Where a search begins."""
        return State(self.language, self.source, self.launch)

    def on(self, *, emulated: bool) -> KernelSpec:
        """The spec with the sizes for a real GPU, or for the emulated one."""
        plain = replace(self, emulation=None)
        if self.emulation is None or not emulated:
            return plain
        constants = {**self.launch.constants, **self.emulation.constants}
        launch = replace(self.launch, constants=constants)
        return replace(plain, sizes=self.emulation.sizes, launch=launch)
