"""Binds each kind of kernel to its buffers: a function that launches it in the worker process."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pytest_gpuenergy.devices.cuda.compilers import Binary
from pytest_gpuenergy.devices.cuda.cublaslt import (
    grouped_launch,
    matmul_plan,
    offered_algorithms,
)
from pytest_gpuenergy.devices.cuda.cudnn import convolution_plan, offered_convolutions
from pytest_gpuenergy.devices.cuda.driver import EarlyLaunch, parameter_bytes
from pytest_gpuenergy.kernels import (
    Argument,
    CudaProgram,
    Job,
    Kernel,
    KernelConstant,
    Launch,
    LibraryCall,
    MapType,
    Origin,
    StructLayout,
    TensorMap,
    TritonKernel,
    argument_text,
)
from pytest_gpuenergy.support import KernelFault, Outcome, cache_dir, write_atomically
from pytest_gpuenergy.workloads import BFLOAT16, FLOAT8, IoContract, Scalar, Tensor, stored_as

_T = TypeVar("_T")

Launcher = Callable[[], object]
"""Launches a kernel once on the current stream of CuPy and, if it is imported, of PyTorch."""

# Exceptions of Triton and PyTorch by class name, because their modules are not imported here.
_OUTCOMES: Mapping[str, Outcome] = {
    "CompilationError": "compile",
    "CompileTimeAssertionFailure": "compile",
    "UnsupportedLanguageConstruct": "compile",
    "PTXASError": "compile",
    "OutOfResources": "constraints",
    "OutOfMemoryError": "constraints",
}


def bind(
    cupy: Any, job: Job, binary: Binary | None, sets: Sequence[Mapping[str, Any]]
) -> list[Launcher]:
    """Return one function for each set of buffers, which launches the job's kernel once on it.

    The functions of a CUDA kernel share its device variables, which start with their initial
    values. ``binary`` is None for kinds of kernels that are not compiled ahead.

    Raises:
        KernelFault: the kernel cannot be loaded. The functions may raise this as well.
    """
    if isinstance(job.kernel, Kernel):
        assert binary is not None
        return _bind_cuda(cupy, job, job.kernel, binary, sets)
    return [_BINDERS[job.kernel.kind](cupy, job, binary, payloads) for payloads in sets]


def _bind_cuda(
    cupy: Any, job: Job, kernel: Kernel, binary: Binary, sets: Sequence[Mapping[str, Any]]
) -> list[Launcher]:
    # Not `RawModule`: it caches a file's module, with the values that launches left in variables.
    module = cupy.cuda.function.Module()
    module.load_file(str(binary.path))
    functions = [module.get_function(binary.symbols[launch.entry]) for launch in kernel.launches]
    for function, launch in zip(functions, kernel.launches, strict=True):
        # Without this, static and dynamic shared memory together are limited to 48 KiB.
        if launch.shared_bytes:
            attribute = cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            cupy.cuda.driver.funcSetAttribute(function.ptr, attribute, launch.shared_bytes)
        _check_structs(function, launch, job.scalars)
    # The driver then refuses a launch of more blocks than the card can hold at once.
    options = {"enable_cooperative_groups": True} if kernel.has_grid_barrier else {}
    scalars = {name: scalar.stored for name, scalar in job.scalars.items()}

    def bound(payloads: Mapping[str, Any]) -> Launcher:
        maps = {
            tensor_map.name: encoded_map(tensor_map, int(payloads[tensor_map.tensor].data.ptr))
            for tensor_map in kernel.tensor_maps
        }
        values = {**payloads, **scalars, **maps}

        def value_of(argument: Argument) -> Any:
            if isinstance(argument, str):
                return values[argument]
            return packed_struct(argument, job.scalars, payloads)

        plan: list[Launcher] = []
        for function, launch in zip(functions, kernel.launches, strict=True):
            shape = launch.grid, launch.block
            arguments = tuple(map(value_of, launch.arguments))
            if launch.early:
                early = EarlyLaunch(function, *shape, launch.shared_bytes, arguments)
                plan.append(functools.partial(_on_current_stream, cupy, early))
            else:
                shared = {"shared_mem": launch.shared_bytes, **options}
                plan.append(functools.partial(function, *shape, arguments, **shared))

        def enqueue() -> None:
            for launch in plan:
                launch()

        return enqueue

    return [bound(payloads) for payloads in sets]


def _on_current_stream(cupy: Any, launch: Callable[[int], None]) -> None:
    launch(cupy.cuda.get_current_stream().ptr)


def _check_structs(function: Any, launch: Launch, scalars: Mapping[str, Scalar]) -> None:
    for number, argument in enumerate(launch.arguments):
        if isinstance(argument, str):
            continue
        given = StructLayout.of(argument, scalars).nbytes
        taken = parameter_bytes(function.ptr, number)
        if taken not in (None, given):
            raise KernelFault(
                "constraints",
                f"parameter {number + 1} of {launch.entry} has {taken} bytes, but the struct "
                f"{argument_text(argument)} of the launch has {given}.",
            )


def packed_struct(
    members: Argument, scalars: Mapping[str, Scalar], payloads: Mapping[str, Any]
) -> np.void:
    """Return a struct as a kernel argument, which CuPy passes by value.

    Its members are scalars, structs, and addresses of the arrays in ``payloads``.
    """
    layout = StructLayout.of(members, scalars)
    room = bytearray(layout.nbytes)
    for offset, name in layout.members:
        value = scalars[name].stored if name in scalars else np.uint64(payloads[name].data.ptr)
        room[offset : offset + value.nbytes] = value.tobytes()
    return np.void(bytes(room))


def _bind_program(
    cupy: Any, job: Job, binary: Binary | None, payloads: Mapping[str, Any]
) -> Launcher:
    program = job.kernel
    assert isinstance(program, CudaProgram)
    assert binary is not None
    tensors = [payloads[name] for name in program.arguments]
    return LoadedProgram(cupy, binary.path, tensors, program.numbers)


def _bind_triton(
    _cupy: Any, job: Job, _binary: Binary | None, payloads: Mapping[str, Any]
) -> Launcher:
    kernel = job.kernel
    assert isinstance(kernel, TritonKernel)
    function = _triton_function(kernel.source, kernel.function)
    arguments = _triton_arguments(job, kernel, _torch_tensors(job, payloads))
    options = _triton_options(kernel)
    return lambda: _explained(lambda: function[kernel.grid](*arguments, **options))


def triton_machine_code(job: Job) -> list[tuple[bytes, str]]:
    """Return each cubin of a job's Triton kernel, with the symbol of its function.

    Raises:
        KernelFault: it does not compile.
    """
    import torch

    kernel = job.kernel
    assert isinstance(kernel, TritonKernel)
    function = _triton_function(kernel.source, kernel.function)
    # For a data type, Triton compiles as for a tensor whose address is a multiple of 16.
    types = {
        tensor.name: getattr(torch, tensor.dtype)
        for tensor in (*job.io.tensors, *kernel.workspaces)
    }
    arguments = _triton_arguments(job, kernel, types)
    options = _triton_options(kernel)
    compiled = _explained(lambda: function.warmup(*arguments, grid=kernel.grid, **options))
    # An autotuned function has a list of them.
    results = compiled if isinstance(compiled, list) else [compiled]
    return [(tensor.asm["cubin"], tensor.metadata.name) for tensor in results]


def _triton_arguments(job: Job, kernel: TritonKernel, tensors: Mapping[str, Any]) -> list[Any]:
    scalars = {name: scalar.rounded for name, scalar in job.scalars.items()}
    return [{**tensors, **scalars}[name] for name in kernel.arguments]


def _triton_options(kernel: TritonKernel) -> dict[str, KernelConstant]:
    return {**kernel.constants, "num_warps": kernel.num_warps, "num_stages": kernel.num_stages}


def _bind_library(
    cupy: Any, job: Job, _binary: Binary | None, payloads: Mapping[str, Any]
) -> Launcher:
    call = job.kernel
    assert isinstance(call, LibraryCall)
    launcher = _explained(lambda: LIBRARY[call.entry](cupy, job, call, payloads))
    return lambda: _explained(launcher)


def _torch_matmul(_cupy: Any, job: Job, call: LibraryCall, payloads: Mapping[str, Any]) -> Launcher:
    import torch

    results = _torch_tensors(job, payloads)
    tensors = {parameter: results[name] for parameter, name in call.tensors.items()}
    options = call.all_options

    def multiply() -> None:
        torch.backends.cuda.matmul.allow_tf32 = options["allow_tf32"]
        torch.matmul(tensors["input"], tensors["other"], out=tensors["out"])

    return multiply


def _enqueued(
    cupy: Any,
    call: LibraryCall,
    payloads: Mapping[str, Any],
    bind: Callable[[Mapping[str, int]], Callable[[int], None]],
) -> Launcher:
    """Return a function that enqueues what ``bind`` makes of addresses on CuPy's current stream."""
    launch = bind({name: int(payloads[key].data.ptr) for name, key in call.tensors.items()})
    return functools.partial(_on_current_stream, cupy, launch)


