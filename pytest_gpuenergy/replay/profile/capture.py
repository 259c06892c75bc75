"""Records every call of an operator that a model makes, with its live arguments.

Imports PyTorch: import this module only where it is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_flatten, tree_map_only

from pytest_gpuenergy.replay.extract.calls import CallForm
from pytest_gpuenergy.replay.profile.reuse import Reuse, ReuseSpan, ReuseStack

LARGEST_ALIGNMENT = 256
TRITON_MODULES = ("triton.runtime.jit", "torch._inductor.runtime.triton_heuristics")
"""The modules that launch Triton kernels: those of a program, and those of ``torch.compile``."""


_SCALARS = (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Types of arguments in which there is no tensor, besides that of None."""


class Part(NamedTuple):
    """Consecutive bytes of one of the tensors that a call takes.

    Attributes:
        tensor: The number of the tensor.
        begin: The first byte.
        size_bytes: The number of bytes.
    """

    tensor: int
    begin: int
    size_bytes: int

    def of(self, tensors: Sequence[Any]) -> Any:
        """Return these bytes of one of ``tensors``, which shares them."""
        return bytes_of(tensors[self.tensor])[self.begin : self.begin + self.size_bytes]


@dataclass(frozen=True)
class LiveCall:
    """A call that can be made again.

    Attributes:
        operator: PyTorch's overload, or the function that launches a Triton kernel.
        arguments: The arguments by position. Parameters of the model are shared with it; all other
            tensors are copies that were made before the call. A tensor that it takes twice is one.
        keywords: The arguments by name.
        parameters: The addresses of the storages of the model's parameters.
    """

    operator: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    parameters: frozenset[int]

    def __call__(self) -> Any:
        """Make the call, and return its result."""
        return self.operator(*self.arguments, **self.keywords)

    @property
    def tensors(self) -> list[Any]:
        """The tensors among the arguments, if the call `is_plain`."""
        return tensors_in((self.arguments, self.keywords))

    @property
    def is_plain(self) -> bool:
        """Whether all tensors can be copied as they lie in memory."""
        flat, _ = tree_flatten((self.arguments, self.keywords))
        return all(is_plain(leaf) for leaf in flat if isinstance(leaf, torch.Tensor))

    @property
    def parts(self) -> list[Part]:
        """The tensors that the call may change: all of its own, but no parameters of the model."""
        tensors = self.tensors
        return [
            Part(number, 0, span_of(tensor) * tensor.element_size())
            for number, (place, tensor) in enumerate(
                zip(first_places(tensors), tensors, strict=True)
            )
            if place == number and not self.is_parameter(tensor)
        ]

    @property
    def may_write(self) -> bool:
        """Whether the call may change a tensor that it takes, as far as its operator says."""
        schema = getattr(self.operator, "_schema", None)  # kernels have none
        return schema is None or bool(schema.is_mutable)

    def with_tensors(self, tensors: Sequence[Any]) -> LiveCall:
        """Return this call with other tensors in place of its own, in the same order."""
        following = iter(tensors)
        arguments, keywords = tree_map_only(
            torch.Tensor, lambda _: next(following), (self.arguments, self.keywords)
        )
        return LiveCall(self.operator, arguments, keywords, self.parameters)

    def is_parameter(self, tensor: Any) -> bool:
        """Return whether a tensor of this call is a parameter of the model."""
        return storage_of(tensor) in self.parameters


