"""Loads and runs a model's steps from a file of `torch.export`, without the model's code.

Imports PyTorch: import this module only where it is needed.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.export.passes import move_to_device_pass
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.split_module import split_module

from pytest_gpuenergy.replay.profile.programs import (
    ExportRecord,
    FunctionProgram,
    GeneratingProgram,
    Prompt,
    TorchProgram,
    read_record,
)
from pytest_gpuenergy.support import DeviceError, InputError

_CHECKS = ("aten._assert_tensor_metadata", "aten._assert_scalar", "aten.sym_constrain_range")
_TO_THE_END = (1 << 63) - 1


class Layer(torch.nn.Module):
    """A module in place of a layer, so that hooks see the layer; it runs the part it is given."""

    def forward(self, part: Callable[..., object], *args: object) -> object:
        """Run the layer's part of a step."""
        return part(*args)


class _LayerPart(torch.nn.Module):
    """The part of a program that a layer runs."""

    def __init__(self, layer: Layer, part: GraphModule) -> None:
        super().__init__()
        self.layer = layer
        self.part = part

    def forward(self, *args: object) -> object:
        return self.layer(self.part, *args)


def in_layers(whole: GraphModule, paths: Sequence[str], layers: Sequence[Layer]) -> GraphModule:
    """Split a program so that each layer runs its part."""
    parts: dict[Node, int] = {}
    owners: list[int | None] = []
    numbers = {path: number for number, path in enumerate(paths)}
    for node in whole.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue  # it computes nothing
        stack = node.meta.get("nn_module_stack", {}).values()
        # The path of a module that is called again ends in @1, and so on.
        inside = [numbers.get(str(path).partition("@")[0]) for path, _ in stack]
        layer = next((number for number in inside if number is not None), None)
        if not owners or layer != owners[-1]:
            owners.append(layer)
        parts[node] = len(owners) - 1
    split = split_module(whole, whole, parts.__getitem__, keep_original_order=True)
    for part, layer in enumerate(owners):
        if layer is not None:
            name = f"submod_{part}"
            setattr(split, name, _LayerPart(layers[layer], getattr(split, name)))
    return split


def make_calls_of_a_run(graph: Graph) -> None:
    """Change an exported graph so that it makes the same calls as the model does."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        target = str(node.target)
        if target.startswith(_CHECKS):
            graph.erase_node(node)
        elif target == "aten.slice.Tensor" and len(node.args) < 5:
            node.args = (*node.args, _TO_THE_END)[:4]
            if node.args[2:] == (0, _TO_THE_END):
                # x[:] makes no call in the model, but in an export where the size of x is open.
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)
        elif target == "aten.sym_size.int":
            node.op, node.target = "call_method", "size"
        elif target == "aten.layer_norm.default":  # exported with cuDNN off
            node.args = (*node.args[:5], torch.backends.cudnn.enabled)
        elif target == "aten.lift_fresh_copy.default" and not node.meta["val"].numel():
            node.target = torch.ops.aten.lift_fresh.default


PREFILL, DECODE, CALL = "prefill", "decode", "call"
"""The names of the programs in an export; a function has ``CALL`` alone."""
RECORD, PROGRAMS, WEIGHTS, CONSTANTS = "gpuenergy_export", "programs", "weights", "constants"
"""The keys of a file."""


@dataclass(frozen=True)
class Export:
    """The content of an exported file.

    Attributes:
        record: What was exported.
        programs: By name, each program as `torch.export.save` writes it, without its tensors.
        weights: By name, the parameters and buffers, which the programs share.
        constants: By the name of a program and their own, its other tensors.
    """

    record: ExportRecord
    programs: Mapping[str, bytes]
    weights: Mapping[str, Any]
    constants: Mapping[str, Mapping[str, Any]]


class ExportedSteps(torch.nn.Module):
    """The programs of an export, with its weights.

    Attributes:
        layers: The modules in place of the model's layers; each runs its part of all steps.
        steps: The programs, by name.
    """

    def __init__(self, export: Export, device: str) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in export.record.layers)
        for name, value in export.weights.items():
            key = name.replace(".", "/")  # PyTorch forbids dots in these names
            if isinstance(value, torch.nn.Parameter):
                self.register_parameter(key, value)
            else:
                self.register_buffer(key, value)
        self.steps = {name: self._step(export, name, device) for name in export.programs}

    def call(self) -> object:
        """Call the exported function."""
        return self.steps[CALL]()

    def _step(self, export: Export, name: str, device: str) -> Callable[..., Any]:
        program = torch.export.load(io.BytesIO(export.programs[name]))
        recorded = export.record.device
        if recorded != device:
            kind = recorded.partition(":")[0]
            program = move_to_device_pass(program, {recorded: device, kind: device})
        tensors = {**program.constants, **export.constants[name], **export.weights}
        inputs = [spec.target for spec in program.graph_signature.input_specs]
        own = [tensors[target] for target in inputs if target is not None]
        make_calls_of_a_run(program.graph)
        whole = GraphModule(program.graph_module, program.graph)
        return partial(in_layers(whole, export.record.layers, self.layers), *own)


@dataclass(frozen=True, kw_only=True)
class ExportedModel(GeneratingProgram):
    """The exported steps of a language model, ready to run; named after the file."""

    module: ExportedSteps

    @property
    def modules(self) -> dict[str, Any]:
        """All steps as a single module."""
        return {"": self.module}

    @property
    def layers(self) -> list[Any]:
        """The modules in place of the model's layers."""
        return list(self.module.layers)

    def inputs(self, prompt: Prompt, device: str) -> Any:
        """Return random tokens of the model's vocabulary.

        Raises:
            InputError: The steps are for prompts of another size, or there are no decode steps.
        """
        own = self.prompt
        if (prompt.tokens, prompt.batch) != (own.tokens, own.batch):
            raise InputError(
                f"{self.name} was exported for a batch of {own.batch} and {own.tokens} tokens, not "
                f"for {prompt.batch} and {prompt.tokens}: export the model with that size."
            )
        if prompt.new_tokens > 1 and DECODE not in self.module.steps:
            raise InputError(
                f"{self.name} was exported without decode steps: export the model with "
                f"--new-tokens {prompt.new_tokens}."
            )
        return super().inputs(prompt, device)

    def ask(self, tokens: Any, past: Any) -> tuple[Any, Any]:
        """See `GeneratingProgram`; the cache is a list of tensors."""
        step = self.module.steps[PREFILL if past is None else DECODE]
        latest, *cache = step(tokens, *(past or ()))
        return cache, latest