def _cublas_matmul(cupy: Any, job: Job, call: LibraryCall, payloads: Mapping[str, Any]) -> Launcher:
    plan = matmul_plan(call, job.io)
    return _enqueued(
        cupy, call, payloads, lambda addresses: functools.partial(plan.launch, addresses)
    )


def _cublas_grouped(
    cupy: Any, job: Job, call: LibraryCall, payloads: Mapping[str, Any]
) -> Launcher:
    return _enqueued(cupy, call, payloads, functools.partial(grouped_launch, cupy, call, job.io))


def _cudnn_convolution(
    cupy: Any, job: Job, call: LibraryCall, payloads: Mapping[str, Any]
) -> Launcher:
    plan = convolution_plan(call, job.io)
    convolve = _enqueued(cupy, call, payloads, plan.bound)
    adds = "bias" in call.tensors and "bias" not in plan.parameters
    clips = bool(call.all_options["relu"]) and not plan.clips
    if not adds and not clips:
        return convolve
    results = _torch_tensors(job, payloads)
    output = results[call.tensors["output"]]
    shape = (-1, 1, 1) if call.all_options["layout"] == "nchw" else (-1,)
    bias = results[call.tensors["bias"]].view(shape) if adds else None

    def convolve_and_finish() -> None:
        convolve()
        if adds:
            output.add_(bias)
        if clips:
            output.relu_()

    return convolve_and_finish


