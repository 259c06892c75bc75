"""Kernels that are not CUDA text: a Triton function, a library call, a host program.

All are plain data; a worker process compiles and launches them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from pytest_gpuenergy.kernels.kernel import AnyKernel, Dim3, check_source, checked_dims
from pytest_gpuenergy.record import LaunchInfo
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import whole, whole_sizes

KernelConstant = bool | int | float | str
"""The value of a constant of a Triton kernel, or of an option of a library call."""
_WARP = 32
_MAX_WARPS = 32
"""The most warps of a block: 1024 threads."""


TRITON_MODULES = ("triton", "torch")
"""The Python modules that run Triton functions."""


@dataclass(frozen=True)
class TritonKernel(AnyKernel):
    """A function in a Python module, decorated with ``triton.jit``.

    The module is executed in the worker process, on real GPUs only. It is arbitrary Python: only
    use modules that you would run yourself.

    Attributes:
        source: the text of the module, with its imports.
        function: name of the function.
        grid: programs in x, y and z.
        arguments: names of tensors, workspaces and scalars, in the order of the parameters.
        constants: values of all other parameters, ``tl.constexpr`` or not, by name.
        num_warps: warps of a program; a power of two.
        num_stages: the number of stages of software pipelines.

    Raises:
        InputError: an attribute cannot be used.
    """

    kind = "triton"
    source: str
    function: str
    grid: Dim3
    arguments: tuple[str, ...]
    constants: Mapping[str, KernelConstant] = field(default_factory=dict, hash=False)
    num_warps: int = 4
    num_stages: int = 3

    def __post_init__(self) -> None:
        check_source(self.source)
        if not self.function.isidentifier():
            raise InputError(f"A Triton kernel cannot have the function name {self.function!r}.")
        grid = checked_dims(f"The grid of {self.function!r}", self.grid)
        object.__setattr__(self, "grid", grid)
        for name in ("num_warps", "num_stages"):
            object.__setattr__(self, name, whole(getattr(self, name)))
        constants = {name: whole(value) for name, value in self.constants.items()}
        object.__setattr__(self, "constants", constants)
        if self.num_warps not in [1 << k for k in range(_MAX_WARPS.bit_length())]:
            raise InputError(
                f"num_warps of {self.function!r} must be a power of two up to {_MAX_WARPS}, not "
                f"{self.num_warps!r}."
            )
        if type(self.num_stages) is not int or self.num_stages < 1:
            raise InputError(
                f"num_stages of {self.function!r} must be a positive integer, not "
                f"{self.num_stages!r}."
            )
        for name, value in self.constants.items():
            if not isinstance(value, KernelConstant):
                raise InputError(
                    f"The constant {name!r} of {self.function!r} must be a number or string, not "
                    f"{value!r}."
                )

    @property
    def label(self) -> str:
        return self.function

    @property
    def taken(self) -> Mapping[str, tuple[str, ...]]:
        return {self.function: self.arguments}

    @property
    def launch_infos(self) -> tuple[LaunchInfo, ...]:
        return (LaunchInfo(self.function, self.grid, (_WARP * self.num_warps, 1, 1)),)

    @property
    def modules(self) -> tuple[str, ...]:
        return TRITON_MODULES


@dataclass(frozen=True)
class LibraryEntry:
    """The signature of a library function.

    Attributes:
        parameters: names of its tensor parameters.
        options: default values of its options, which also give their types.
        modules: Python modules that the function needs.
        optional: names of tensor parameters that may be left out.
    """

    parameters: tuple[str, ...]
    options: Mapping[str, KernelConstant]
    modules: tuple[str, ...]
    optional: tuple[str, ...] = ()


_PRODUCT_OPTIONS: Mapping[str, KernelConstant] = {
    "compute": "32F",
    "a_transposed": False,
    "b_transposed": False,
    "columns": 0,
    "depth": 0,
    "groups": "",
}
"""The options that both of NVIDIA's entries for matrix products have, with their defaults."""

LIBRARY_ENTRIES: Mapping[str, LibraryEntry] = {
    "torch.matmul": LibraryEntry(("input", "other", "out"), {"allow_tf32": False}, ("torch",)),
    # C = A B, all stored by rows, A and B perhaps transposed. The `columns` of C and the `depth` of
    # the sums are given where rows are longer than that; 0 stands for what the shapes say.
    # With a bias, an `activation` (relu or gelu_tanh) or a residual, C is
    # activation(A B + residual + bias). 8-bit A and B have scales, of the `scaling` tensor, row or
    # block, see `Gemm`. `algorithm` has the configuration of an algorithm of that version of
    # cuBLASLt, which is passed to it by the call's `opaque` cublasLtMatmulAlgo_t, in hexadecimal;
    # without one, the first that its heuristics offer is taken. Tensors of three
    # dimensions are a batch. With `groups`, the rows of each such as "512,0,128", only b has three;
    # each group with rows is a call of its own, and has an algorithm.
    "cublasLt.matmul": LibraryEntry(
        ("a", "b", "c", "workspace"),
        {
            **_PRODUCT_OPTIONS,
            "activation": "none",
            "scaling": "",
            "fast_accumulation": False,
            "algorithm": "",
            "version": 0,
        },
        ("nvmath",),
        optional=("bias", "residual", "a_scale", "b_scale"),
    ),
    # The same of groups, by one call of cuBLAS (cublasGemmGroupedBatchedEx), which chooses how.
    "cublas.grouped": LibraryEntry(("a", "b", "c", "workspace"), _PRODUCT_OPTIONS, ("nvmath",)),
    # The same of 8-bit numbers with scales by block, by DeepGEMM, with b stored transposed. Scales
    # are stored as for cuBLASLt; where DeepGEMM wants them otherwise, each launch first copies them
    # to a workspace. An empty `version` of DeepGEMM stands for any.
    "deep_gemm.fp8_gemm_nt": LibraryEntry(
        ("a", "b", "a_scale", "b_scale", "c"),
        {"columns": 0, "depth": 0, "version": ""},
        ("torch", "deep_gemm"),
        optional=("aligned_a_scale", "packed_b_scale"),
    ),
    # A two-dimensional convolution, or cross-correlation, of tensors that are stored as `layout`
    # says, with zeros around the data. `algorithm` is an engine of that version of cuDNN with its
    # knobs; without one, the first that its heuristics offer is taken. What is `fused` is part of
    # that engine's work; otherwise PyTorch adds the bias and replaces negative results by zero.
    "cudnn.convolution": LibraryEntry(
        ("data", "weight", "output", "workspace"),
        {
            "layout": "nchw",
            "stride": 1,
            "padding": 0,
            "dilation": 1,
            "relu": False,
            "tf32": False,
            "fused": False,
            "algorithm": "",
            "version": 0,
        },
        ("torch",),
        optional=("bias",),
    ),
}
"""The library functions that a `LibraryCall` can name."""


