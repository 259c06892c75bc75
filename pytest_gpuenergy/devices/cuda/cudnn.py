"""Convolutions by cuDNN's graph API, planned before they are launched.

The library is the one that PyTorch loads. An algorithm is what cuDNN calls an engine with its
knobs; its heuristics list those that suit a convolution, as for PyTorch's
``torch.backends.cudnn.benchmark``. A tensor is described with the distances of its elements, so
that cuDNN computes on NCHW and NHWC alike; what it converts for itself are launches of the plan.
"""

from __future__ import annotations

import ctypes
import functools
import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from pytest_gpuenergy.kernels import LibraryCall, Origin
from pytest_gpuenergy.support import KernelFault, Outcome
from pytest_gpuenergy.workloads import IoContract, Tensor

_LIBRARY = "libcudnn.so.9"
_MAX_ALGORITHMS = 128
"""The largest number of algorithms that are offered."""
_ALIGNMENT_BYTES = 16
"""The alignment of all tensors, in bytes."""

# Values of cudnnBackendAttributeType_t, and the types in C of such values.
_HANDLE, _DATA_TYPE, _BOOLEAN, _INT64, _FLOAT, _POINTER = 0, 1, 2, 3, 4, 6
_CONVOLUTION_MODE, _HEUR_MODE, _KNOB_TYPE, _NUMERICAL_NOTE = 7, 8, 9, 11
_POINTWISE_MODE, _DESCRIPTOR = 14, 15
_IN_C: Mapping[int, Any] = {
    _HANDLE: ctypes.c_void_p,
    _BOOLEAN: ctypes.c_bool,
    _INT64: ctypes.c_int64,
    _FLOAT: ctypes.c_float,
    _POINTER: ctypes.c_void_p,
    _DESCRIPTOR: ctypes.c_void_p,
}
"""The enumerations, which are left out, are integers."""

_KINDS = {
    "POINTWISE": 0,
    "CONVOLUTION": 1,
    "ENGINE": 2,
    "ENGINECFG": 3,
    "ENGINEHEUR": 4,
    "EXECUTION_PLAN": 5,
    "KNOB_CHOICE": 7,
    "OPERATION_CONVOLUTION_FORWARD": 10,
    "OPERATION_POINTWISE": 13,
    "OPERATIONGRAPH": 15,
    "VARIANT_PACK": 16,
    "TENSOR": 17,
}
"""The kinds of descriptors that are used here (``cudnnBackendDescriptorType_t``)."""