def _deepgemm_matmul(
    _cupy: Any, job: Job, call: LibraryCall, payloads: Mapping[str, Any]
) -> Launcher:
    library, version = _deepgemm(), call.all_options["version"]
    if version not in ("", found := str(library.__version__)):
        raise KernelFault(
            "constraints",
            f"The call is one of DeepGEMM {version}, and this is {found}: let it be made again.",
        )
    results = _torch_tensors(job, payloads)
    tensors = {parameter: results[name] for parameter, name in call.tensors.items()}
    a_scale, b_scale = tensors["a_scale"], tensors["b_scale"]
    copies = []
    if (aligned := tensors.get("aligned_a_scale")) is not None:
        rows = aligned[:, : a_scale.shape[1]]
        copies.append((rows, a_scale))
        a_scale = rows
    if (packed := tensors.get("packed_b_scale")) is not None:
        copies.append((packed, b_scale[:, : packed.shape[1]]))
        b_scale = packed
    columns, depth = (call.all_options[name] or None for name in ("columns", "depth"))
    a = (tensors["a"][:, :depth], a_scale.t())
    b = (tensors["b"][:, :depth], b_scale)
    c = tensors["c"][:, :columns]

    def multiply() -> None:
        for target, scales in copies:
            target.copy_(scales)
        library.fp8_gemm_nt(a, b, c)

    return multiply


def _deepgemm() -> Any:
    """Return the module of DeepGEMM.

    Raises:
        KernelFault: it cannot be imported, or is too old.
    """
    try:
        library = importlib.import_module("deep_gemm")
    except Exception as error:  # whatever it meets, such as a folder of CUDA that it does not find
        raise KernelFault(
            "constraints",
            f"DeepGEMM cannot be imported ({_description(error)}): install it again for this "
            "PyTorch, and put nvcc on the PATH.",
        ) from None
    if not hasattr(library, "fp8_gemm_nt"):
        raise KernelFault(
            "constraints",
            f"DeepGEMM {getattr(library, '__version__', '')} has no fp8_gemm_nt: install version 2 "
            "or later.",
        )
    return library


def _versioned_deepgemm(call: LibraryCall, _io: IoContract) -> tuple[LibraryCall, ...]:
    """Return the call with the version of DeepGEMM, on which its choice of a kernel depends."""
    version = str(_deepgemm().__version__)
    origin = Origin(call.origin.kind, None, {"version": version})
    return (replace(call, options={**call.options, "version": version}, origin=origin),)


