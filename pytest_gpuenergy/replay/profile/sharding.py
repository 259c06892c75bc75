"""Divides a language model among GPUs: tensor parallel, as Megatron-LM does it.

On each GPU, the first of two linear layers computes a part of its outputs. The second layer takes
that part as input and computes partial sums, which the GPUs add up. Shoeybi et al.,
"Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
arXiv:1909.08053, section 3.

Imports PyTorch: import this module only where it is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from pytest_gpuenergy.replay.ranks import EXCHANGES
from pytest_gpuenergy.support import InputError

_COLUMNS, _ROWS, _GATHERED = "colwise", "rowwise", "colwise_gather_output"
_EMBEDDING = "embedding_rowwise"
_STYLES = (_COLUMNS, _ROWS, _GATHERED, _EMBEDDING)
"""The ways to divide a layer, named as in transformers."""

_BLOOM: Mapping[str, str] = {
    "transformer.word_embeddings": _EMBEDDING,
    "transformer.h.*.self_attention.query_key_value": _COLUMNS,
    "transformer.h.*.self_attention.dense": _ROWS,
    "transformer.h.*.mlp.dense_h_to_4h": _COLUMNS,
    "transformer.h.*.mlp.dense_4h_to_h": _ROWS,
    "lm_head": _GATHERED,
}
"""The plan for BLOOM, for which transformers has none: its queries, keys and values are interleaved
by head."""

_library = torch.library.Library(EXCHANGES, "DEF")
_library.define("all_reduce_(Tensor(a!) part) -> ()")
_library.define("all_gather(Tensor part, int ranks) -> Tensor")


def _all_reduce(part: Any) -> None:
    dist.all_reduce(part)


def _all_gather(part: Any, ranks: int) -> Any:
    parts = part.new_empty((ranks * part.shape[0], *part.shape[1:]))
    gather = getattr(dist, "all_gather_single", None)  # the other's name since PyTorch 2.13
    (gather or dist.all_gather_into_tensor)(parts, part)
    return parts


# Each exchange is a single operator, so that a replay makes a single call for it.
_library.impl("all_reduce_", _all_reduce, "CompositeExplicitAutograd")
_library.impl("all_gather", _all_gather, "CompositeExplicitAutograd")


def shard(model: Any, name: str, rank: int, ranks: int) -> None:
    """Reduce a model to this rank's part, and let its layers exchange what the ranks compute."""
    plan = _plan(model, name)
    config = model.config.get_text_config()
    for what in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, what, None)
        if heads is not None and heads % ranks:
            raise InputError(
                f"{name} cannot be divided among {ranks} GPUs (it has {heads} {what}): give --tp a "
                "number that divides them."
            )
    # In a plan, * stands for a number.
    found = [
        (path, module, plan.get(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path)))
        for path, module in model.named_modules()
    ]
    # All are checked before any is changed.
    for path, module, style in found:
        if style is not None:
            _check(path, module, style, name, ranks)
    for _, module, style in found:
        if style is not None:
            _divide(module, style, rank, ranks)
        if type(module).__name__ == "BloomAttention":
            _divide_heads(module, rank, ranks)


def _plan(model: Any, name: str) -> Mapping[str, str]:
    if model.config.model_type == "bloom":
        return _BLOOM
    plan: Mapping[str, str] = getattr(model, "_tp_plan", None) or {}
    foreign = sorted(set(plan.values()) - set(_STYLES))
    if _ROWS not in plan.values() or foreign:
        reason = f"its plan has the style {foreign[0]}" if foreign else "transformers has no plan"
        raise InputError(
            f"{name} cannot be divided among GPUs ({reason}): leave out --tp, or name a model such "
            "as vicuna-7b or bloom-560m."
        )
    return plan


def _check(path: str, module: Any, style: str, name: str, ranks: int) -> None:
    if not isinstance(module, torch.nn.Embedding if style == _EMBEDDING else torch.nn.Linear):
        raise InputError(
            f"{name} cannot be divided among GPUs ({path} is a {type(module).__name__}): leave out "
            "--tp."
        )
    size = module.weight.shape[1 if style == _ROWS else 0]
    if size % ranks:
        raise InputError(
            f"{name} cannot be divided among {ranks} GPUs ({path} has {size} features): give "
            "--tp a number that divides them."
        )


def _divide(module: Any, style: str, rank: int, ranks: int) -> None:
    """Keep this rank's part of a layer's weights, and exchange its inputs or outputs."""
    module.weight = _part(module.weight, 1 if style == _ROWS else 0, rank, ranks)
    if style == _EMBEDDING:
        _divide_vocabulary(module, rank)
        return
    module.out_features, module.in_features = module.weight.shape
    if style == _ROWS:
        if module.bias is not None and rank:  # the first rank adds it
            module.bias = torch.nn.Parameter(torch.zeros_like(module.bias), requires_grad=False)
        module.register_forward_hook(lambda _module, _inputs, part: _added_up(part))
        return
    if module.bias is not None:
        module.bias = _part(module.bias, 0, rank, ranks)
    if style == _GATHERED:
        module.register_forward_hook(lambda _module, _inputs, part: _gathered(part, ranks))


def _divide_vocabulary(module: Any, rank: int) -> None:
    """Let an embedding return zeros for the tokens whose rows are on another rank."""
    size = module.weight.shape[0]
    module.num_embeddings = size
    module.padding_idx = None
    elsewhere: list[Any] = []

    def own_tokens(_module: Any, inputs: tuple[Any]) -> tuple[Any]:
        tokens = inputs[0] - rank * size
        elsewhere[:] = [(tokens < 0) | (tokens >= size)]
        return (tokens.masked_fill(elsewhere[0], 0),)

    def added_up(_module: Any, _inputs: Any, part: Any) -> Any:
        return _added_up(part.masked_fill(elsewhere.pop().unsqueeze(-1), 0))

    module.register_forward_pre_hook(own_tokens)
    module.register_forward_hook(added_up)


def _part(weight: Any, dim: int, rank: int, ranks: int) -> Any:
    # A copy, so that the whole can be freed. (A layer with tied weights keeps its own reference.)
    part = weight.detach().chunk(ranks, dim)[rank].clone()
    return torch.nn.Parameter(part, requires_grad=False)


def _added_up(part: Any) -> Any:
    torch.ops.gpuenergy.all_reduce_(part)
    return part


def _gathered(part: Any, ranks: int) -> Any:
    parts = torch.ops.gpuenergy.all_gather(part.contiguous(), ranks)
    return parts.unflatten(0, (ranks, -1)).movedim(0, -2).flatten(-2)


def _divide_heads(module: Any, rank: int, ranks: int) -> None:
    """Let BLOOM's attention compute this rank's heads."""
    heads = module.num_heads
    module.num_heads = heads // ranks

    def own_alibi(_module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        alibi = kwargs["alibi"]
        by_head = alibi.unflatten(0, (-1, heads)).chunk(ranks, 1)[rank]
        return args, {**kwargs, "alibi": by_head.flatten(0, 1)}

    module.register_forward_pre_hook(own_alibi, with_kwargs=True)