_ATTRIBUTES: Mapping[str, tuple[int, int]] = {
    "POINTWISE_MODE": (0, _POINTWISE_MODE),
    "POINTWISE_MATH_PREC": (1, _DATA_TYPE),
    "CONVOLUTION_COMP_TYPE": (100, _DATA_TYPE),
    "CONVOLUTION_CONV_MODE": (101, _CONVOLUTION_MODE),
    "CONVOLUTION_DILATIONS": (102, _INT64),
    "CONVOLUTION_FILTER_STRIDES": (103, _INT64),
    "CONVOLUTION_POST_PADDINGS": (104, _INT64),
    "CONVOLUTION_PRE_PADDINGS": (105, _INT64),
    "CONVOLUTION_SPATIAL_DIMS": (106, _INT64),
    "ENGINEHEUR_MODE": (200, _HEUR_MODE),
    "ENGINEHEUR_OPERATION_GRAPH": (201, _DESCRIPTOR),
    "ENGINEHEUR_RESULTS": (202, _DESCRIPTOR),
    "ENGINECFG_ENGINE": (300, _DESCRIPTOR),
    "ENGINECFG_KNOB_CHOICES": (302, _DESCRIPTOR),
    "EXECUTION_PLAN_HANDLE": (400, _HANDLE),
    "EXECUTION_PLAN_ENGINE_CONFIG": (401, _DESCRIPTOR),
    "EXECUTION_PLAN_WORKSPACE_SIZE": (402, _INT64),
    "KNOB_CHOICE_KNOB_TYPE": (600, _KNOB_TYPE),
    "KNOB_CHOICE_KNOB_VALUE": (601, _INT64),
    "OPERATION_CONVOLUTION_FORWARD_ALPHA": (700, _FLOAT),
    "OPERATION_CONVOLUTION_FORWARD_BETA": (701, _FLOAT),
    "OPERATION_CONVOLUTION_FORWARD_CONV_DESC": (702, _DESCRIPTOR),
    "OPERATION_CONVOLUTION_FORWARD_W": (703, _DESCRIPTOR),
    "OPERATION_CONVOLUTION_FORWARD_X": (704, _DESCRIPTOR),
    "OPERATION_CONVOLUTION_FORWARD_Y": (705, _DESCRIPTOR),
    "OPERATION_POINTWISE_PW_DESCRIPTOR": (750, _DESCRIPTOR),
    "OPERATION_POINTWISE_XDESC": (751, _DESCRIPTOR),
    "OPERATION_POINTWISE_BDESC": (752, _DESCRIPTOR),
    "OPERATION_POINTWISE_YDESC": (753, _DESCRIPTOR),
    "OPERATIONGRAPH_HANDLE": (800, _HANDLE),
    "OPERATIONGRAPH_OPS": (801, _DESCRIPTOR),
    "TENSOR_BYTE_ALIGNMENT": (900, _INT64),
    "TENSOR_DATA_TYPE": (901, _DATA_TYPE),
    "TENSOR_DIMENSIONS": (902, _INT64),
    "TENSOR_STRIDES": (903, _INT64),
    "TENSOR_UNIQUE_ID": (906, _INT64),
    "TENSOR_IS_VIRTUAL": (907, _BOOLEAN),
    "VARIANT_PACK_UNIQUE_IDS": (1000, _INT64),
    "VARIANT_PACK_DATA_POINTERS": (1001, _POINTER),
    "VARIANT_PACK_WORKSPACE": (1003, _POINTER),
    "ENGINE_OPERATION_GRAPH": (1300, _DESCRIPTOR),
    "ENGINE_GLOBAL_INDEX": (1301, _INT64),
    "ENGINE_NUMERICAL_NOTE": (1303, _NUMERICAL_NOTE),
}
"""The attributes that are used here (``cudnnBackendAttributeName_t``), with their types."""

_FLOAT32 = 0  # CUDNN_DATA_FLOAT
_DATA_TYPES = {"float32": _FLOAT32, "float16": 2, "bfloat16": 9}
_CROSS_CORRELATION = 1
_ADD, _RELU = 0, 100  # CUDNN_POINTWISE_ADD, CUDNN_POINTWISE_RELU_FWD
_MODES = (3, 1, 2)
"""Heuristics by CUDNN_HEUR_MODE_A and _B, and CUDNN_HEUR_MODE_FALLBACK."""
_NOTES = (
    "tensor_core",
    "down_convert_inputs",
    "reduced_precision_reduction",
    "fft",
    "nondeterministic",
    "winograd",
    "winograd_4x4",
    "winograd_6x6",
    "winograd_13x13",
    "strict_nan",
)
"""cuDNN's notes on an engine's arithmetic (``cudnnBackendNumericalNote_t``)."""
_INEXACT = frozenset({"down_convert_inputs", "reduced_precision_reduction"})
"""The notes that no mode allows: elements are rounded to a smaller type, or added in one."""
_ENGINE = re.compile(r"eng(\d+)((?:_k\d+=-?\d+)*)", re.ASCII)
_MAX_KNOBS = 64
"""More than an engine has."""
_IDS = {"data": 1, "weight": 2, "output": 3, "bias": 4}
"""The number of each parameter in a graph. Tensors within the graph have higher ones."""