LIBRARY: Mapping[str, Callable[[Any, Job, LibraryCall, Mapping[str, Any]], Launcher]] = {
    "torch.matmul": _torch_matmul,
    "cublasLt.matmul": _cublas_matmul,
    "cublas.grouped": _cublas_grouped,
    "deep_gemm.fp8_gemm_nt": _deepgemm_matmul,
    "cudnn.convolution": _cudnn_convolution,
}
"""For each name of `LIBRARY_ENTRIES`, the function that binds the library call to its buffers."""

_OFFERS: Mapping[str, Callable[[LibraryCall, IoContract], tuple[LibraryCall, ...]]] = {
    "cublasLt.matmul": offered_algorithms,
    "deep_gemm.fp8_gemm_nt": _versioned_deepgemm,
    "cudnn.convolution": offered_convolutions,
}
"""The functions that list a library's algorithms, or tell its version."""


def offered(cupy: Any, call: LibraryCall, io: IoContract) -> tuple[LibraryCall, ...]:
    """Return the algorithms that a library offers for a call, see `Device.offered`."""
    if (offers := _OFFERS.get(call.entry)) is None:
        raise KernelFault("constraints", f"{call.label} has no choices.")
    cupy.cuda.Device().use()  # creates the context through which the library queries the GPU
    return _explained(lambda: offers(call, io))


_BINDERS: Mapping[str, Callable[[Any, Job, Binary | None, Mapping[str, Any]], Launcher]] = {
    "program": _bind_program,
    "triton": _bind_triton,
    "library": _bind_library,
}


def _torch_tensors(job: Job, payloads: Mapping[str, Any]) -> dict[str, Any]:
    """Return PyTorch tensors in the memory of the payloads, by name."""
    import torch

    def tensor_of(tensor: Tensor) -> Any:
        payload = payloads[tensor.name]
        if tensor.dtype in FLOAT8:
            bits = torch.as_tensor(payload.view(np.uint8).reshape(tensor.shape), device="cuda")
            return bits.view(getattr(torch, tensor.dtype))
        if tensor.dtype != BFLOAT16:
            return torch.as_tensor(
                payload.view(stored_as(tensor.dtype)).reshape(tensor.shape), device="cuda"
            )
        # CuPy has no bfloat16; int16 works with every version of PyTorch.
        bits = torch.as_tensor(payload.view(np.int16).reshape(tensor.shape), device="cuda")
        return bits.view(torch.bfloat16)

    return {tensor.name: tensor_of(tensor) for tensor in (*job.io.tensors, *job.kernel.workspaces)}


