"""Defines what can be profiled: a program that PyTorch runs in one or more steps."""

from __future__ import annotations

import copy
import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import getclosurevars
from pathlib import Path
from typing import Any

from msgspec import Struct

from pytest_gpuenergy.support import (
    FormError,
    InputError,
    UnavailableError,
    decode,
    is_file,
    needs,
    schema_version,
    shown,
)

OWN = "own"
"""The weights, attention and type of a function, which has its own."""


@dataclass(frozen=True)
class Prompt:
    """The input of a language model, and how much it generates.

    Attributes:
        tokens: The length of the prompt, which consists of random tokens.
        new_tokens: The number of tokens to generate. The prefill generates the first, and a decode
            step each of the others.
        batch: The number of prompts at once.
        seed: The seed of the tokens.
    """

    tokens: int = 1024
    new_tokens: int = 32
    batch: int = 1
    seed: int = 0


NO_PROMPT = Prompt(0, 0, 0)
"""The prompt of a function, which has none."""


@dataclass(frozen=True, kw_only=True)
class TorchProgram(ABC):
    """A program to profile.

    Attributes:
        name: The name that the user gave.
        weights: ``checkpoint``, ``random`` or `OWN`.
        attention: The implementation of the attention, or `OWN`.
        dtype: The type of the weights, or `OWN`.
        prompt: The default prompt; `NO_PROMPT` for a function.
    """

    name: str
    weights: str = OWN
    attention: str = OWN
    dtype: str = OWN
    prompt: Prompt = NO_PROMPT

    @property
    @abstractmethod
    def modules(self) -> Mapping[str, Any]:
        """The modules whose parameters the program uses, by name."""

    @property
    def layers(self) -> list[Any]:
        """The blocks of the program, in order: its lists of modules, as of encoder and decoder.

        A list inside a block does not count, such as the experts of a layer, nor does one with less
        than half of the parameters of the largest list.
        """
        from torch.nn import ModuleList

        found: dict[int, Any] = {}

        def collect(module: Any) -> None:
            for child in module.children():
                if isinstance(child, ModuleList) and len(child) > 1:
                    found[id(child)] = child
                else:
                    collect(child)

        for module in self.modules.values():
            collect(ModuleList([module]))
        sizes = [sum(one.numel() for one in blocks.parameters()) for blocks in found.values()]
        large = [
            blocks
            for blocks, size in zip(found.values(), sizes, strict=True)
            if 2 * size >= max(sizes)
        ]
        return [block for blocks in large for block in blocks]

    @property
    def outer_modules(self) -> dict[str, Any]:
        """The largest modules without a layer inside, by name; none if there are no layers.

        Of a language model these are its embedding, its head, the norm before that, and the like.
        """
        from torch.nn import Module

        layers = {id(layer) for layer in self.layers}
        found: dict[str, Any] = {}

        def collect(name: str, module: Any) -> None:
            if id(module) in layers:
                return
            is_list = type(module).forward is Module.forward  # it cannot be called
            if is_list or any(id(inside) in layers for inside in module.modules()):
                for child, inside in module.named_children():
                    collect(f"{name}.{child}" if name else child, inside)
            else:
                found[name] = module

        for name, module in self.modules.items() if layers else ():
            collect(name, module)
        return found

    @abstractmethod
    def inputs(self, prompt: Prompt, device: str) -> Any:
        """Return the input of the first step, on ``device``."""

    @abstractmethod
    def run(self, inputs: Any, steps: int) -> None:
        """Run the first ``steps`` steps, each within an annotation for the profiler."""

    @abstractmethod
    def step(self, inputs: Any, number: int) -> Callable[[], object]:
        """Run the steps before ``number``, and return a function that repeats this step."""


