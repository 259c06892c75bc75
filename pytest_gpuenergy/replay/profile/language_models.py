"""Loads language models, with published weights or, where there are none, with random ones."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_gpuenergy.replay.profile.programs import (
    GeneratingProgram,
    Prompt,
    TorchProgram,
    check_packages,
    is_export,
    is_function,
    load_function,
)
from pytest_gpuenergy.replay.ranks import ALONE, Ranks
from pytest_gpuenergy.support import DeviceError, GpuEnergyError, InputError, is_file, is_folder

_BLOOM_560M = {
    "model_type": "bloom",
    "vocab_size": 250880,
    "hidden_size": 1024,
    "n_layer": 24,
    "n_head": 16,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
}
_VICUNA_7B = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.02,
}
BUILT_IN: dict[str, tuple[str, dict[str, Any]]] = {
    "bloom-560m": ("bigscience/bloom-560m", _BLOOM_560M),
    "vicuna-7b": ("lmsys/vicuna-7b-v1.5", _VICUNA_7B),
}
"""The name on the hub and the published configuration of each model that needs no file."""

_CACHES = ("cache", "cache_params", "past_key_values", "state", "mems", "past_buckets_states")
"""The names of the cache: for most models since transformers 5.24, for state-space models and for
others before, and for RWKV, XLNet and Reformer."""
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


@dataclass(frozen=True, kw_only=True)
class LanguageModel(GeneratingProgram):
    """A causal language model of ``transformers``, in evaluation mode."""

    model: Any

    @property
    def modules(self) -> dict[str, Any]:
        """The model as the only module."""
        return {"": self.model}

    def ask(self, tokens: Any, past: Any) -> tuple[Any, Any]:
        """See `GeneratingProgram`."""
        name = self._cache_name
        kept = {name: past, "use_cache": True} if name else {}
        out = self.model(input_ids=tokens, **kept)
        past = getattr(out, name, None) if name else None
        return past, out.logits[:, -1:].argmax(dim=-1)

    @cached_property
    def _cache_name(self) -> str | None:
        """The argument for the cache, see `_CACHES`; None if the model has none."""
        named = inspect.signature(self.model.forward).parameters
        return next((name for name in _CACHES if name in named), None)


def load_program(
    name: str, *, dtype: str, attention: str, seed: int, device: str, ranks: Ranks = ALONE
) -> TorchProgram:
    """Load a model, a function, or an exported program, see `load_model` and `load_function`.

    An exported program has its own weights, type and attention.

    Raises:
        InputError: Several ranks cannot share the program, or it cannot be loaded.
    """
    if ranks.count > 1 and (is_function(name) or is_export(name)):
        raise InputError(f"{name} is no language model that GPUs can share: leave out --tp.")
    if is_function(name):
        return load_function(name)
    if is_export(name):
        check_packages(name)
        from pytest_gpuenergy.replay.profile.exported import load_exported

        return load_exported(name, device)
    return load_model(name, dtype=dtype, attention=attention, seed=seed, device=device, ranks=ranks)


def load_model(
    name: str,
    *,
    dtype: str = "float16",
    attention: str = "auto",
    seed: int = 0,
    device: str = "cpu",
    ranks: Ranks = ALONE,
) -> LanguageModel:
    """Load a language model.

    Args:
        name: A name in `BUILT_IN`, a folder, or a name on the hub. A folder needs ``config.json``.
            The weights are random if a folder has none, or if no checkpoint of a built-in name is
            in the cache of transformers.
        dtype: The type of the weights, such as ``float16``.
        attention: The implementation of the attention, such as ``sdpa``; ``auto`` leaves the choice
            to transformers.
        seed: The seed of random weights.
        device: PyTorch's name of the device, such as ``cuda:0``.
        ranks: The ranks that share the model. Each loads the whole model and keeps its part.

    Raises:
        UnavailableError: PyTorch or transformers is not installed.
        InputError: There is no such model, or it cannot be used.
        DeviceError: The weights do not fit into the device's memory.
    """
    check_packages(name)
    import torch
    from huggingface_hub import try_to_load_from_cache
    from transformers import AutoConfig, AutoModelForCausalLM

    options: dict[str, Any] = {"dtype": getattr(torch, dtype)}
    if attention != "auto":
        options["attn_implementation"] = attention
    folder, source, config = Path(name), name, None
    try:
        if name in BUILT_IN:
            source, published = BUILT_IN[name]
            # Offline, a look at the hub takes 30 s.
            if not isinstance(try_to_load_from_cache(source, "config.json"), str):
                config = AutoConfig.for_model(**published)
        elif is_folder(folder):
            if not is_file(folder / "config.json"):
                raise InputError(f"The folder {folder} has no config.json: name that of a model.")
            if not any(found for pattern in _WEIGHTS for found in folder.glob(pattern)):
                config = AutoConfig.from_pretrained(folder, local_files_only=True)
        elif name.startswith((".", "/")) or name.count("/") > 1:  # no name on the hub
            raise InputError(f"There is no folder {folder}: name that of a model.")
        if config is None:
            local = name in BUILT_IN or is_folder(folder)
            model = AutoModelForCausalLM.from_pretrained(source, local_files_only=local, **options)
        else:  # weights as before training, of the scale ``initializer_range``
            with torch.random.fork_rng(devices=[]), torch.device(device):
                torch.manual_seed(seed)
                model = AutoModelForCausalLM.from_config(config, **options)
        model = model.eval().to(device)
        if ranks.count > 1:
            from pytest_gpuenergy.replay.profile.sharding import shard

            shard(model, name, ranks.rank, ranks.count)
    except GpuEnergyError:
        raise
    except Exception as error:  # a configuration may raise anything
        if isinstance(error, torch.OutOfMemoryError) or "t allocate memory" in str(error):
            raise DeviceError(
                f"The weights of {name} in {dtype} do not fit into the memory of {device}: choose "
                "a smaller model."
            ) from None
        raise InputError(
            f"The model {name!r} cannot be loaded ({_reason(error)}): give {', '.join(BUILT_IN)}, "
            "a folder with a model, a name on the hub, module:function, or an exported file."
        ) from None
    return LanguageModel(
        name=name,
        weights="checkpoint" if config is None else "random",
        attention=_attention_of(model.config, attention),
        dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
        prompt=Prompt(),
        vocabulary=int(model.config.get_text_config().vocab_size),
        model=model,
    )


def _attention_of(config: Any, asked: str) -> str:
    """Return the implementation of a model's attention; what was asked for if parts of it differ.

    To ask for that of an image encoder, for example, would change that of the text model beside it.
    """
    parts = [config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))]
    found = {
        str(getattr(part, "_attn_implementation", asked)) for part in parts if part is not None
    }
    return found.pop() if len(found) == 1 else asked


def _reason(error: Exception) -> str:
    """Return the first sentence of an error, including the line after a heading, or its type."""
    first, *others = str(error).strip().splitlines() or [""]
    heading = f"{first} {others[0].strip()}" if first.endswith(":") and others else first
    reason = heading.partition(". ")[0].rstrip(".")
    return reason if " " in reason else f"{type(error).__name__}: {reason}".removesuffix(": ")