@functools.lru_cache(maxsize=1)  # shared by all sets of buffers
def _triton_function(source: str, name: str) -> Any:
    # Triton reads the function's source from the module's file.
    digest = hashlib.sha256(source.encode()).hexdigest()
    path = cache_dir("triton") / digest / "kernel.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, source)
    specification = importlib.util.spec_from_file_location(digest, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        raise KernelFault(
            "compile", f"The Triton module fails to load: {_description(error)}."
        ) from None
    function = getattr(module, name, None)
    if not hasattr(function, "__getitem__"):
        raise KernelFault("compile", f"The Triton module has no function {name!r} with triton.jit.")
    return function


def _explained(action: Callable[[], _T]) -> _T:
    try:
        return action()
    except KernelFault:
        raise
    except Exception as error:
        names = [kind.__name__ for kind in type(error).__mro__]
        outcomes: list[Outcome] = [_OUTCOMES[name] for name in names if name in _OUTCOMES]
        raise KernelFault(
            outcomes[0] if outcomes else "runtime", f"{_description(error)}."
        ) from None


def _description(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {' '.join(line.strip() for line in lines)}".rstrip(".: ")


_POINTER = ctypes.c_void_p
_TEXT = ctypes.c_char_p


class LoadedProgram:
    """A loaded host program; a call launches it on CuPy's current stream."""

    def __init__(
        self, cupy: Any, path: Path, tensors: Sequence[Any], numbers: Sequence[int]
    ) -> None:
        self._cupy = cupy
        self._tensors = tensors  # keeps their memory allocated
        try:
            library = ctypes.CDLL(str(path))
            self._launch, initialize, open_ = (
                _function(library, name, *types)
                for name, types in (
                    ("program_launch", (_POINTER, _POINTER)),
                    ("program_initialize", (_POINTER, _POINTER, _POINTER)),
                    ("program_open", (_POINTER, _POINTER, _POINTER, _POINTER)),
                )
            )
            close = _function(library, "program_close", _POINTER)
            close.restype = None
        except (OSError, AttributeError) as error:
            raise KernelFault("compile", f"The program cannot be loaded: {error}.") from None
        pointers = (_POINTER * len(tensors))(*(array.data.ptr for array in tensors))
        program, workspace_bytes = _POINTER(), ctypes.c_size_t()
        integers = (ctypes.c_int * len(numbers))(*numbers)
        _check(
            open_(pointers, integers, ctypes.byref(program), ctypes.byref(workspace_bytes)),
            "constraints",
        )
        self._program = program
        weakref.finalize(self, close, program)
        self._workspace = cupy.empty(max(1, workspace_bytes.value), dtype=cupy.uint8)
        stream = cupy.cuda.get_current_stream()
        _check(initialize(program, self._workspace.data.ptr, stream.ptr), "constraints")
        stream.synchronize()  # because launches use another stream

    def __call__(self) -> None:
        _check(self._launch(self._program, self._cupy.cuda.get_current_stream().ptr), "runtime")


def _function(library: ctypes.CDLL, name: str, *types: Any) -> Any:
    function = getattr(library, name)
    function.argtypes, function.restype = types, _TEXT
    return function


def _check(message: bytes | None, outcome: Outcome) -> None:
    if message is not None:
        text = message.decode(errors="replace").rstrip(".")
        raise KernelFault(outcome, f"The program reports: {text}.")


# Values of enumerations in cuda.h.
_TYPES: Mapping[MapType, int] = {
    **dict.fromkeys(("uint8", "float8_e4m3fn", "float8_e5m2"), 0),
    "int32": 3,
    "int64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_NO_INTERLEAVE, _L2_PROMOTION_256_BYTES, _ZEROS_OUTSIDE = 0, 3, 0

_BYTES, _ALIGNMENT = 128, 64
_RECORD = np.dtype([("opaque", np.uint64, _BYTES // 8)])
Encode = Callable[..., int]


def encoded_map(tensor_map: TensorMap, address: int, encode: Encode | None = None) -> Any:
    """Return a tensor map as a kernel argument of 128 bytes, which is passed by value.

    Args:
        tensor_map: the tensor map.
        address: the address of its tensor in the GPU's memory.
        encode: the driver's function, ``cuTensorMapEncodeTiled`` or ``cuTensorMapEncodeIm2col``.

    Raises:
        KernelFault: the driver refuses the tensor map, or is too old.
    """
    room = np.zeros(_BYTES + _ALIGNMENT, np.uint8)
    at = -room.ctypes.data % _ALIGNMENT
    dimensions, walk = len(tensor_map.dims), tensor_map.im2col
    if walk is None:
        name, strides = "cuTensorMapEncodeTiled", (1,) * dimensions
        box: tuple[Any, ...] = ((ctypes.c_uint32 * dimensions)(*tensor_map.box),)
    else:
        name, strides = "cuTensorMapEncodeIm2col", (1, *walk.strides, 1)
        corners = [(ctypes.c_int * len(each))(*each) for each in (walk.lower, walk.upper)]
        box = (*corners, *map(ctypes.c_uint32, tensor_map.box))
    status = (encode or _driver_function(name))(
        ctypes.c_void_p(room.ctypes.data + at),
        ctypes.c_int(_TYPES[tensor_map.dtype]),
        ctypes.c_uint32(dimensions),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * dimensions)(*tensor_map.dims),
        (ctypes.c_uint64 * max(1, dimensions - 1))(*tensor_map.strides_bytes),
        *box,
        (ctypes.c_uint32 * dimensions)(*strides),
        ctypes.c_int(_NO_INTERLEAVE),
        ctypes.c_int(_SWIZZLES[tensor_map.swizzle_bytes]),
        ctypes.c_int(_L2_PROMOTION_256_BYTES),
        ctypes.c_int(_ZEROS_OUTSIDE),
    )
    if status:
        raise KernelFault(
            "constraints",
            f"The driver refuses the tensor map {tensor_map.name!r} (error {status}).",
        )
    return room[at : at + _BYTES].view(_RECORD)[0]


@functools.cache
def _driver_function(name: str) -> Encode:
    try:
        function: Encode = getattr(ctypes.CDLL("libcuda.so.1"), name)
        return function
    except (OSError, AttributeError):
        raise KernelFault(
            "constraints", "Tensor maps need a driver of CUDA 12 or later: update it."
        ) from None