class Descriptor:
    """A descriptor of cuDNN's, which is destroyed with this object.

    Its kind is one of `_KINDS`; its attributes are named without the kind in front of them.

    Raises:
        KernelFault: cuDNN refuses it.
    """

    def __init__(self, kind: str, **attributes: Any) -> None:
        self._kind = kind
        self.pointer = ctypes.c_void_p()
        library = _library()
        _check(library.cudnnBackendCreateDescriptor(_KINDS[kind], ctypes.byref(self.pointer)))
        # At the end of the process, CUDA may be gone before Python's objects.
        weakref.finalize(self, library.cudnnBackendDestroyDescriptor, self.pointer).atexit = False
        self._uses = attributes  # descriptors that must not be destroyed before this one
        for name, value in attributes.items():
            self._set(name, value)

    def finalized(self) -> Self:
        """Return this descriptor, after cuDNN has checked and prepared it."""
        _check(_library().cudnnBackendFinalize(self.pointer))
        return self

    def integers(self, name: str, most: int = 1) -> list[int]:
        """Return the values of an attribute, but no more than ``most``."""
        number, kind = _ATTRIBUTES[f"{self._kind}_{name}"]
        values = (_IN_C.get(kind, ctypes.c_int) * most)()
        return [int(value) for value in values[: self._get(number, kind, values)]]

    def descriptors(self, name: str, kind: str, most: int | None = None) -> list[Descriptor]:
        """Return the descriptors of an attribute, but no more than ``most`` unless it is None."""
        number, _ = _ATTRIBUTES[f"{self._kind}_{name}"]
        if most is None:
            most = self._get(number, _DESCRIPTOR, ())
        found = [Descriptor(kind) for _ in range(most)]
        values = (ctypes.c_void_p * most)(*(one.pointer.value for one in found))
        return found[: self._get(number, _DESCRIPTOR, values)]

    def _get(self, number: int, kind: int, values: Any) -> int:
        count = ctypes.c_int64()
        length = ctypes.c_int64(len(values))
        _check(
            _library().cudnnBackendGetAttribute(
                self.pointer, number, kind, length, ctypes.byref(count), values or None
            )
        )
        return count.value

    def _set(self, name: str, value: Any) -> None:
        number, kind = _ATTRIBUTES[f"{self._kind}_{name}"]
        values = value if isinstance(value, list | tuple) else [value]
        if kind == _DESCRIPTOR:
            values = [one.pointer.value for one in values]
        array = (_IN_C.get(kind, ctypes.c_int) * len(values))(*values)
        _check(
            _library().cudnnBackendSetAttribute(
                self.pointer, number, kind, ctypes.c_int64(len(values)), array
            )
        )