@dataclass(frozen=True)
class LibraryCall(AnyKernel):
    """A call of one of `LIBRARY_ENTRIES` with a job's tensors.

    Attributes:
        entry: name of the function, such as ``torch.matmul``.
        tensors: name of the tensor for each parameter.
        options: other arguments; those left out have the entry's defaults.
        opaque: what the library is passed for the algorithm that the options describe. It may
            have bytes that mean nothing, so that it is not part of the call's identity.

    Raises:
        InputError: the entry is unknown, or does not take these arguments.
    """

    kind = "library"
    entry: str
    tensors: Mapping[str, str] = field(hash=False)
    options: Mapping[str, KernelConstant] = field(default_factory=dict, hash=False)
    opaque: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        known = LIBRARY_ENTRIES.get(self.entry)
        if known is None:
            raise InputError(
                f"There is no library entry {self.entry!r}: give one of "
                f"{', '.join(LIBRARY_ENTRIES)}."
            )
        if {*self.tensors} - {*known.optional} != {*known.parameters}:
            raise InputError(
                f"{self.entry} takes the tensors {', '.join(known.parameters)}, not "
                f"{', '.join(self.tensors) or 'none'}."
            )
        for name, value in self.options.items():
            if type(value) is not type(known.options.get(name)):
                raise InputError(
                    f"{self.entry} does not take {name}={value!r}: its options are "
                    f"{', '.join(f'{n}={v!r}' for n, v in known.options.items())}."
                )

    @property
    def label(self) -> str:
        return self.entry

    @property
    def all_options(self) -> Mapping[str, KernelConstant]:
        """The options, including defaults."""
        return {**LIBRARY_ENTRIES[self.entry].options, **self.options}

    @property
    def content(self) -> Mapping[str, object]:
        shown = {name: value for name, value in super().content.items() if name != "opaque"}
        return {**shown, "tensors": dict(self.tensors), "options": dict(self.all_options)}

    @property
    def taken(self) -> Mapping[str, tuple[str, ...]]:
        return {self.entry: tuple(self.tensors.values())}

    @property
    def modules(self) -> tuple[str, ...]:
        return LIBRARY_ENTRIES[self.entry].modules


@dataclass(frozen=True)
class Headers:
    """A folder of header files that a program includes.

    Attributes:
        name: the library with its version, such as ``CUTLASS 4.2.0``.
        sha256: the SHA-256 of the files, in hexadecimal.
        folder: the folder of the files on this machine.
    """

    name: str
    sha256: str
    folder: str = field(compare=False)


@dataclass(frozen=True)
class CudaProgram(AnyKernel):
    """CUDA C++ text that is compiled with nvcc to a shared object, which a worker process calls.

    The text defines four functions with C linkage, as ``cuda/cutlass/program.cu`` does. All return
    null or, as a string that stays valid, what is wrong: ``program_open(tensors, numbers, &program,
    &workspace_bytes)`` with the device pointers of the tensors in the order of ``arguments``,
    ``program_initialize(program, workspace, stream)``, ``program_launch(program, stream)``, which
    only enqueues work on the stream, so that a CUDA graph can capture it, and
    ``program_close(program)``, which returns nothing. It is arbitrary code: only use texts that you
    would run yourself.

    Attributes:
        source: the text.
        name: the name of what it launches, for people.
        arguments: names of tensors and workspaces.
        numbers: 32-bit integers that the program gets besides, such as sizes; one compiled text
            serves all of them.
        headers: the library headers that it includes; None if it needs only those of CUDA.

    Raises:
        InputError: the text is empty or binary, or a number is out of range.
    """

    kind = "program"
    source: str
    name: str
    arguments: tuple[str, ...]
    numbers: tuple[int, ...] = ()
    headers: Headers | None = None

    def __post_init__(self) -> None:
        check_source(self.source)
        object.__setattr__(self, "numbers", whole_sizes(self.numbers))
        for number in self.numbers:
            if type(number) is not int or not -(1 << 31) <= number < 1 << 31:
                raise InputError(
                    f"{self.name} takes integers of 32 bits, which {number!r:.40} is not."
                )

    @property
    def label(self) -> str:
        return self.name

    @property
    def content(self) -> Mapping[str, object]:
        return {**super().content, **self.compiled}

    @property
    def compiled(self) -> Mapping[str, object]:
        """What the machine code depends on, as JSON values: the text and the headers' content."""
        known = None if self.headers is None else asdict(self.headers)
        if known is not None:
            del known["folder"]
        return {"source": self.source, "headers": known}

    @property
    def taken(self) -> Mapping[str, tuple[str, ...]]:
        return {self.name: self.arguments}
