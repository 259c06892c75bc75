"""Matrix products by cuBLASLt, through NVIDIA's nvmath-python, planned before they are launched.

cuBLASLt stores matrices by columns. A matrix stored by rows is for it the transposed matrix, so it
computes C^T = B^T A^T. A batch is one call of it, and each group with rows is one; cuBLAS
itself has one call for all groups.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.kernels import LibraryCall, Origin
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import IoContract, Tensor

_MAX_ALGORITHMS = 64
"""The largest number of algorithms that cuBLASLt is asked to offer."""
_TRANSPOSED = 1  # CUBLAS_OP_T
_FLOAT32 = 0  # CUDA_R_32F
_CUDA_TYPES = {  # cudaDataType
    "float32": _FLOAT32,
    "float16": 2,
    "bfloat16": 14,
    "float8_e4m3fn": 28,
    "float8_e5m2": 29,
}
_SCALE_MODES = {"tensor": (0, 0), "row": (3, 3), "block": (4, 5)}
"""The values of ``cublasLtMatmulMatrixScale_t`` for the scales of A and of B: one for all elements,
one for each row of A or column of B, and one for 128 elements along K or for 128 x 128."""
_ADDED_IN_FLOAT32 = 2
"""CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE. Other schemes round the parts of a split sum to the type
of the matrices, so that the result is rounded more than once."""
_NOT_SPLIT = 0
"""CUBLASLT_REDUCTION_SCHEME_NONE, as a mask."""
_EPILOGUES = {"none": 0, "relu": 2, "gelu_tanh": 32}  # cublasLtEpilogue_t
_WITH_BIAS = 4  # CUBLASLT_EPILOGUE_BIAS, which is added to these numbers
_POINTERS = {
    "bias": "BIAS_POINTER",
    "a_scale": "B_SCALE_POINTER",
    "b_scale": "A_SCALE_POINTER",
}
"""The attribute that has the address of a parameter; A is cuBLASLt's second operand."""
_ALIGNMENT_BYTES = 256
"""The alignment of addresses that cuBLASLt takes for granted (``cublasLtMatmulPreference_t``)."""
_SOMEWHERE = 256
"""The address of a parameter while algorithms are chosen, before there is one: it is not read."""
_TENSOR_CORES = 0xFE  # CUBLASLT_NUMERICAL_IMPL_FLAGS_TENSOR_OP_MASK
_ONE, _ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)
_CONFIGURATION = {
    "algorithm": ("ID", None),
    "tile": ("TILE_ID", "MatmulTile"),
    "stages": ("STAGES_ID", "MatmulStages"),
    "split_k": ("SPLITK_NUM", None),
    "reduction": ("REDUCTION_SCHEME", None),
    "swizzle": ("CTA_SWIZZLING", None),
    "custom": ("CUSTOM_OPTION", None),
    "inner": ("INNER_SHAPE_ID", "MatmulInnerShape"),
    "cluster": ("CLUSTER_SHAPE_ID", "ClusterShape"),
}
"""The details of an algorithm that are shown: an attribute, and the enumeration of its values."""


@dataclass(frozen=True)
class _Problem:
    """The descriptors of a product, which are freed with the process."""

    operation: int
    a: int
    b: int
    c: int

    @property
    def described(self) -> tuple[int, ...]:
        """The arguments that cuBLASLt's functions take; the addend and the result are alike."""
        return (self.operation, self.b, self.a, self.c, self.c)


@dataclass(frozen=True)
class _LibraryPart:
    """The computation of one call of cuBLASLt: all products of a batch, or those of a group.

    Attributes:
        rows: the rows of A and C.
        offsets: where it begins in the tensors of the call's parameters, in bytes.
    """

    rows: int
    offsets: Mapping[str, int]

    def alignment(self, parameter: str) -> int:
        """Return the largest number of bytes of which the beginning is known to be a multiple."""
        return math.gcd(_ALIGNMENT_BYTES, self.offsets.get(parameter, 0))


