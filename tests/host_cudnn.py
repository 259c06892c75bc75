"""The part of cuDNN's graph API that the worker calls, computing on the host's memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_gpuenergy.devices.cuda import cudnn
from pytest_gpuenergy.workloads import Conv2d, numbers, rounded_to

TYPES = {0: "float32", 2: "float16", 9: "bfloat16"}
NAMES = {number: name for name, (number, _) in cudnn._ATTRIBUTES.items()}
KINDS = {number: name for name, number in cudnn._KINDS.items()}
BAD, UNSUPPORTED = 2000, 3000
_LOAD = ctypes.CDLL
TENSOR_CORE, REDUCED, STRICT = 0, 2, 9
"""Notes of an engine's numbers."""


@dataclass(frozen=True)
class Algorithm:
    """An engine with its knobs.

    Attributes:
        engine: its number.
        knobs: their kinds and values.
        notes: of its numbers.
        workspace: the bytes that it takes.
        mode: of the heuristics that list it.
        works: whether the card can run it.
    """

    engine: int
    knobs: tuple[tuple[int, int], ...] = ()
    notes: tuple[int, ...] = ()
    workspace: int = 0
    mode: int = 3
    works: bool = True


@dataclass
class Made:
    """A descriptor with its attributes by name."""

    kind: str
    values: dict[str, list[Any]] = field(default_factory=dict)
    finalized: bool = False