@dataclass(frozen=True, kw_only=True)
class FunctionProgram(TorchProgram):
    """A function without arguments, named ``module:function``, whose one step is a call of it."""

    function: Callable[[], object]

    @property
    def modules(self) -> Mapping[str, Any]:
        """The modules that the function refers to, and the object that it is a method of."""
        from torch.nn import Module

        found: dict[str, Any] = {"self": getattr(self.function, "__self__", self.function)}
        function = getattr(self.function, "__func__", self.function)
        if hasattr(function, "__code__"):
            named = getclosurevars(function)
            found |= {**named.globals, **named.nonlocals}
        return {name: value for name, value in found.items() if isinstance(value, Module)}

    def inputs(self, prompt: Prompt, device: str) -> Any:  # noqa: ARG002 -- it has no prompt
        """Make ``device`` the current one; return the function, with its state kept."""
        import torch

        from pytest_gpuenergy.replay.profile.kept_state import with_state_kept  # imports PyTorch

        if device.startswith("cuda"):
            torch.cuda.set_device(device)

        def function() -> object:
            try:
                return self.function()
            except SystemExit as stop:
                raise RuntimeError(f"it ends the process with {stop.code!r}") from None

        return with_state_kept(function, self.modules)

    def run(self, inputs: Any, steps: int) -> None:  # noqa: ARG002 -- it has one step
        """Call the function."""
        from torch.profiler import record_function

        with record_function("step 0"):
            inputs()

    def step(self, inputs: Any, number: int) -> Callable[[], object]:  # noqa: ARG002
        """Return the function."""
        function: Callable[[], object] = inputs
        return function


@dataclass(frozen=True, kw_only=True)
class GeneratingProgram(TorchProgram):
    """A language model that generates greedily, with a cache of keys and values.

    Attributes:
        vocabulary: The number of different tokens.
    """

    vocabulary: int

    @abstractmethod
    def ask(self, tokens: Any, past: Any) -> tuple[Any, Any]:
        """Return the cache after the tokens, and the likeliest next token.

        Args:
            tokens: The prompts, or the last token that was generated.
            past: The cache so far, which may be appended to; None for the prompts.
        """

    def inputs(self, prompt: Prompt, device: str) -> Any:
        """Return prompts of random tokens."""
        import torch

        generator = torch.Generator().manual_seed(prompt.seed)
        shape = (prompt.batch, prompt.tokens)
        return torch.randint(self.vocabulary, shape, generator=generator).to(device)

    def run(self, inputs: Any, steps: int) -> None:
        """Generate ``steps`` tokens."""
        from torch.profiler import record_function

        with record_function("prefill"):
            past, latest = self.ask(inputs, None)
        for step in range(1, steps):
            with record_function(f"decode {step}"):
                past, latest = self._ask_next(latest, past)

    def step(self, inputs: Any, number: int) -> Callable[[], object]:
        """Return a function that repeats the prefill, 0, or a decode step on the same cache."""
        if number == 0:
            return lambda: self.ask(inputs, None)[1]
        past, latest = self.ask(inputs, None)
        for _ in range(number - 1):
            past, latest = self._ask_next(latest, past)
        return lambda: self.ask(latest, appendable(past))[1]

    def _ask_next(self, latest: Any, past: Any) -> tuple[Any, Any]:
        """Return the cache after the last token that was generated, and the next one.

        Raises:
            InputError: The model has no cache, without which this would be another prompt.
        """
        if past is None:
            raise InputError(
                f"{self.name} returns no cache, which its decode steps need: give --new-tokens 1 "
                "for its prefill alone."
            )
        return self.ask(latest, past)


@contextmanager
def told_of_capture(is_capturing: bool) -> Iterator[None]:
    """Let programs make the calls that they make while a CUDA graph is captured, or those of a run.

    PyTorch tells them that a graph is captured, whether or not there is one: transformers, for
    example, then makes masks that it leaves out otherwise, since it must not look at values.
    """
    import torch

    def told() -> bool:
        return is_capturing

    places = (torch.cuda, torch.cuda.graphs)
    plain = [place.is_current_stream_capturing for place in places]
    try:
        for place in places:
            place.is_current_stream_capturing = told
        yield
    finally:
        for place, function in zip(places, plain, strict=True):
            place.is_current_stream_capturing = function