@dataclass(frozen=True)
class _PlannedPart:
    """A part with its algorithm."""

    part: _LibraryPart
    problem: _Problem
    algorithm: Any

    def launch(self, addresses: Mapping[str, int], workspace_bytes: int, stream: int) -> None:
        problem, offsets = self.problem, self.part.offsets
        addresses = {name: at + offsets.get(name, 0) for name, at in addresses.items()}
        a, b = (addresses["a"], problem.a), (addresses["b"], problem.b)
        c = (addresses["c"], problem.c)
        addend = (addresses.get("residual", addresses["c"]), problem.c)
        for parameter in _POINTERS.keys() & addresses.keys():
            _set_attribute(problem.operation, _POINTERS[parameter], addresses[parameter], np.uint64)
        one, zero, algorithm = (x.ctypes.data for x in (_ONE, _ZERO, self.algorithm))
        workspace = (addresses["workspace"], workspace_bytes)
        factors = (one, *b, *a, one if "residual" in addresses else zero)
        operation = (_handle(), problem.operation)
        _library().matmul(*operation, *factors, *addend, *c, algorithm, *workspace, stream)


@dataclass(frozen=True)
class MatmulPlan:
    """Products with their algorithms; launching them makes no further queries to cuBLASLt."""

    parts: tuple[_PlannedPart, ...]
    workspace_bytes: int

    def launch(self, addresses: Mapping[str, int], stream: int) -> None:
        """Enqueue the products on a ``cudaStream_t``, given the addresses of all parameters."""
        for part in self.parts:
            part.launch(addresses, self.workspace_bytes, stream)


@functools.lru_cache(maxsize=1)  # shared by all sets of buffers
def matmul_plan(call: LibraryCall, io: IoContract) -> MatmulPlan:
    """Return the plan of a library call."""
    handle, library = _handle(), _library()
    options = call.all_options
    if not options["algorithm"]:
        return matmul_plan(offered_algorithms(call, io)[0], io)
    if options["version"] != (version := library.get_version()):
        raise KernelFault(
            "constraints",
            f"The algorithm is one of cuBLASLt {options['version']}, and this is {version}: let "
            "it be chosen again.",
        )
    if not call.opaque:
        raise KernelFault(
            "constraints",
            "The algorithm is named without the bytes that cuBLASLt takes for it: let it be "
            "chosen again.",
        )
    planned = []
    for part, content in zip(_parts(call, io), call.opaque.split(","), strict=True):
        algorithm = np.frombuffer(bytes.fromhex(content), library.matmul_algo_dtype).copy()
        problem, result = _matmul_problem(call, io, part), library.MatmulHeuristicResult()
        with _refusals("cuBLASLt", library.cuBLASLtError):
            library.matmul_algo_check(handle, *problem.described, algorithm.ctypes.data, result.ptr)
        planned.append(_PlannedPart(part, problem, algorithm))
    return MatmulPlan(tuple(planned), _tensor(call, io, "workspace").nbytes)


def grouped_launch(
    cupy: Any, call: LibraryCall, io: IoContract, addresses: Mapping[str, int]
) -> Callable[[int], None]:
    """Return a function that enqueues all groups on a stream, by one call of cuBLAS.

    cuBLAS takes the sizes of groups from the host, and the addresses of their matrices from the
    GPU's memory.

    Raises:
        KernelFault: cuBLAS cannot be used, or has no such call.
    """
    library, kind = _cublas(), _compute_type(call, io)
    a, b, c = (_tensor(call, io, parameter) for parameter in "abc")
    options, parts = call.all_options, _parts(call, io)
    count = len(parts)
    columns, depth = _columns_and_depth(call, io)
    transposed = (options["b_transposed"], options["a_transposed"])  # cuBLAS's A is our B
    operations = [[_TRANSPOSED if one else 0] * count for one in transposed]
    sizes = ([columns] * count, [part.rows for part in parts], [depth] * count)
    pointers = cupy.asarray(
        np.array(
            [[addresses[name] + part.offsets[name] for part in parts] for name in "bac"], np.uint64
        )
    )
    ones, zeros = np.ones(count, np.float32), np.zeros(count, np.float32)
    workspace = (addresses["workspace"], _tensor(call, io, "workspace").nbytes)
    handle = _cublas_handle()

    def launch(stream: int) -> None:
        first, second, result = (
            (
                int(pointers.data.ptr) + place * pointers.nbytes // 3,
                _CUDA_TYPES[tensor.dtype],
                [tensor.shape[-1]] * count,
            )
            for place, tensor in enumerate((b, a, c))
        )
        library.set_stream(handle, stream)
        library.set_workspace(handle, *workspace)  # a stream has the usual one first
        with _refusals("cuBLAS", library.cuBLASError):
            library.gemm_grouped_batched_ex(
                handle,
                *operations,
                *sizes,
                ones.ctypes.data,
                *first,
                *second,
                zeros.ctypes.data,
                *result,
                count,
                [1] * count,
                kind,
            )

    return launch


