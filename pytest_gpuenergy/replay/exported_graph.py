"""The graph of an exported program, changed so that it runs as the model does, layer by layer.

Imports PyTorch: import this module only where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.split_module import split_module

_CHECKS = ("aten._assert_tensor_metadata", "aten._assert_scalar", "aten.sym_constrain_range")
_TO_THE_END = (1 << 63) - 1


class Layer(torch.nn.Module):  # type: ignore[misc]
    """Stands for a layer, so that hooks see it; what to do in each step, it is given."""

    def forward(self, part: Callable[..., object], *args: object) -> object:
        """Do its part of a step."""
        return part(*args)


class _Part(torch.nn.Module):  # type: ignore[misc]
    """What a layer does in one of the programs."""

    def __init__(self, layer: Layer, part: GraphModule) -> None:
        super().__init__()
        self.layer = layer
        self.part = part

    def forward(self, *args: object) -> object:
        return self.layer(self.part, *args)


def in_layers(whole: GraphModule, paths: Sequence[str], layers: Sequence[Layer]) -> GraphModule:
    """The same program, in which each layer runs its part.

    Args:
        whole: the program.
        paths: of the layers' modules when they were exported.
        layers: to run the parts.
    """
    parts: dict[Node, int] = {}
    owners: list[int | None] = []
    for node, layer in _layer_numbers(whole.graph, paths):
        if not owners or layer != owners[-1]:
            owners.append(layer)
        parts[node] = len(owners) - 1
    split = split_module(whole, whole, parts.__getitem__, keep_original_order=True)
    for part, layer in enumerate(owners):
        if layer is not None:
            name = f"submod_{part}"
            setattr(split, name, _Part(layers[layer], getattr(split, name)))
    return split


def make_calls_of_a_run(graph: Graph) -> None:
    """Change what an export writes differently, so that the same calls are made as in a run."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        target = str(node.target)
        if target.startswith(_CHECKS):
            graph.erase_node(node)
        elif target == "aten.slice.Tensor" and len(node.args) < 5:
            node.args = (*node.args, _TO_THE_END)[:4]
            if node.args[2:] == (0, _TO_THE_END):
                # x[:] makes no call in a run, but does where the size of x is open.
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)
        elif target == "aten.sym_size.int":
            node.op, node.target = "call_method", "size"
        elif target == "aten.layer_norm.default":  # exported with cuDNN off
            node.args = (*node.args[:5], torch.backends.cudnn.enabled)
        elif target == "aten.lift_fresh_copy.default" and not node.meta["val"].numel():
            node.target = torch.ops.aten.lift_fresh.default


def _layer_numbers(graph: Graph, paths: Sequence[str]) -> Iterator[tuple[Node, int | None]]:
    """The nodes that compute something, each with the number of the layer that it belongs to."""
    numbers = {path: number for number, path in enumerate(paths)}
    for node in graph.nodes:
        if node.op not in ("placeholder", "get_attr", "output"):
            stack = node.meta.get("nn_module_stack", {}).values()
            # The path of a module that is called again ends in @1, and so on.
            found = [numbers.get(str(path).partition("@")[0]) for path, _ in stack]
            yield node, next((one for one in found if one is not None), None)