@contextmanager
def calls_watched(
    module: Any,
    enter: Callable[[Any, tuple[Any, ...], dict[str, Any]], None],
    leave: Callable[[Any], None],
) -> Iterator[None]:
    """Call a function before each call of a module, and another one after it.

    Args:
        module: The module, which both take.
        enter: Takes the arguments of the call by position and by name, too.
        leave: Called after the call.
    """
    if not isinstance(module, torch.nn.TransformerEncoderLayer):
        hooks = (
            module.register_forward_pre_hook(enter, with_kwargs=True),
            module.register_forward_hook(lambda module, *_: leave(module)),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        return
    # It runs other kernels if it has hooks.
    forward = module.forward

    def watched(*args: Any, **keywords: Any) -> Any:
        enter(module, args, keywords)
        returned = forward(*args, **keywords)
        leave(module)
        return returned

    module.forward = watched
    try:
        yield
    finally:
        del module.forward


class OperatorMode(TorchDispatchMode):
    """A context in which `called` makes each call of an operator.

    Annotations of PyTorch's profiler do not count as calls. Of an operator that takes a tensor made
    of others, as quantized weights of torchao are, the calls with those others count. An operator
    that takes functions, as ``flex_attention`` does, is one call.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let ``torch.compile`` compile as it does without this mode, so that its calls are seen.

        PyTorch asks; otherwise a compiled program would run uncompiled here.
        """
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """See PyTorch's documentation of ``TorchDispatchMode``."""
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # PyTorch then asks the tensor, whose calls come here
        keywords = dict(kwargs or {})
        if func.namespace == "profiler":
            return func(*args, **keywords)
        if not (torch.is_inference_mode_enabled() and _is_composite(func)):
            return self.called(func, args, keywords)
        # PyTorch excludes this key from here on. Without it, no view of a weight requires a
        # gradient, and ``linear`` then multiplies what is not contiguous by another kernel.
        key = torch._C.DispatchKey.ADInplaceOrView
        with torch._C._SetExcludeDispatchKeyGuard(key, False):
            return self.called(func, args, keywords)

    def called(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Make a call, and return its result."""
        return func(*args, **keywords)


@lru_cache
def _is_composite(operator: Any) -> bool:
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return bool(operator.has_kernel_for_dispatch_key(key))


class CallRecorder(OperatorMode):
    """Numbers the calls of operators that a model makes while this context is entered.

    The launch of a Triton kernel outside of any operator counts as a call, too. In a trace of
    PyTorch's profiler, an annotation such as ``call 12`` surrounds each call.

    Args:
        modules: By name, the modules whose parameters are recognized.
        keep: The numbers of the calls that are kept.
        memory: Follows the use of memory; without it, ``reuse`` stays empty.
        annotates: Whether calls are annotated, which only a profiler needs.

    Attributes:
        names: By the address of their storage, the names of the model's parameters and buffers.
        forms: The form of each call so far, by number.
        kept: The kept calls, by number.
        reuse: By number, the reuse of the tensors among a call's arguments, and then of the tensors
            that it returned in memory of their own.
        is_inside: Whether a recorded call is being made, in which other calls do not count.
    """

    def __init__(
        self,
        modules: Mapping[str, Any],
        keep: Sequence[int] = (),
        memory: ReuseStack | None = None,
        *,
        annotates: bool = True,
    ) -> None:
        super().__init__()
        self.names = {
            storage_of(part): ".".join(filter(None, (prefix, name, *path)))
            for prefix, module in modules.items()
            for named in (module.named_parameters(), module.named_buffers())
            for name, tensor in named
            for path, part in _plain_parts(tensor)
            if storage_of(part)
        }
        self._keep = frozenset(keep)
        self._memory = memory
        self._annotates = annotates
        self.is_inside = False
        self._triton = ExitStack()
        self.forms: list[CallForm] = []
        self.kept: dict[int, LiveCall] = {}
        self.reuse: list[tuple[Reuse, ...]] = []

    def __enter__(self) -> CallRecorder:
        self._triton.enter_context(_triton_launches(self._see_launch))
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._triton.close()

    def called(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return self.see(str(func), func, args, keywords)

    def _see_launch(
        self, function: Any, launch: Any, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        if keywords.get("warmup"):  # nothing is launched
            return launch(*args, **keywords)
        return self.see(f"triton.{function.__name__}", launch, args, keywords)

    def see(self, name: str, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Make a call, number it, and record its form; see `CallForm` for the name."""
        if self.is_inside:  # an operator that the recorded call itself calls
            return func(*args, **keywords)
        number = len(self.forms)
        self.is_inside = True  # copies made here, and launches within the call, do not count
        try:
            self.forms.append(self._form(name, args, keywords))
            if number in self._keep:
                self.kept[number] = self._live(func, args, keywords)
            with record_function(f"call {number}") if self._annotates else nullcontext():
                returned = func(*args, **keywords)
        finally:
            self.is_inside = False
        if self._memory is not None:
            self.reuse.append(_used(self._memory, (args, keywords), returned))
        return returned

    def _form(self, name: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> CallForm:
        leaves = _tensors((*args, *keywords.values()))
        names = [
            self.names[storage] for storage in map(storage_of, leaves) if storage in self.names
        ]
        arguments = [describe(argument) for argument in args]
        if keywords:
            arguments.append({name: describe(argument) for name, argument in keywords.items()})
        return CallForm(name, arguments, tuple(names))

    def _live(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> LiveCall:
        copies: dict[int, Any] = {}

        def own(tensor: Any) -> Any:
            if storage_of(tensor) in self.names:
                return tensor
            if id(tensor) not in copies:  # an operator may ask whether two of its tensors are one
                copied = copied_tensor(tensor) if is_plain(tensor) else tensor.clone()
                copies[id(tensor)] = copied
            return copies[id(tensor)]

        arguments, own_keywords = tree_map_only(torch.Tensor, own, (args, keywords))
        return LiveCall(func, arguments, own_keywords, frozenset(self.names))


def _plain_parts(tensor: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the tensors that a tensor is made of, with the names of attributes that lead there."""
    if not is_traceable_wrapper_subclass(tensor):
        yield (), tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        for path, part in _plain_parts(getattr(tensor, name)):
            yield (name, *path), part


@contextmanager
def _triton_launches(see: Callable[[Any, Any, Any, Any], Any]) -> Iterator[None]:
    """Route each launch of a Triton kernel through ``see``.

    Its arguments are the kernel, the function that launches it, and that function's arguments.
    What ``torch.compile`` has generated is launched by PyTorch's own class, on a stream that is
    among its arguments; ``see`` gets a function that launches on the current stream.
    """
    with ExitStack() as stack:
        if (jit := sys.modules.get(TRITON_MODULES[0])) is not None:
            plain = jit.JITFunction.run

            def run(function: Any, *args: Any, **keywords: Any) -> Any:
                return see(function, partial(plain, function), args, keywords)

            stack.callback(setattr, jit.JITFunction, "run", plain)
            jit.JITFunction.run = run
        compiled = sys.modules.get(TRITON_MODULES[1])
        if compiled is not None:
            plain_compiled = compiled.CachingAutotuner.run

            def run_compiled(kernel: Any, *args: Any, **keywords: Any) -> Any:
                del keywords["stream"]

                def launch(*args: Any, **keywords: Any) -> Any:
                    current = torch.cuda.current_stream().cuda_stream
                    return plain_compiled(kernel, *args, stream=current, **keywords)

                return see(kernel.fn, launch, args, keywords)

            stack.callback(setattr, compiled.CachingAutotuner, "run", plain_compiled)
            compiled.CachingAutotuner.run = run_compiled
        yield


def describe(value: Any) -> Any:
    """Return an argument in a form that JSON can hold, see `CallForm`."""
    if isinstance(value, torch.Tensor) and not is_plain(value):
        parts = value.unbind() if value.is_nested else [value]
        return {
            "layout": "nested" if value.is_nested else str(value.layout).removeprefix("torch."),
            "sizes": [list(part.shape) for part in parts],
            "dtype": str(value.dtype).removeprefix("torch."),
            "device": value.device.type,
        }
    if isinstance(value, torch.Tensor):
        address = value.data_ptr()  # kernels depend on its alignment
        alignment = min(16, address & -address or 16)
        return _tensor_form(value.shape, value.dtype, value.stride(), alignment, value.device.type)
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    text = str(value)
    return type(value).__name__ if " at 0x" in text else text


@lru_cache(maxsize=1 << 16)
def _tensor_form(
    shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...], alignment: int, device: str
) -> dict[str, Any]:
    """Return the form of a tensor, the same object for equal ones: a model makes calls again."""
    return {
        "shape": list(shape),
        "dtype": str(dtype).removeprefix("torch."),
        "strides": list(strides),
        "alignment": alignment,
        "device": device,
    }


def copied_tensor(tensor: Any) -> Any:
    """Return a copy with the same strides and alignment, even if elements share memory.

    It requires a gradient, and is known to autograd, if the tensor does and is: `aten.matmul` takes
    another way with such weights.
    """
    if tensor.requires_grad:
        with torch.inference_mode(tensor.is_inference()):
            return copied_tensor(tensor.detach()).detach().requires_grad_()
    if tensor.numel() == 0:
        return tensor.clone()
    span = span_of(tensor)
    lead = tensor.storage_offset() % LARGEST_ALIGNMENT
    room = torch.empty(lead + span, dtype=tensor.dtype, device=tensor.device)
    room[lead:].copy_(tensor.as_strided((span,), (1,)))
    return room.as_strided(tensor.shape, tensor.stride(), lead)


def bytes_of(tensor: Any) -> Any:
    """Return the bytes from the first to the last element in memory, which the tensor shares."""
    return tensor.as_strided((span_of(tensor),), (1,)).view(torch.uint8)


def is_plain(tensor: Any) -> bool:
    """Return whether strides give the place of each element, unlike in sparse or nested tensors."""
    return tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_quantized)


def storage_of(tensor: Any) -> int:
    """Return the address of a tensor's storage; 0 if it has none."""
    if not is_plain(tensor):
        return 0
    address: int = tensor.untyped_storage().data_ptr()
    return address


def tensors_in(tree: Any) -> list[Any]:
    """Return the tensors in nested tuples, lists and dictionaries, see `LiveCall.is_plain`."""
    return [tensor for tensor in _tensors((tree,)) if is_plain(tensor)]


def first_places(tensors: Sequence[Any]) -> list[int]:
    """Return for each tensor where it stands first among them, if a call takes one twice."""
    places: dict[int, int] = {}
    return [places.setdefault(id(tensor), number) for number, tensor in enumerate(tensors)]


def _tensors(values: Sequence[Any]) -> list[Any]:
    """Return the tensors in values and what they contain, in the order of PyTorch's pytrees.

    PyTorch's own function takes longer than most operators.
    """
    found: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) in (tuple, list):
            found += _tensors(value)
        elif value is not None and type(value) not in _SCALARS:
            flat, _ = tree_flatten(value)
            found += [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
    return found


def _used(memory: ReuseStack, arguments: Any, returned: Any) -> tuple[Reuse, ...]:
    read = tensors_in(arguments)
    read_storages = {storage_of(tensor) for tensor in read}
    tensors = read + [
        tensor for tensor in tensors_in(returned) if storage_of(tensor) not in read_storages
    ]
    spans = [
        ReuseSpan(tensor.data_ptr(), span_of(tensor) * tensor.element_size()) for tensor in tensors
    ]
    found = [
        Reuse(
            min(span.size_bytes, tensor.numel() * tensor.element_size()),
            memory.distance_bytes(span),
        )
        for tensor, span in zip(tensors, spans, strict=True)
    ]
    for span in spans:
        memory.use(span)
    return tuple(found)


def span_of(tensor: Any) -> int:
    """Return the number of elements from the first to the last in memory."""
    if tensor.numel() == 0:
        return 0
    extents = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum(int(size - 1) * int(stride) for size, stride in extents)