def appendable(value: Any) -> Any:
    """Return a copy of a cache of keys and values that can be appended to.

    The copy shares its tensors. A cache may hold one for each kind of attention, as those of models
    that can be decoders do. Any other value is returned as it is.
    """
    import torch

    if isinstance(value, torch.Tensor | torch.nn.Module):
        return value
    if hasattr(value, "self_attention_cache"):
        pair = copy.copy(value)
        pair.self_attention_cache = appendable(value.self_attention_cache)
        pair.cross_attention_cache = appendable(value.cross_attention_cache)
        pair.is_updated = dict(value.is_updated)
        return pair
    if not hasattr(value, "layers"):
        return value
    cache = copy.copy(value)
    cache.layers = [copy.copy(layer) for layer in value.layers]
    return cache


def is_function(name: str) -> bool:
    """Return whether ``name`` has the form ``module:function``."""
    module, colon, function = name.partition(":")
    parts = [*module.split("."), *function.split(".")]
    return bool(colon) and all(part.isidentifier() for part in parts)


def is_export(name: str) -> bool:
    """Return whether ``name`` is an existing file, as that of an exported program is."""
    return not is_function(name) and is_file(Path(name))


def check_packages(name: str) -> None:
    """Check that the packages that a program needs are installed.

    Args:
        name: The name of the program. A model needs transformers; a function or an exported
            program needs PyTorch alone.

    Raises:
        UnavailableError: A package is missing.
    """
    alone = is_function(name) or is_export(name)
    needed = ("torch",) if alone else ("torch", "transformers")
    for package in needed:
        try:
            importlib.import_module(package)
        except ImportError as error:
            advice = "pip install 'pytest-gpuenergy[replay]'"
            raise UnavailableError(needs(name, package, advice, error)) from None


def load_function(name: str) -> FunctionProgram:
    """Import a function; modules in the working directory are found first.

    Args:
        name: ``module:function``.
    """
    check_packages(name)
    module_name, _, path = name.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a module may raise anything
        raise InputError(
            f"The module {module_name} cannot be imported ({type(error).__name__}: {error}): mend "
            "it, or run where it can be found."
        ) from None
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise InputError(
            f"{module_name} has no function {path}: name one that can be called without arguments."
        )
    return FunctionProgram(name=name, function=found)


EXPORT_VERSION = 1
"""``schema_version`` of the exports written and read here."""


class ExportRecord(Struct, frozen=True):
    """The record of an export; see `ProfileRecord` for the other attributes.

    Attributes:
        model: The name that the user gave.
        vocabulary: The number of different tokens; 0 for a function.
        prompt_tokens: The length of each prompt; 0 for a function.
        device: PyTorch's name of the device that the steps were exported on.
        layers: The paths of the modules in `TorchProgram.layers`, in the same order.
    """

    model: str
    weights: str
    attention: str
    dtype: str
    vocabulary: int
    prompt_tokens: int
    new_tokens: int
    batch: int
    seed: int
    device: str
    layers: tuple[str, ...]
    torch: str
    transformers: str
    schema_version: int = EXPORT_VERSION

    @property
    def prompt(self) -> Prompt:
        """The prompt that the program was exported for."""
        if not self.vocabulary:
            return NO_PROMPT
        return Prompt(self.prompt_tokens, self.new_tokens, self.batch, self.seed)


def read_record(text: str, path: Path) -> ExportRecord:
    """Decode the record of the export ``path``.

    Raises:
        InputError: The record is damaged, or of another version.
    """
    try:
        version = schema_version(text)
        if version != EXPORT_VERSION:
            raise InputError(
                f"The schema_version of the export {path} is {shown(version)}, but this gpuenergy "
                f"reads {EXPORT_VERSION}: update pytest-gpuenergy, or export the model again."
            )
        return decode(text, ExportRecord, "the record")
    except FormError as error:
        raise InputError(f"{path} is damaged ({error}): export the model again.") from None