@dataclass(frozen=True)
class _Convolution:
    """The computation of a plan: a convolution and, if they are fused with it, bias and ReLU.

    Attributes:
        data: N, CI, H and W.
        weight: CO, CI of a group, KH and KW.
        output: N, CO, OH and OW.
        dtype: the type of all elements.
        channels_last: whether channels are the innermost dimension of all tensors.
        stride: the stride.
        padding: the padding on each side.
        dilation: the dilation.
        bias: whether the plan adds a bias.
        relu: whether the plan replaces negative results by zero.
    """

    data: tuple[int, ...]
    weight: tuple[int, ...]
    output: tuple[int, ...]
    dtype: str
    channels_last: bool
    stride: int
    padding: int
    dilation: int
    bias: bool
    relu: bool

    @classmethod
    def of(cls, call: LibraryCall, io: IoContract) -> _Convolution:
        options, tensors = call.all_options, _tensors(call, io)
        channels_last = options["layout"] == "nhwc"

        def dims(parameter: str) -> tuple[int, ...]:
            first, *rest = tensors[parameter].shape
            return (first, rest[-1], *rest[:-1]) if channels_last else (first, *rest)

        types = {one.dtype for name, one in tensors.items() if name != "workspace"}
        dtype = types.pop()
        ranks = {len(tensors[name].shape) for name in ("data", "weight", "output")}
        if types or dtype not in _DATA_TYPES or ranks != {4}:
            raise KernelFault(
                "constraints",
                f"{call.label} takes four-dimensional tensors of one type, of "
                f"{', '.join(_DATA_TYPES)}, which those of {io.name} are not.",
            )
        fused = bool(options["fused"])
        return cls(
            data=dims("data"),
            weight=dims("weight"),
            output=dims("output"),
            dtype=dtype,
            channels_last=channels_last,
            stride=int(options["stride"]),
            padding=int(options["padding"]),
            dilation=int(options["dilation"]),
            bias=fused and "bias" in tensors,
            relu=fused and bool(options["relu"]),
        )

    def graph(self) -> Descriptor:
        """Return the graph of the operations."""
        identifiers = iter(range(len(_IDS) + 1, 10))
        data, weight, output, bias = (
            self._tensor(dims, identifier)
            for dims, identifier in zip(
                (self.data, self.weight, self.output, (1, self.output[1], 1, 1)),
                _IDS.values(),
                strict=True,
            )
        )
        steps: list[tuple[int, Descriptor | None]] = []
        if self.bias:
            steps.append((_ADD, bias))
        if self.relu:
            steps.append((_RELU, None))
        # The result of each operation but the last exists only within the graph, in float32.
        results = [
            *(self._tensor(self.output, next(identifiers), virtual=True) for _ in steps),
            output,
        ]
        description = Descriptor(
            "CONVOLUTION",
            COMP_TYPE=_FLOAT32,
            CONV_MODE=_CROSS_CORRELATION,
            SPATIAL_DIMS=2,
            DILATIONS=[self.dilation] * 2,
            FILTER_STRIDES=[self.stride] * 2,
            PRE_PADDINGS=[self.padding] * 2,
            POST_PADDINGS=[self.padding] * 2,
        ).finalized()
        operations = [
            Descriptor(
                "OPERATION_CONVOLUTION_FORWARD",
                X=data,
                W=weight,
                Y=results[0],
                CONV_DESC=description,
                ALPHA=1.0,
                BETA=0.0,
            ).finalized()
        ]
        for place, (mode, operand) in enumerate(steps):
            pointwise = Descriptor("POINTWISE", MODE=mode, MATH_PREC=_FLOAT32).finalized()
            operations.append(
                Descriptor(
                    "OPERATION_POINTWISE",
                    PW_DESCRIPTOR=pointwise,
                    XDESC=results[place],
                    **({} if operand is None else {"BDESC": operand}),
                    YDESC=results[place + 1],
                ).finalized()
            )
        return Descriptor("OPERATIONGRAPH", HANDLE=_handle(), OPS=operations).finalized()

    def _tensor(
        self, dims: tuple[int, ...], identifier: int, *, virtual: bool = False
    ) -> Descriptor:
        _, channels, height, width = dims
        if self.channels_last:
            strides = (height * width * channels, 1, width * channels, channels)
        else:
            strides = (channels * height * width, height * width, width, 1)
        return Descriptor(
            "TENSOR",
            DATA_TYPE=_FLOAT32 if virtual else _DATA_TYPES[self.dtype],
            DIMENSIONS=dims,
            STRIDES=strides,
            UNIQUE_ID=identifier,
            BYTE_ALIGNMENT=_ALIGNMENT_BYTES,
            **({"IS_VIRTUAL": True} if virtual else {}),
        ).finalized()


@dataclass(frozen=True)
class ConvolutionPlan:
    """A convolution with its algorithm, which asks cuDNN nothing while it is launched.

    Attributes:
        descriptor: the execution plan.
        parameters: the names of the tensors that it takes, apart from the workspace.
        clips: whether it replaces negative results by zero.
        workspace_bytes: the size of its workspace.
    """

    descriptor: Descriptor
    parameters: tuple[str, ...]
    clips: bool
    workspace_bytes: int

    def bound(self, addresses: Mapping[str, int]) -> Callable[[int], None]:
        """Return a function that enqueues the plan on a ``cudaStream_t``, with these parameters."""
        pack = Descriptor(
            "VARIANT_PACK",
            UNIQUE_IDS=[_IDS[name] for name in self.parameters],
            DATA_POINTERS=[addresses[name] for name in self.parameters],
            WORKSPACE=addresses["workspace"],
        ).finalized()
        library, handle = _library(), ctypes.c_void_p(_handle())

        def launch(stream: int) -> None:
            _check(library.cudnnSetStream(handle, ctypes.c_void_p(stream)), "runtime")
            _check(
                library.cudnnBackendExecute(handle, self.descriptor.pointer, pack.pointer),
                "runtime",
            )

        return launch