def load_exported(name: str, device: str) -> TorchProgram:
    """Load an exported file. Load only files that you trust: they can run code."""
    path = Path(name)
    try:
        content = torch.load(path, map_location=device, weights_only=True)
        record = read_record(content[RECORD], path)
        programs = {key: bytes(tensor.cpu().numpy()) for key, tensor in content[PROGRAMS].items()}
        export = Export(record, programs, content[WEIGHTS], content[CONSTANTS])
        return exported_program(export, name, device)
    except InputError:
        raise
    except torch.OutOfMemoryError:
        raise DeviceError(
            f"The weights in {name} do not fit into the memory of {device}: export a smaller model."
        ) from None
    except OSError as error:
        raise InputError(f"The export {name} cannot be read: {error.strerror}.") from None
    except Exception as error:  # a damaged file may raise anything
        raise InputError(
            f"{name} is damaged, or gpuenergy profile --export has not written it "
            f"({short_reason(error)}): export the model again."
        ) from None


def exported_program(export: Export, name: str, device: str) -> TorchProgram:
    """Return an exported program, ready to run on ``device``, where its weights are.

    Raises:
        InputError: This version of PyTorch cannot load it.
    """
    try:
        with quiet():
            module = ExportedSteps(export, device)
    except Exception as error:  # a version of PyTorch may raise anything
        raise InputError(
            f"{name} was exported with PyTorch {export.record.torch}, and PyTorch "
            f"{torch.__version__} cannot load it ({short_reason(error)}): export the model again."
        ) from None
    if CALL in module.steps:
        return FunctionProgram(name=name, function=module.call)
    record = export.record
    return ExportedModel(
        name=name,
        weights=record.weights,
        attention=record.attention,
        dtype=record.dtype,
        prompt=record.prompt,
        vocabulary=record.vocabulary,
        module=module,
    )


def short_reason(error: Exception) -> str:
    """Return the message of an error of PyTorch's in a few words."""
    first = str(error).strip().partition("\n")[0]
    return first.partition(". ")[0].rstrip(".") or type(error).__name__


@contextmanager
def quiet() -> Iterator[None]:
    """Keep PyTorch from printing the errors that it also raises, with tracebacks and graphs."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