def offered_algorithms(call: LibraryCall, io: IoContract) -> tuple[LibraryCall, ...]:
    """Return the call with each algorithm that cuBLASLt's heuristics offer, and its workspace.

    The first of these calls has the first algorithm for each of several groups, and so on; a group
    with fewer algorithms keeps its last one. For float32 matrices that are multiplied in float32,
    algorithms that use tensor cores are left out, and for 16-bit results to which a bias is added,
    those that split sums.

    Raises:
        KernelFault: cuBLASLt cannot be used, or offers no algorithm.
    """
    offered: dict[tuple[object, ...], list[Any]] = {}
    every = []
    for part in _parts(call, io):
        alike = (part.rows, *map(part.alignment, "abc"))
        if alike not in offered:
            offered[alike] = _heuristic_results(call, io, part)
        every.append(offered[alike])
    most = max(map(len, every))
    return tuple(
        _with_algorithms(call, [found[min(number, len(found) - 1)] for found in every])
        for number in range(most)
    )


def _heuristic_results(call: LibraryCall, io: IoContract, part: _LibraryPart) -> list[Any]:
    """Return the results of cuBLASLt's heuristics for a part of a call."""
    handle, library = _handle(), _library()
    problem = _matmul_problem(call, io, part)
    results = library.MatmulHeuristicResult(_MAX_ALGORITHMS)
    count = np.zeros(1, np.int32)
    attributes = library.MatmulPreferenceAttribute
    preferred = {
        attributes.MAX_WORKSPACE_BYTES: np.uint64(_tensor(call, io, "workspace").nbytes),
        attributes.REDUCTION_SCHEME_MASK: np.uint32(_reduction_schemes(call, io)),
    }
    if any(part.offsets.values()):  # cuBLASLt's A is our B
        for name, parameter in {"A": "b", "B": "a", "C": "c", "D": "c"}.items():
            attribute = attributes[f"MIN_ALIGNMENT_{name}_BYTES"]
            preferred[attribute] = np.uint32(part.alignment(parameter))
    preference = library.matmul_preference_create()
    try:
        for attribute, number in preferred.items():
            value = np.array([number])
            library.matmul_preference_set_attribute(
                preference, attribute, value.ctypes.data, value.nbytes
            )
        with _refusals("cuBLASLt", library.cuBLASLtError):
            library.matmul_algo_get_heuristic(
                handle,
                *problem.described,
                preference,
                _MAX_ALGORITHMS,
                results.ptr,
                count.ctypes.data,
            )
    finally:
        library.matmul_preference_destroy(preference)
    found = np.frombuffer(memoryview(results), library.matmul_heuristic_result_dtype).copy()
    in_float32 = call.all_options["compute"] == "32F" and _tensor(call, io, "a").dtype == "float32"
    usable = [
        result
        for result in found[: count[0]]
        if not result["state"]
        and not (
            in_float32
            and (_attribute(result["algo"], "cap", "NUMERICAL_IMPL_FLAGS") or 0) & _TENSOR_CORES
        )
    ]
    if not usable:
        raise KernelFault("constraints", f"cuBLASLt offers no algorithm for {io.name}.")
    return usable


def _reduction_schemes(call: LibraryCall, io: IoContract) -> int:
    """Return the mask of the schemes by which an algorithm may add the parts of split sums.

    cuBLASLt 13 rounds a split sum to the type of C before it adds the bias, so that 16-bit results
    are rounded twice: a quarter of all elements are off by more than half a unit in the last place.
    """
    follows = "bias" in call.tensors or call.all_options["activation"] not in ("none", "relu")
    is_rounded = _tensor(call, io, "c").dtype != "float32"
    return _NOT_SPLIT if follows and is_rounded else _ADDED_IN_FLOAT32


def _configuration(result: Any) -> str:
    """Return an algorithm's configuration, by which it is known in every process.

    Its bytes differ from process to process, since cuBLASLt 13 leaves two of them unset.
    """
    values = [_attribute(result["algo"], "config", name) for name, _ in _CONFIGURATION.values()]
    return ".".join("" if value is None else str(value) for value in values)


