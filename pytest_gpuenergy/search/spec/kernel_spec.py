"""The specification of a kernel to improve, and the states that a search reaches from it."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from pytest_gpuenergy.kernels import Argument, checked_arguments
from pytest_gpuenergy.search.spec.sizes import Size

Language = Literal["cuda", "triton"]
Constant = bool | int | float


class LaunchPlan(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The launch configuration of a kernel, for any sizes of its tensors.

    Expressions may use the names of sizes, the constants, and ``block_x`` to ``block_z``.

    Attributes:
        grid: the numbers of blocks (Triton: programs) in x, y and z; 1 where left out.
        block: the numbers of threads of a block in x, y and z, for CUDA; 1 where left out.
        shared_bytes: the dynamic shared memory of a block, for CUDA.
        constants: macros of CUDA text, or ``tl.constexpr`` parameters of a Triton function.
        num_warps, num_stages: the launch options of a Triton function.
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
        language: the language of the source.
        source: CUDA text, or a Python module with a Triton function.
        launch: how it is launched.
    """

    language: Language
    source: str
    launch: LaunchPlan

    @property
    def id(self) -> str:
        """``s`` and the first hexadecimal digits of a hash of the state."""
        text = msgspec.json.encode(self, order="deterministic")
        return f"s{hashlib.sha256(text).hexdigest()[:12]}"


class TensorSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tensor among a kernel's arguments.

    Attributes:
        shape: the sizes of its dimensions: numbers, or expressions of sizes.
        dtype: the type of its elements, such as ``float32`` or ``bfloat16``.
        role: what the kernel does with it. An ``inout`` tensor has its initial contents again
            before each launch; the copy that restores them counts as part of the launch.
        strides: the distances between elements along each dimension, in elements; None if the
            tensor is contiguous. The kernel gets a buffer that is as long as the tensor spans.
        init: how the elements of an input are drawn. An output can have ``zeros``: it is then set
            to zero before each launch of a CUDA kernel, by a launch that counts as part of it.
        low, high: the range of ``uniform`` and ``randint``; ``high`` is excluded.
        value: the value of all elements for ``full``.
        data: the elements of an input, instead of ``init``: a nested list, or base64 of
            zlib-compressed bytes.
        bound: the largest allowed error of this output, relative to its largest element and to its
            norm.
        steps: the largest allowed error of an integer output; at most an eighth of its elements may
            be wrong.
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
        """Whether the tensor has contents before a launch."""
        return self.role != "output"

    @property
    def is_written(self) -> bool:
        """Whether a launch leaves a result in the tensor."""
        return self.role != "input"


class ScalarSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An argument that is passed by value; ``value`` may be an expression of sizes."""

    name: str
    dtype: str
    value: float | int | str


class Checkout(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A repository that the user clones, because its sources are not shipped with the spec.

    Attributes:
        repository: the address from which it can be cloned.
        revision: the commit that the spec was written for.
        sha256: the hash of the spec's ``file`` and the repository's files that it includes,
            concatenated in the order in which they are read; empty if any version will do.
    """

    repository: str
    revision: str
    sha256: str = ""


class Emulation(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Replacements of parts of a spec on the emulated GPU, which is too slow for large sizes.

    Attributes:
        sizes: the sets of sizes that replace those of the spec.
        constants: constants of the launch that replace those with the same names.
    """

    sizes: tuple[dict[str, int], ...]
    constants: dict[str, Constant] = {}


class KernelSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A kernel with its launch and its contract.

    Attributes:
        name: the kernel's name, of letters, digits, ``-`` and ``_``.
        language: the language of the source.
        entry: the name of the ``__global__`` or Triton function.
        launch: how the kernel is launched.
        arguments: the names of tensors and scalars, in the order of the entry's parameters; for a
            struct by value, a list of its members, which are names, and lists for its arrays.
        tensors: the tensors among the arguments.
        source: the text of the kernel; or ``file``, a path relative to the spec, inside its folder.
        checkout: the repository that contains ``file``, instead of the folder of the spec.
        extract: whether ``file`` contains more than the kernel, which is then extracted with all
            that it needs; for CUDA.
        scalars: the arguments that are passed by value.
        sizes: one or more sets of sizes, each with the same names. The first is measured; all are
            verified.
        other_sizes: whether sizes between the listed ones are allowed; every variant is then also
            verified on such a set, which it cannot know.
        emulation: other sizes for the emulated GPU.
        reference: a NumPy expression for each output, by name, of the inputs and scalars; empty if
            the baseline itself is the reference.
        reduction_length: the number of products that are summed for an output, for the error bound;
            see `pytest_gpuenergy.workloads.Contract`.
        tolerance: the allowed error of an element, relative to the largest of a floating-point
            output, instead of that bound.
        flops: the floating-point operations of one launch.
        bytes_moved: the least memory traffic of one launch; by default each tensor once.
        tensor_cores: whether float32 products may use tensor cores.
    """

    name: str
    language: Language
    entry: str
    launch: LaunchPlan
    arguments: tuple[Argument, ...]
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

    def __post_init__(self) -> None:
        force_setattr(self, "arguments", checked_arguments(self.arguments, self.entry))

    @property
    def baseline(self) -> State:
        """The state in which a search begins."""
        return State(self.language, self.source, self.launch)

    def on(self, *, emulated: bool) -> KernelSpec:
        """Return the spec with the sizes for a real GPU, or for the emulated one."""
        plain = replace(self, emulation=None)
        if self.emulation is None or not emulated:
            return plain
        constants = {**self.launch.constants, **self.emulation.constants}
        launch = replace(self.launch, constants=constants)
        return replace(plain, sizes=self.emulation.sizes, launch=launch)