@dataclass
class HostCudnn:
    """What the process's cuDNN offers and does.

    Attributes:
        alone: its algorithms for a convolution alone.
        fused: those for one with a bias, and perhaps a ReLU; it has none for a ReLU alone.
        run: does the work of a launch.
        version: its version.
        loads: whether the library can be loaded.
        queries: of its heuristics so far.
        launched: the engines that were launched.
    """

    alone: tuple[Algorithm, ...]
    fused: tuple[Algorithm, ...] = ()
    run: Callable[[Callable[[], None]], None] = lambda launch: launch()
    version: int = 91900
    loads: bool = True
    queries: int = 0
    launched: set[int] = field(default_factory=set)
    made: dict[int, Made] = field(default_factory=dict)
    count: int = 0

    def library(self, name: str) -> Any:
        """Stand for ``ctypes.CDLL``."""
        if name != "libcudnn.so.9":  # the driver's
            return _LOAD(name)
        if not self.loads:
            raise OSError("libcudnn.so.9: cannot open shared object file")

        def version() -> int:
            return self.version

        def error(status: int) -> bytes:
            return {BAD: b"CUDNN_STATUS_BAD_PARAM"}.get(status, b"CUDNN_STATUS_NOT_SUPPORTED")

        return SimpleNamespace(
            cudnnGetVersion=version,
            cudnnGetErrorString=error,
            cudnnGetLastErrorString=lambda text, _: setattr(text, "value", b"reason\n here"),
            cudnnCreate=lambda handle: setattr(handle._obj, "value", 77) or 0,
            cudnnSetStream=lambda handle, _: 0 if handle.value == 77 else BAD,
            cudnnBackendCreateDescriptor=self._create,
            cudnnBackendDestroyDescriptor=lambda pointer: self.made.pop(pointer.value),
            cudnnBackendSetAttribute=self._set,
            cudnnBackendFinalize=self._finalize,
            cudnnBackendGetAttribute=self._get,
            cudnnBackendExecute=self._execute,
        )

    def _create(self, kind: int, pointer: Any) -> int:
        self.count += 1
        self.made[self.count] = Made(KINDS[kind])
        pointer._obj.value = self.count
        return 0

    def _set(self, pointer: Any, number: int, kind: int, count: Any, array: Any) -> int:
        assert cudnn._ATTRIBUTES[NAMES[number]][1] == kind
        made = self.made[pointer.value]
        assert not made.finalized
        assert NAMES[number].startswith(made.kind)
        values = list(array)
        assert len(values) == count.value
        if kind == cudnn._DESCRIPTOR:
            assert all(self.made[one].finalized for one in values)
        made.values[NAMES[number].removeprefix(f"{made.kind}_")] = values
        return 0

    def _finalize(self, pointer: Any) -> int:
        made = self.made[pointer.value]
        if made.kind == "ENGINEHEUR":
            self.queries += 1
            if not self._algorithms(made.values["OPERATION_GRAPH"][0]):
                return UNSUPPORTED
        if made.kind == "EXECUTION_PLAN" and not self._algorithm(made).works:
            return UNSUPPORTED
        if made.kind == "ENGINE":
            known = self._algorithms(made.values["OPERATION_GRAPH"][0])
            if made.values["GLOBAL_INDEX"][0] not in [one.engine for one in known]:
                return BAD
        made.finalized = True
        return 0

    def _operations(self, graph: int) -> list[Made]:
        return [self.made[one] for one in self.made[graph].values["OPS"]]

    def _algorithms(self, graph: int) -> tuple[Algorithm, ...]:
        operations = self._operations(graph)
        if len(operations) == 1:
            return self.alone
        return self.fused if "BDESC" in operations[1].values else ()

    def _algorithm(self, plan: Made) -> Algorithm:
        """The algorithm of an execution plan, found by what its configuration says."""
        configuration = self.made[plan.values["ENGINE_CONFIG"][0]]
        engine = self.made[configuration.values["ENGINE"][0]]
        knobs = tuple(
            (knob.values["KNOB_TYPE"][0], knob.values["KNOB_VALUE"][0])
            for knob in map(self.made.__getitem__, configuration.values.get("KNOB_CHOICES", ()))
        )
        found = (engine.values["GLOBAL_INDEX"][0], knobs)
        known = self._algorithms(engine.values["OPERATION_GRAPH"][0])
        return next(one for one in known if (one.engine, one.knobs) == found)

    def _get(self, pointer: Any, number: int, kind: int, most: Any, count: Any, values: Any) -> int:
        made = self.made[pointer.value]
        name = NAMES[number].removeprefix(f"{made.kind}_")
        if made.kind == "ENGINEHEUR":
            [mode] = made.values["MODE"]
            known = self._algorithms(made.values["OPERATION_GRAPH"][0])
            found: list[Any] = [one for one in known if one.mode == mode]
        elif made.kind == "EXECUTION_PLAN":
            found = [self._algorithm(made).workspace]
        else:
            found = made.values.get(name, [])
        count._obj.value = len(found)
        if most.value == 0:
            return 0
        found = found[: most.value]
        count._obj.value = len(found)
        for place, one in enumerate(found):
            if kind != cudnn._DESCRIPTOR:
                values[place] = one
                continue
            result = self.made[values[place]]
            if isinstance(one, Algorithm):
                result.values = {"ENGINE": [one], "KNOB_CHOICES": list(one.knobs)}
            elif isinstance(one, tuple):
                result.values = {"KNOB_TYPE": [one[0]], "KNOB_VALUE": [one[1]]}
        if name == "ENGINE":
            [algorithm] = found
            self.made[values[0]].values = {
                "GLOBAL_INDEX": [algorithm.engine],
                "NUMERICAL_NOTE": list(algorithm.notes),
            }
        return 0

    def _execute(self, handle: Any, plan: Any, pack: Any) -> int:
        assert handle.value == 77
        made, given = self.made[plan.value], self.made[pack.value].values
        assert self.made[pack.value].finalized
        algorithm = self._algorithm(made)
        configuration = self.made[made.values["ENGINE_CONFIG"][0]]
        engine = self.made[configuration.values["ENGINE"][0]]
        operations = self._operations(engine.values["OPERATION_GRAPH"][0])
        addresses = dict(zip(given["UNIQUE_IDS"], given["DATA_POINTERS"], strict=True))
        [workspace] = given["WORKSPACE"]

        def convolve() -> None:
            self.launched.add(algorithm.engine)
            ctypes.memset(workspace, 7, algorithm.workspace)
            result = self._convolution(operations[0], addresses)
            last = operations[0].values["Y"]
            for operation in operations[1:]:
                assert operation.values["XDESC"] == last
                assert self.made[last[0]].values["IS_VIRTUAL"] == [True]
                last = operation.values["YDESC"]
                pointwise = self.made[operation.values["PW_DESCRIPTOR"][0]].values["MODE"]
                if pointwise == [0]:
                    result = result + self._numbers(operation.values["BDESC"], addresses)
                else:
                    assert pointwise == [100]
                    result = np.maximum(result, 0)
            memory, dtype = self._memory(last, addresses)
            with np.errstate(over="ignore"):  # to infinity, as on a card
                memory[:] = rounded_to(result, dtype)

        self.run(convolve)
        return 0

    def _convolution(self, operation: Made, addresses: dict[int, int]) -> Any:
        assert (operation.values["ALPHA"], operation.values["BETA"]) == ([1.0], [0.0])
        data, weight = (self._numbers(operation.values[one], addresses) for one in "XW")
        how = self.made[operation.values["CONV_DESC"][0]].values
        assert (how["COMP_TYPE"], how["CONV_MODE"], how["SPATIAL_DIMS"]) == ([0], [1], [2])
        assert how["PRE_PADDINGS"] == how["POST_PADDINGS"]
        (stride, _), (padding, _), (dilation, _) = (
            how[name] for name in ("FILTER_STRIDES", "PRE_PADDINGS", "DILATIONS")
        )
        (n, ci, h, w), (co, ci_of_group, kh, kw) = data.shape, weight.shape
        sizes = (n, h, w, co, ci, kh, kw, stride, padding, dilation, ci // ci_of_group)
        return Conv2d.of("c", *sizes).reference({"data": data, "weight": weight})["output"]

    def _numbers(self, tensor: list[int], addresses: dict[int, int]) -> Any:
        memory, dtype = self._memory(tensor, addresses)
        return numbers(memory, dtype).astype(np.float64)

    def _memory(self, tensor: list[int], addresses: dict[int, int]) -> tuple[Any, str]:
        values = self.made[tensor[0]].values
        dtype = TYPES[values["DATA_TYPE"][0]]
        stored = np.dtype("u2" if dtype == "bfloat16" else dtype)
        address = addresses[values["UNIQUE_ID"][0]]
        assert address % values["BYTE_ALIGNMENT"][0] == 0
        dims, strides = values["DIMENSIONS"], values["STRIDES"]
        size = 1 + sum((dim - 1) * stride for dim, stride in zip(dims, strides, strict=True))
        flat = np.frombuffer(
            (ctypes.c_char * (size * stored.itemsize)).from_address(address), stored
        )
        bytes_apart = [stride * stored.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(flat, dims, bytes_apart), dtype


class HostTensor:
    """A tensor of PyTorch's, as far as it finishes what cuDNN has computed."""

    def __init__(self, host: HostCudnn, array: Any) -> None:
        self.host, self.array = host, array

    def view(self, shape: tuple[int, ...]) -> HostTensor:
        return HostTensor(self.host, self.array.reshape(shape))

    def add_(self, other: HostTensor) -> None:
        self.host.run(lambda: np.add(self.array, other.array, out=self.array))

    def relu_(self) -> None:
        self.host.run(lambda: np.maximum(self.array, 0, out=self.array))


@contextmanager
def host_cudnn(alone: tuple[Algorithm, ...], fused: tuple[Algorithm, ...]) -> Iterator[HostCudnn]:
    """Within the context, replace cuDNN and PyTorch by these stand-ins."""
    host = HostCudnn(alone, fused)
    cuda = SimpleNamespace(
        stream=lambda _: nullcontext(), ExternalStream=lambda pointer, _device: pointer
    )
    torch = SimpleNamespace(
        as_tensor=lambda array, device: HostTensor(host, np.asarray(array)),  # noqa: ARG005 -- as PyTorch's
        cuda=cuda,
    )
    caches = (cudnn._plan, cudnn._library, cudnn._handle)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", torch)
        patch.setattr(ctypes, "CDLL", host.library)
        for cache in caches:
            cache.cache_clear()
        yield host
        for cache in caches:
            cache.cache_clear()