def convolution_plan(call: LibraryCall, io: IoContract) -> ConvolutionPlan:
    """Return the plan of a library call; without an algorithm, that of the first offered one."""
    options = call.all_options
    if not options["algorithm"]:
        return convolution_plan(next(_offered(call, io)), io)
    if options["version"] != (version := int(_library().cudnnGetVersion())):
        raise KernelFault(
            "constraints",
            f"The algorithm is one of cuDNN {options['version']}, and this is {version}: let it "
            "be chosen again.",
        )
    plan = _plan(_Convolution.of(call, io), str(options["algorithm"]))
    room = _tensors(call, io)["workspace"].nbytes
    if plan.workspace_bytes > room:
        raise KernelFault(
            "constraints",
            f"The algorithm {options['algorithm']} of cuDNN takes a workspace of "
            f"{plan.workspace_bytes} bytes, and there are {room}: let it be chosen again.",
        )
    return plan


def offered_convolutions(call: LibraryCall, io: IoContract) -> tuple[LibraryCall, ...]:
    """Return the call with each algorithm that cuDNN's heuristics offer, and its workspace.

    Bias and ReLU are fused with the convolution where cuDNN has that. Each algorithm of the
    convolution alone is offered too, unless a bias would be added to sums that have already been
    rounded to 16 bits. For float32 tensors without TF32, algorithms that use tensor cores are left
    out, and those that compute with smaller types than the tensors' in any case.

    Raises:
        KernelFault: cuDNN cannot be used, or offers no algorithm.
    """
    calls = []
    for found in _offered(call, io):
        calls.append(found)
        if len(calls) == _MAX_ALGORITHMS:
            break
    return tuple(calls)


def _offered(call: LibraryCall, io: IoContract) -> Iterator[LibraryCall]:
    options = call.all_options
    tensors = _tensors(call, io)
    in_float32, biased = tensors["data"].dtype == "float32", "bias" in tensors
    refused = _INEXACT | ({"tensor_core"} if in_float32 and not options["tf32"] else set())
    most = tensors["workspace"].nbytes
    version = int(_library().cudnnGetVersion())
    ways = [True] if biased or options["relu"] else []
    if in_float32 or not biased:
        ways.append(False)
    refusal, some = "", False
    for fused in ways:
        chosen = replace(call, options={**call.options, "fused": fused, "version": version})
        problem = _Convolution.of(chosen, io)
        for algorithm, notes in _algorithms(problem).items():
            if notes & refused:
                continue
            try:
                plan = _plan(problem, algorithm)
            except KernelFault as fault:  # heuristics also list what the card cannot do
                refusal = refusal or f": {fault}".rstrip(".")
                continue
            if plan.workspace_bytes > most:
                continue
            some = True
            yield _with_algorithm(chosen, algorithm, notes, plan.workspace_bytes)
    if not some:
        raise KernelFault("constraints", f"cuDNN offers no algorithm for {io.name}{refusal}.")


def _with_algorithm(
    call: LibraryCall, algorithm: str, notes: frozenset[str], workspace_bytes: int
) -> LibraryCall:
    # An algorithm may need no workspace, but a tensor has at least one element.
    size, name = max(1, workspace_bytes), call.tensors["workspace"]
    details: dict[str, str | int | float] = {"algorithm": algorithm, "workspace_bytes": size}
    if notes:
        details["notes"] = " ".join(sorted(notes))
    if "bias" in call.tensors or call.all_options["relu"]:
        details["fused"] = int(bool(call.all_options["fused"]))
    return replace(
        call,
        options={**call.options, "algorithm": algorithm},
        workspaces=tuple(
            replace(space, shape=(size,)) if space.name == name else space
            for space in call.workspaces
        ),
        origin=Origin(call.origin.kind, None, details),
    )


