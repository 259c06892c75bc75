"""What can be profiled: something that PyTorch runs in one or more steps."""

from __future__ import annotations

import copy
import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import getclosurevars
from pathlib import Path
from typing import Any, Protocol

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
"""Weights, attention and type of a function: it brings them along."""


@dataclass(frozen=True)
class Prompt:
    """What a model is asked for.

    Attributes:
        tokens: length of the prompt, of random tokens.
        new_tokens: that are generated; the first comes from the prefill, each other one from a
            decode step.
        batch: prompts at once.
        seed: of the tokens.
    """

    tokens: int = 1024
    new_tokens: int = 32
    batch: int = 1
    seed: int = 0


NO_PROMPT = Prompt(0, 0, 0)
"""Of a function."""


class Program(Protocol):
    """Something to profile.

    Attributes:
        name: as the user named it.
        weights: ``checkpoint``, ``random`` or `OWN`.
        attention: implementation of the attention, or `OWN`.
        dtype: of the weights, or `OWN`.
        prompt: what it is asked for unless the user says otherwise; of no tokens if it has none.
        modules: by name, the modules whose parameters it uses.
        layers: its equal blocks, in order; none if it has no list of modules.
    """

    @property
    def name(self) -> str: ...
    @property
    def weights(self) -> str: ...
    @property
    def attention(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def prompt(self) -> Prompt: ...
    @property
    def modules(self) -> Mapping[str, Any]: ...
    @property
    def layers(self) -> list[Any]: ...

    def inputs(self, prompt: Prompt, device: str) -> Any:
        """What its steps begin with, on ``device``."""

    def run(self, inputs: Any, steps: int) -> None:
        """Do the first steps, each within an annotation for the profiler."""

    def step(self, inputs: Any, number: int) -> Callable[[], object]:
        """Do the steps before ``number``, and return what does this one, again and again."""


@dataclass(frozen=True)
class FunctionProgram:
    """A function without arguments, whose one step is a call of it.

    Attributes:
        name: ``module:function``.
        function: to call.
    """

    name: str
    function: Callable[[], object]
    weights: str = OWN
    attention: str = OWN
    dtype: str = OWN
    prompt: Prompt = NO_PROMPT

    @property
    def modules(self) -> Mapping[str, Any]:
        """Those that the function names, and the object that it is a method of."""
        from torch.nn import Module

        found: dict[str, Any] = {"self": getattr(self.function, "__self__", self.function)}
        function = getattr(self.function, "__func__", self.function)
        if hasattr(function, "__code__"):
            named = getclosurevars(function)
            found |= {**named.globals, **named.nonlocals}
        return {name: one for name, one in found.items() if isinstance(one, Module)}

    @property
    def layers(self) -> list[Any]:
        """See `Program`."""
        return layers_of(self.modules)

    def inputs(self, prompt: Prompt, device: str) -> Any:  # noqa: ARG002 -- it has no prompt
        """Nothing; ``cuda`` is ``device`` for the function."""
        import torch

        if device.startswith("cuda"):
            torch.cuda.set_device(device)

    def run(self, inputs: Any, steps: int) -> None:  # noqa: ARG002 -- it has one step
        """Call it."""
        from torch.profiler import record_function

        with record_function("step 0"):
            try:
                self.function()
            except SystemExit as stop:
                raise RuntimeError(f"it ends the process with {stop.code!r}") from None

    def step(self, inputs: Any, number: int) -> Callable[[], object]:  # noqa: ARG002
        """The function."""
        return self.function


class Generating(ABC):
    """The steps of a language model, which generates greedily, with a cache of keys and values."""

    @abstractmethod
    def ask(self, tokens: Any, past: Any) -> tuple[Any, Any]:
        """The cache after the tokens, and the token that is likeliest to follow.

        Args:
            tokens: the prompts, or the token that was likeliest before.
            past: the cache so far, which may be appended to; None for the prompts.
        """

    def run(self, inputs: Any, steps: int) -> None:
        """See `Program`."""
        from torch.profiler import record_function

        with record_function("prefill"):
            past, latest = self.ask(inputs, None)
        for step in range(1, steps):
            with record_function(f"decode {step}"):
                past, latest = self.ask(latest, past)

    def step(self, inputs: Any, number: int) -> Callable[[], object]:
        """The prefill, which is 0, or a decode step, which leaves the cache as it was."""
        if number == 0:
            return lambda: self.ask(inputs, None)[1]
        past, latest = self.ask(inputs, None)
        for _ in range(number - 1):
            past, latest = self.ask(latest, past)
        return lambda: self.ask(latest, appendable(past))[1]


def appendable(value: Any) -> Any:
    """A twin of a cache of keys and values that can be appended to; anything else as it is."""
    import torch

    if not hasattr(value, "layers") or isinstance(value, torch.Tensor | torch.nn.Module):
        return value
    twin = copy.copy(value)
    twin.layers = [copy.copy(one) for one in value.layers]
    return twin


def random_tokens(vocabulary: int, prompt: Prompt, device: str) -> Any:
    """Prompts of random tokens below ``vocabulary``."""
    import torch

    generator = torch.Generator().manual_seed(prompt.seed)
    shape = (prompt.batch, prompt.tokens)
    return torch.randint(vocabulary, shape, generator=generator).to(device)


def layers_of(modules: Mapping[str, Any]) -> list[Any]:
    """The longest list of modules in any of ``modules``."""
    from torch.nn import ModuleList

    inside = [part for module in modules.values() for part in module.modules()]
    lists = [part for part in inside if isinstance(part, ModuleList)]
    return list(max(lists, key=len, default=[]))


def is_function(name: str) -> bool:
    """Whether ``name`` has the form ``module:function``."""
    module, colon, function = name.partition(":")
    parts = [*module.split("."), *function.split(".")]
    return bool(colon) and all(part.isidentifier() for part in parts)


def is_export(name: str) -> bool:
    """Whether ``name`` is that of a file, as an exported program's is; raises as `is_file`."""
    return not is_function(name) and is_file(Path(name))


def check_packages(name: str) -> None:
    """Check that what a program needs is installed.

    Args:
        name: of a model, which needs transformers, or of a function or an exported program, which
            need PyTorch alone.

    Raises:
        UnavailableError: something is missing.
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

    Raises:
        UnavailableError: PyTorch is not installed.
        InputError: there is no such function, or its module cannot be imported.
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
    return FunctionProgram(name, found)


EXPORT_VERSION = 1
"""``schema_version`` of the exports written and read here."""


class ExportRecord(Struct, frozen=True):
    """What was exported, and with what.

    Attributes:
        model: as the user named it.
        vocabulary: the number of tokens; 0 for a function, whose numbers of tokens are 0, too.
        device: PyTorch's name of the device that the steps were exported on.
        layers: paths of its modules, in the order of `Program.layers`.
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
        """What it was exported for."""
        if not self.vocabulary:
            return NO_PROMPT
        return Prompt(self.prompt_tokens, self.new_tokens, self.batch, self.seed)


def read_record(text: str, path: Path) -> ExportRecord:
    """Decode the record of the export ``path``.

    Raises:
        InputError: it has another form than ours, or that of another version.
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
