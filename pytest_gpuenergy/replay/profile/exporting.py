"""Exports a model's steps to a file by `torch.export`, to be run without the model's code.

Imports PyTorch: import this module only where it is needed.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.fx import Node
from torch.nn import Module, ModuleList, Parameter
from torch.utils._pytree import tree_leaves

from pytest_gpuenergy.replay.extract.calls import CallForm
from pytest_gpuenergy.replay.profile.capture import CallRecorder
from pytest_gpuenergy.replay.profile.exported import (
    CALL,
    CONSTANTS,
    DECODE,
    PREFILL,
    PROGRAMS,
    RECORD,
    WEIGHTS,
    Export,
    exported_program,
    quiet,
    short_reason,
)
from pytest_gpuenergy.replay.profile.language_models import LanguageModel
from pytest_gpuenergy.replay.profile.programs import (
    ExportRecord,
    FunctionProgram,
    Prompt,
    TorchProgram,
    appendable,
)
from pytest_gpuenergy.replay.profile_folder import ProfileRecord
from pytest_gpuenergy.support import InputError, encode, write_target, written_atomically


@dataclass(frozen=True)
class CacheForm:
    """The form of a cache of keys and values, which converts it to a list of tensors and back.

    Attributes:
        example: A cache of this form.
        places: The places of its tensors: the number of a layer, and the name of an attribute.
    """

    example: Any
    places: Sequence[tuple[int, str]]

    @classmethod
    def of(cls, example: Any) -> CacheForm:
        """Return the form of a cache that a model has returned."""
        if not hasattr(example, "layers"):
            raise InputError("its cache of keys and values has no layers")
        places = [
            (number, name)
            for number, layer in enumerate(example.layers)
            for name, value in vars(layer).items()
            if isinstance(value, torch.Tensor)
        ]
        return cls(example, places)

    def tensors(self, cache: Any) -> list[Any]:
        """Return the tensors of a cache of this form, in the order of the places."""
        return [getattr(cache.layers[number], name) for number, name in self.places]

    def holding(self, tensors: Sequence[Any]) -> Any:
        """Return a cache of this form that holds these tensors."""
        cache = appendable(self.example)
        for (number, name), tensor in zip(self.places, tensors, strict=True):
            setattr(cache.layers[number], name, tensor)
        return cache

    def growing(self, later: CacheForm) -> list[dict[int, Any]]:
        """Return each tensor's dimensions that differ in a later step, marked as dynamic."""
        if self.places != later.places or self._others() != later._others():
            raise InputError("its cache of keys and values changes in more than its tensors")
        pairs = zip(self.tensors(self.example), later.tensors(later.example), strict=True)
        return [
            {
                number: Dim.DYNAMIC
                for number, (before, after) in enumerate(
                    zip(tensor.shape, other.shape, strict=True)
                )
                if before != after
            }
            for tensor, other in pairs
        ]

    def _others(self) -> list[dict[str, Any]]:
        """Return what each layer holds beside tensors."""
        return [
            {
                name: value
                for name, value in vars(layer).items()
                if not isinstance(value, torch.Tensor)
            }
            for layer in self.example.layers
        ]


@dataclass(frozen=True)
class ExportCheck:
    """An exported file, compared with the program.

    Attributes:
        file: The absolute path of the file.
        calls: The number of calls of operators that the exported steps make.
        same_calls: The number of these calls that the program makes in the same place.
    """

    file: str
    calls: int
    same_calls: int


def export_program(
    program: TorchProgram,
    profile: ProfileRecord,
    forms: Sequence[CallForm],
    device: str,
    path: Path,
) -> ExportCheck:
    """Export a program that was profiled, and run the result once to compare its calls."""
    prompt = profile.prompt
    try:
        with torch.no_grad(), quiet():
            steps = _steps(program, prompt, device)
        export = _export(program, profile, steps, device)
        again = exported_program(export, program.name, device)
        with torch.inference_mode():
            inputs = again.inputs(prompt, device)
            recorder = CallRecorder(again.modules)
            with recorder:
                again.run(inputs, max(1, prompt.new_tokens))
    except Exception as error:  # a model may raise anything
        raise InputError(
            f"{program.name} was profiled, but PyTorch cannot export it ({short_reason(error)}): "
            "replay it with its own code."
        ) from None
    _write(export, path)
    same = sum(
        (own.operator, own.arguments) == (form.operator, form.arguments)
        for own, form in zip(recorder.forms, forms, strict=False)
    )
    return ExportCheck(str(path.absolute()), len(recorder.forms), same)


class _Root(Module):
    """A module that contains the modules of the exported program."""

    def __init__(self, program: TorchProgram) -> None:
        super().__init__()
        self.parts = ModuleList(program.modules.values())


class _Call(_Root):
    """Calls a function, and returns only the tensors among its results."""

    def __init__(self, program: FunctionProgram) -> None:
        super().__init__(program)
        self._function = program.function

    def forward(self) -> list[Any]:
        return [leaf for leaf in tree_leaves(self._function()) if isinstance(leaf, torch.Tensor)]


class _Step(_Root):
    """The prefill or a decode step, with a cache that is a list of tensors."""

    def __init__(self, model: LanguageModel, cache: CacheForm) -> None:
        super().__init__(model)
        self._model = model
        self._cache = cache

    def forward(self, tokens: Any, *tensors: Any) -> tuple[Any, ...]:
        past = self._cache.holding(tensors) if tensors else None
        with _choosing_as_in_a_run():
            past, latest = self._model.ask(tokens, past)
        return (latest, *self._cache.tensors(past))


