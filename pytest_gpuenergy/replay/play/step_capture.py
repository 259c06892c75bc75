"""A model's steps as CUDA graphs: what repeats a step, and what takes the place of some operators.

Imports PyTorch: import this module only where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from hashlib import blake2b
from typing import Any

import torch
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only

from pytest_gpuenergy.replay.account.account import (
    GRAPH,
    LAYERS,
    module_level,
)
from pytest_gpuenergy.replay.profile.capture import (
    OperatorMode,
    calls_watched,
    tensors_in,
)
from pytest_gpuenergy.replay.profile.kept_state import with_state_kept
from pytest_gpuenergy.replay.profile.programs import TorchProgram, appendable, told_of_capture
from pytest_gpuenergy.replay.profile.reuse import MAX_COPIES

_HOST_ARGUMENTS = {
    torch.ops.aten.to: (0,),
    torch.ops.aten._to_copy: (0,),
    torch.ops.aten.type_as: (0,),
    torch.ops.aten.copy_: (1,),
    torch.ops.aten.index: (1,),
    torch.ops.aten.index_put: (1, 2),
    torch.ops.aten.index_put_: (1, 2),
    torch.ops.aten.where: (0, 1, 2),
}
"""By operator, the places of the arguments that it copies to the GPU if they are on the host."""


class EmptyKernels(OperatorMode):
    """Launches an empty kernel after each operator that may launch something.

    Operators that only give a tensor another form, and what other operators call, get none.
    """

    def called(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        returned = func(*args, **keywords)
        if not getattr(func, "is_view", False):  # operators that take functions do not tell
            torch.cuda._sleep(0)
        return returned


def with_empty_kernels(function: Callable[[], object]) -> Callable[[], object]:
    """Return a function that does what ``function`` does, with `EmptyKernels`."""
    return _within(EmptyKernels(), function)


class HostCopies(OperatorMode):
    """Replaces copies from the host by copies within the GPU, which a CUDA graph can have.

    While a graph is captured, PyTorch refuses to copy from memory of the host that is not pinned,
    as ``torch.tensor(0.0, device="cuda")`` does. In this context, a value is copied from the host
    only the first time that a program needs it, and kept on the GPU, where operators take it from.
    Their results are copies of it, so the program may change them. PyTorch still refuses a value
    that the program needs for the first time while a graph is captured.

    Attributes:
        kept: By GPU, type, shape, strides and digest of the elements, the copies on the GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[object, Any] = {}
        self._lifted: list[bool] = []

    def __enter__(self) -> HostCopies:
        # PyTorch's private switch for its own fake tensors: without it, no mode sees how a tensor
        # that is made from numbers or lists reaches the GPU.
        self._lifted.append(torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        torch._C._set_only_lift_cpu_tensors(self._lifted.pop())

    def called(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        places = _HOST_ARGUMENTS.get(getattr(func, "overloadpacket", None), ())
        leaves, _ = tree_flatten((args, keywords) if places else ())
        devices = [getattr(leaf, "device", leaf) for leaf in leaves]
        gpus = [one for one in devices if isinstance(one, torch.device) and one.type != "cpu"]
        if not gpus:
            return func(*args, **keywords)
        on_gpu = partial(self._on_gpu, gpu=gpus[0])
        own = tuple(
            tree_map_only(torch.Tensor, on_gpu, argument) if place in places else argument
            for place, argument in enumerate(args)
        )
        returned = func(*own, **keywords)
        # ``to`` returns the kept tensor itself if it has the right type already.
        is_kept = returned is own[0] and returned is not args[0]
        return returned.clone() if is_kept else returned

    def _on_gpu(self, tensor: Any, *, gpu: Any) -> Any:
        """Return the kept copy of a tensor on the host; copy the tensor if there is none yet."""
        is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensors_in(tensor)
        if not is_plain or tensor.device.type != "cpu" or tensor.is_pinned():
            return tensor
        elements = tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
        digest = blake2b(elements.numpy()).digest()
        key = gpu, tensor.dtype, tensor.shape, tensor.stride(), digest
        if key not in self.kept:
            self.kept[key] = tensor.to(gpu)  # which PyTorch refuses during a capture
        return self.kept[key]


def _within(mode: OperatorMode, function: Callable[[], object]) -> Callable[[], object]:
    """Return a function that does what ``function`` does, within ``mode``."""

    def inside() -> object:
        with mode:
            return function()

    return inside


def with_calls_of(function: Callable[[], object], *, is_capturing: bool) -> Callable[[], object]:
    """Return a function that makes the calls that ``function`` makes during a capture, or others.

    Args:
        function: The function, which a program may make depend on whether a graph is captured.
        is_capturing: What the program is told, see `told_of_capture`.
    """

    def told() -> object:
        with told_of_capture(is_capturing):
            return function()

    return told


def capture_step(
    program: TorchProgram, inputs: Any, number: int, limit_bytes: int = 0
) -> tuple[Callable[[], object], dict[str, list[Callable[[], object]]]]:
    """Run a program up to a step, and keep what is needed to repeat the step.

    Modules keep the arguments that they have in a graph of the step.

    Args:
        program: The program.
        inputs: The input of its first step.
        number: The number of the step; 0 for the prefill.
        limit_bytes: The reuse distance at which a tensor has left the cache; 0 to leave modules
            the weights that they have.

    Returns:
        A function that runs the whole step; and by level, see `Account`, functions to capture in
        one CUDA graph, in turn: of all its layers, or one of the other modules, each with the
        arguments that it had, and of the whole step. A module has as many functions, each with
        weights of its own, as let it find them where the step does, see `_with_own_weights`. If the
        step copies from the host, all have `HostCopies`.
    """
    whole = program.step(inputs, number)
    kept: dict[str, list[tuple[Any, Any]]] = {}
    open_layers: list[Any] = []
    levels = [(LAYERS, layer) for layer in program.layers]
    levels += [(module_level(name), module) for name, module in program.outer_modules.items()]
    copies = HostCopies()
    with ExitStack() as stack:
        for level, module in levels:

            def keep(module: Any, args: Any, kwargs: Any, *, level: str = level) -> None:
                if not open_layers:  # layers contain what they call
                    arguments = tree_map(appendable, (args, kwargs))
                    kept.setdefault(level, []).append((module, arguments))
                if level == LAYERS:
                    open_layers.append(module)

            def leave(_: Any, *, level: str = level) -> None:
                if level == LAYERS:
                    open_layers.pop()

            stack.enter_context(calls_watched(module, keep, leave))
        with told_of_capture(True), copies:
            whole()

    functions: dict[str, list[Callable[[], object]]] = {GRAPH: [whole]}
    weights = [weight for module in program.modules.values() for weight in module.parameters()]
    distance_bytes = min(limit_bytes, _bytes_in(weights))
    with told_of_capture(True), copies:
        for level, calls in kept.items():
            first = partial(_again, calls)
            try:
                function = with_state_kept(first, program.modules)
            except torch.OutOfMemoryError:
                raise
            except Exception:  # a module may raise anything, and will again when it is measured
                functions[level] = [first]
                continue
            functions[level] = [function]
            if level != LAYERS and function is first:
                functions[level] += _with_own_weights(calls, distance_bytes)
    if copies.kept:
        functions = {
            level: [_within(copies, function) for function in group]
            for level, group in functions.items()
        }
    return whole, functions


def _again(
    calls: Sequence[tuple[Any, Any]], own: Mapping[Any, dict[str, Any]] | None = None
) -> None:
    """Call modules again, with their own weights or others."""
    for module, arguments in calls:
        args, kwargs = tree_map(appendable, arguments)
        if own is None:
            module(*args, **kwargs)
        else:
            functional_call(module, own[module], args, kwargs)


def _with_own_weights(
    calls: Sequence[tuple[Any, Any]], distance_bytes: int
) -> list[Callable[[], object]]:
    """Return functions that make calls of modules with copies of their weights.

    Made in turn after the calls with the weights themselves, they bring these to the reuse distance
    that they have in a step. A small module alone would find its weights in the L2 cache.
    """
    modules = {module for module, _ in calls}
    size_bytes = _bytes_in([weight for module in modules for weight in module.parameters()])
    count = min(MAX_COPIES, round(distance_bytes / size_bytes)) if size_bytes else 1
    return [
        partial(
            _again,
            calls,
            {
                module: {name: weight.clone() for name, weight in module.named_parameters()}
                for module in modules
            },
        )
        for _ in range(count - 1)
    ]


def _bytes_in(weights: Sequence[Any]) -> int:
    return sum(weight.numel() * weight.element_size() for weight in weights)