def _with_algorithms(call: LibraryCall, results: list[Any]) -> LibraryCall:
    """Return the call with an algorithm for each part; the details shown are of the first."""
    library, result = _library(), results[0]
    details: dict[str, str | int | float] = {"calls": len(results)} if results[1:] else {}
    for name, (attribute, values) in _CONFIGURATION.items():
        value = _attribute(result["algo"], "config", attribute)
        members = () if values is None else getattr(library, values)
        names = {member.value: member.name for member in members}
        if value is not None:
            details[name] = names[value].rpartition("_")[2].lower() if value in names else value
    # An algorithm may need no workspace, but a tensor has at least one element.
    size = max(1, *(int(each["workspace_size"]) for each in results))
    name = call.tensors["workspace"]
    return replace(
        call,
        options={
            **call.options,
            "algorithm": ",".join(map(_configuration, results)),
            "version": library.get_version(),
        },
        opaque=",".join(each["algo"].tobytes().hex() for each in results),
        workspaces=tuple(
            replace(space, shape=(size,)) if space.name == name else space
            for space in call.workspaces
        ),
        origin=Origin(call.origin.kind, None, details),
    )


def _attribute(algorithm: Any, kind: str, name: str) -> int | None:
    """Return an attribute of an algorithm's configuration or capabilities (``cap``), or None."""
    library = _library()
    attribute = getattr(library, f"MatmulAlgo{kind.title()}Attribute")[name]
    value = np.zeros(1, getattr(library, f"get_matmul_algo_{kind}_attribute_dtype")(attribute))
    written = np.zeros(1, np.uint64)
    content = np.array(algorithm)
    try:
        getattr(library, f"matmul_algo_{kind}_get_attribute")(
            content.ctypes.data, attribute, value.ctypes.data, value.nbytes, written.ctypes.data
        )
    except library.cuBLASLtError:  # versions of cuBLASLt and kinds of algorithms differ
        return None
    return int(value[0])


def _parts(call: LibraryCall, io: IoContract) -> list[_LibraryPart]:
    """Return the parts, one for each call of cuBLASLt: all products, or each group with rows."""
    options, c = call.all_options, _tensor(call, io, "c")
    if not options["groups"]:
        return [_LibraryPart(c.shape[-2], {})]
    a, b = _tensor(call, io, "a"), _tensor(call, io, "b")
    row_of_a = 1 if options["a_transposed"] else a.shape[-1]
    columns, _ = _columns_and_depth(call, io)
    parts, first = [], 0
    for number, rows in enumerate(map(int, str(options["groups"]).split(","))):
        elements = {
            "a": first * row_of_a,
            "b": number * math.prod(b.shape[1:]),
            "bias": number * columns,
            **dict.fromkeys(("c", "residual"), first * c.shape[-1]),
        }
        itemsize = c.nbytes // c.size
        offsets = {parameter: itemsize * count for parameter, count in elements.items()}
        if rows:
            parts.append(_LibraryPart(rows, offsets))
        first += rows
    return parts


def _columns_and_depth(call: LibraryCall, io: IoContract) -> tuple[int, int]:
    """Return N and K, which the shapes of B and C tell if the call does not."""
    options, b, c = call.all_options, _tensor(call, io, "b"), _tensor(call, io, "c")
    depth = b.shape[-1 if options["b_transposed"] else -2]
    return int(options["columns"]) or c.shape[-1], int(options["depth"]) or depth


def _compute_type(call: LibraryCall, io: IoContract) -> int:
    """Return the value of ``cublasComputeType_t`` in which a call multiplies its matrices."""
    from nvmath.bindings.cublas import ComputeType

    a, b, c = (_tensor(call, io, parameter) for parameter in "abc")
    compute = f"COMPUTE_{call.all_options['compute']}"
    if compute not in ComputeType.__members__ or any(t.dtype not in _CUDA_TYPES for t in (a, b, c)):
        raise KernelFault(
            "constraints",
            f"{call.label} does not multiply {a.dtype} by {b.dtype} in {compute}.",
        )
    number: int = ComputeType[compute]
    return number