@contextmanager
def _choosing_as_in_a_run() -> Iterator[None]:
    """Let a model choose the implementation of its attention as if it were not being exported.

    During an export, a model of transformers adds a mask, which serves prompts of any length. Here
    the length is fixed, and the attention must launch what it launches in the model. Some releases
    of transformers ask PyTorch whether it exports, others, such as 5.17, whether it compiles.
    """
    names = ("is_exporting", "is_compiling")
    plain = [getattr(torch.compiler, name) for name in names]
    try:
        for name in names:
            setattr(torch.compiler, name, lambda: False)
        yield
    finally:
        for name, function in zip(names, plain, strict=True):
            setattr(torch.compiler, name, function)


def _steps(program: TorchProgram, prompt: Prompt, device: str) -> dict[str, tuple[Module, Any]]:
    """Return, by name, each step as a module, and as exported."""
    if isinstance(program, FunctionProgram):
        call = _Call(program)
        return {CALL: (call, torch.export.export(call, (), strict=False))}
    if not isinstance(program, LanguageModel):
        raise InputError("it is an exported file already")
    tokens = program.inputs(prompt, device)
    past, latest = program.ask(tokens, None)
    first = CacheForm.of(past)
    prefill = _Step(program, first)
    steps = {PREFILL: (prefill, torch.export.export(prefill, (tokens,), strict=False))}
    if prompt.new_tokens > 1:
        later = CacheForm.of(program.ask(latest, appendable(past))[0])
        decode = _Step(program, later)
        tensors = later.tensors(later.example)
        open_sizes = (None, tuple(first.growing(later)))
        exported = torch.export.export(
            decode, (latest, *tensors), dynamic_shapes=open_sizes, strict=False
        )
        steps[DECODE] = (decode, exported)
    return steps


def _export(
    program: TorchProgram,
    profile: ProfileRecord,
    steps: Mapping[str, tuple[Module, ExportedProgram]],
    device: str,
) -> Export:
    layers: tuple[str, ...] = ()
    contents: dict[str, bytes] = {}
    weights: dict[str, Any] = {}
    constants: dict[str, dict[str, Any]] = {}
    for name, (root, exported) in steps.items():
        paths = {module: path for path, module in root.named_modules()}
        layers = tuple(paths[layer] for layer in program.layers)
        own, constants[name] = _without_tensors(exported)
        weights |= own
        exported.example_inputs = None
        for node in exported.graph.nodes:
            node.meta.pop("stack_trace", None)  # paths of this machine
            if node.target == torch.ops.aten.lift_fresh_copy.default and not _is_changed(node):
                node.target = torch.ops.aten.lift_fresh.default  # what the model calls
        file = io.BytesIO()
        torch.export.save(exported, file)
        contents[name] = file.getvalue()
    record = ExportRecord(
        model=program.name,
        weights=program.weights,
        attention=program.attention,
        dtype=program.dtype,
        vocabulary=program.vocabulary if isinstance(program, LanguageModel) else 0,
        prompt_tokens=profile.prompt_tokens,
        new_tokens=profile.new_tokens,
        batch=profile.batch,
        seed=profile.seed,
        device=device,
        layers=layers,
        torch=profile.torch,
        transformers=profile.transformers,
    )
    return Export(record, contents, weights, constants)


def _is_changed(node: Node) -> bool:
    """Return whether a call may change the elements of the result of ``node``, or return it."""
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        if user.target == torch.ops.aten.detach_.default:  # changes no element
            if _is_changed(user):
                return True
        elif schema is None or schema.is_mutable:
            return True
    return False


def _without_tensors(program: ExportedProgram) -> tuple[dict[str, Any], dict[str, Any]]:
    """Move the tensors out of a program, and leave empty ones in their place.

    Returns:
        By name, the parameters and buffers, and the other tensors.
    """
    weights: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for spec in program.graph_signature.input_specs:
        held = program.state_dict if spec.target in program.state_dict else program.constants
        tensor = held.get(spec.target)
        if isinstance(tensor, torch.Tensor):
            empty = torch.empty(0, dtype=tensor.dtype)
            kept = isinstance(tensor, Parameter)
            held[spec.target] = Parameter(empty, requires_grad=False) if kept else empty
            found = constants if spec.kind.name == "CONSTANT_TENSOR" else weights
            found[spec.target] = tensor
    return weights, constants


def _write(export: Export, path: Path) -> None:
    programs = {
        name: torch.frombuffer(bytearray(content), dtype=torch.uint8)
        for name, content in export.programs.items()
    }
    content = {
        RECORD: encode(export.record).decode(),
        PROGRAMS: programs,
        WEIGHTS: dict(export.weights),
        CONSTANTS: {name: dict(found) for name, found in export.constants.items()},
    }
    try:
        with written_atomically(write_target(path)) as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:
        # PyTorch closes its archive after an OSError, and then raises that it is not complete.
        first = error if isinstance(error, OSError) else error.__context__
        reason = getattr(first, "strerror", None) or short_reason(error)
        raise InputError(
            f"The export {path} cannot be written ({reason}): choose another path, or make room."
        ) from None