def _algorithms(problem: _Convolution) -> dict[str, frozenset[str]]:
    """Return the algorithms that cuDNN's heuristics list, and its notes of each."""
    found: dict[str, frozenset[str]] = {}
    try:
        graph = problem.graph()
    except KernelFault:
        if problem.bias or problem.relu:
            return {}  # it has no such graph: the convolution is computed alone
        raise
    for mode in _MODES:
        try:
            heuristics = Descriptor("ENGINEHEUR", OPERATION_GRAPH=graph, MODE=mode).finalized()
            configurations = heuristics.descriptors("RESULTS", "ENGINECFG")
        except KernelFault:  # this mode has nothing for the graph
            continue
        for configuration in configurations:
            [engine] = configuration.descriptors("ENGINE", "ENGINE", 1)
            [index] = engine.integers("GLOBAL_INDEX")
            notes = engine.integers("NUMERICAL_NOTE", len(_NOTES))
            text = f"eng{index}"
            for knob in configuration.descriptors("KNOB_CHOICES", "KNOB_CHOICE", _MAX_KNOBS):
                [kind], [value] = knob.integers("KNOB_TYPE"), knob.integers("KNOB_VALUE")
                text += f"_k{kind}={value}"
            found.setdefault(text, frozenset(_NOTES[one] for one in notes if one < len(_NOTES)))
    return found


@functools.lru_cache(maxsize=_MAX_ALGORITHMS)  # shared by all sets of buffers
def _plan(problem: _Convolution, algorithm: str) -> ConvolutionPlan:
    """Return the plan of an algorithm, compiled if cuDNN compiles it when it is used."""
    if (parsed := _ENGINE.fullmatch(algorithm)) is None:
        raise KernelFault("constraints", f"{algorithm!r:.40} is no algorithm of cuDNN.")
    engine = Descriptor(
        "ENGINE", OPERATION_GRAPH=problem.graph(), GLOBAL_INDEX=int(parsed[1])
    ).finalized()
    knobs = [
        Descriptor("KNOB_CHOICE", KNOB_TYPE=int(kind), KNOB_VALUE=int(value)).finalized()
        for kind, value in re.findall(r"_k(\d+)=(-?\d+)", parsed[2])
    ]
    chosen = {"KNOB_CHOICES": knobs} if knobs else {}
    configuration = Descriptor("ENGINECFG", ENGINE=engine, **chosen).finalized()
    plan = Descriptor("EXECUTION_PLAN", HANDLE=_handle(), ENGINE_CONFIG=configuration).finalized()
    parameters = ("data", "weight", "output", *(("bias",) if problem.bias else ()))
    return ConvolutionPlan(plan, parameters, problem.relu, plan.integers("WORKSPACE_SIZE")[0])


def _tensors(call: LibraryCall, io: IoContract) -> dict[str, Tensor]:
    """Return the tensor of each parameter."""
    by_name = {tensor.name: tensor for tensor in (*io.tensors, *call.workspaces)}
    return {parameter: by_name[name] for parameter, name in call.tensors.items()}


@functools.cache
def _library() -> Any:
    import torch  # noqa: F401 -- loads cuDNN, and what that needs

    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise KernelFault(
            "constraints",
            f"cuDNN cannot be used ({error}): it comes with a PyTorch that is built for CUDA.",
        ) from None
    library.cudnnGetErrorString.restype = ctypes.c_char_p
    library.cudnnGetVersion.restype = ctypes.c_size_t
    return library


@functools.cache
def _handle() -> int:
    """Return this process's handle of cuDNN."""
    handle = ctypes.c_void_p()
    _check(_library().cudnnCreate(ctypes.byref(handle)))
    assert handle.value is not None
    return handle.value


def _check(status: int, outcome: Outcome = "constraints") -> None:
    if status:
        library = _library()
        name = library.cudnnGetErrorString(status).decode(errors="replace")
        details = ctypes.create_string_buffer(1024)
        library.cudnnGetLastErrorString(details, ctypes.c_size_t(len(details)))
        told = " ".join(details.value.decode(errors="replace").split()).rstrip(".")
        raise KernelFault(outcome, f"cuDNN reports {name}" + (f": {told}." if told else "."))