def _matmul_problem(call: LibraryCall, io: IoContract, part: _LibraryPart) -> _Problem:
    library, compute = _library(), _compute_type(call, io)
    a, b, c = (_tensor(call, io, parameter) for parameter in "abc")
    options, rows = call.all_options, part.rows
    columns, depth = _columns_and_depth(call, io)
    operation = library.matmul_desc_create(compute, _FLOAT32)
    stored_a, stored_b = (depth, rows), (columns, depth)
    if options["a_transposed"]:  # A is the second operand
        stored_a = stored_a[::-1]
        _set_attribute(operation, "TRANSB", _TRANSPOSED)
    if options["b_transposed"]:
        stored_b = stored_b[::-1]
        _set_attribute(operation, "TRANSA", _TRANSPOSED)
    if options["activation"] not in _EPILOGUES:
        raise KernelFault("constraints", f"{call.label} has no {options['activation']}.")
    biased = "bias" in call.tensors
    epilogue = _EPILOGUES[str(options["activation"])] + (_WITH_BIAS if biased else 0)
    if epilogue:
        _set_attribute(operation, "EPILOGUE", epilogue)
    if options["scaling"]:
        if options["scaling"] not in _SCALE_MODES:
            raise KernelFault("constraints", f"{call.label} has no scaling {options['scaling']}.")
        of_a, of_b = _SCALE_MODES[str(options["scaling"])]
        _set_attribute(operation, "A_SCALE_MODE", of_b)
        _set_attribute(operation, "B_SCALE_MODE", of_a)
        _set_attribute(operation, "FAST_ACCUM", int(options["fast_accumulation"]), np.int8)
    for parameter in _POINTERS.keys() & call.tensors.keys():
        _set_attribute(operation, _POINTERS[parameter], _SOMEWHERE, np.uint64)
    if biased and len(c.shape) > 2:
        _set_attribute(operation, "BIAS_BATCH_STRIDE", columns, np.int64)
    return _Problem(
        operation,
        _layout(a, stored_a, batched=len(c.shape) > 2),
        _layout(b, stored_b, batched=len(c.shape) > 2),
        _layout(c, (columns, rows), batched=len(c.shape) > 2),
    )


def _layout(tensor: Tensor, stored: tuple[int, int], *, batched: bool) -> int:
    """Return the descriptor of a matrix of ``stored`` rows and columns, or of one per product."""
    library = _library()
    layout: int = library.matrix_layout_create(_CUDA_TYPES[tensor.dtype], *stored, tensor.shape[-1])
    if batched:
        attributes = library.MatrixLayoutAttribute
        values: dict[Any, npt.NDArray[Any]] = {
            attributes.BATCH_COUNT: np.array([tensor.shape[0]], np.int32),
            attributes.STRIDED_BATCH_OFFSET: np.array([math.prod(tensor.shape[1:])], np.int64),
        }
        for attribute, value in values.items():
            library.matrix_layout_set_attribute(layout, attribute, value.ctypes.data, value.nbytes)
    return layout


def _set_attribute(
    operation: int, name: str, number: int, dtype: type[np.integer[Any]] = np.int32
) -> None:
    """Set an attribute of a product's descriptor, which cuBLASLt keeps as ``dtype``."""
    value, library = np.array([number], dtype), _library()
    attribute = library.MatmulDescAttribute[name]
    library.matmul_desc_set_attribute(operation, attribute, value.ctypes.data, value.nbytes)


def _tensor(call: LibraryCall, io: IoContract, parameter: str) -> Tensor:
    tensors = (*io.tensors, *call.workspaces)
    return next(tensor for tensor in tensors if tensor.name == call.tensors[parameter])


@contextmanager
def _refusals(name: str, kind: type[Exception]) -> Iterator[None]:
    """Convert the error with which a library refuses a product to a KernelFault."""
    try:
        yield
    except kind as error:
        reason = str(error).rstrip(".")
        raise KernelFault("constraints", f"{name} refuses the product: {reason}.") from None


def _library() -> Any:
    from nvmath.bindings import cublasLt

    return cublasLt


def _cublas() -> Any:
    from nvmath.bindings import cublas

    return cublas


@functools.cache
def _handle() -> int:
    """Return this process's handle of cuBLASLt."""
    return _created("cuBLASLt", _library())


@functools.cache
def _cublas_handle() -> int:
    """Return this process's handle of cuBLAS."""
    return _created("cuBLAS", _cublas())


def _created(name: str, library: Any) -> int:
    try:
        return int(library.create())
    except Exception as error:  # the library cannot be loaded, or fails
        reason = f"{type(error).__name__}: {error}".rstrip(".")
        raise KernelFault(
            "constraints",
            f"{name} cannot be used ({reason}): its library comes with pip install "
            "'pytest-gpuenergy[gemm]'.",
        ) from None
