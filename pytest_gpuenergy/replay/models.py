"""Language models to profile: with published weights, or random ones where there are none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pytest_gpuenergy.support.errors import DeviceError, InputError, UnavailableError
from pytest_gpuenergy.support.files import is_file, is_folder

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
"""Name on the hub, and the published configuration, of each name that needs no file."""

DTYPES = ("float16", "bfloat16", "float32")
ATTENTION = ("auto", "sdpa", "eager")

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


@dataclass(frozen=True)
class LanguageModel:
    """A causal language model, ready to run.

    Attributes:
        model: a ``transformers`` model in evaluation mode.
        name: as the user named it.
        weights: ``random`` ones are drawn with the scale that the configuration publishes.
        attention: the implementation that it uses.
    """

    model: Any
    name: str
    weights: Literal["checkpoint", "random"]
    attention: str

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def layers(self) -> list[Any]:
        """Its equal blocks, in order: the longest list of modules in it; none if it has no list."""
        from torch.nn import ModuleList

        lists = [module for module in self.model.modules() if isinstance(module, ModuleList)]
        return list(max(lists, key=len, default=[]))


def check_packages() -> None:
    """Check that PyTorch and transformers are there.

    Raises:
        UnavailableError: one is not.
    """
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        raise UnavailableError(
            f"Profiling a model needs {error.name}: pip install 'pytest-gpuenergy[replay]'."
        ) from None
    del torch


def load_model(
    name: str,
    *,
    dtype: str = "float16",
    attention: str = "auto",
    seed: int = 0,
    device: str = "cpu",
) -> LanguageModel:
    """Load a model.

    Args:
        name: one of `BUILT_IN`, a folder, or a name on the hub. A folder needs ``config.json``;
            without weights in it, and for a built-in name without a checkpoint at hand, weights are
            random.
        dtype: one of `DTYPES`.
        attention: one of `ATTENTION`; ``auto`` is transformers' own choice for the model.
        seed: of random weights.
        device: PyTorch's name of it, such as ``cuda:0``.

    Raises:
        UnavailableError: PyTorch or transformers is not installed.
        InputError: there is no such model, or it cannot be used.
        DeviceError: its weights do not fit into the device's memory.
    """
    check_packages()
    import torch
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"dtype": getattr(torch, dtype)}
    if attention != "auto":
        options["attn_implementation"] = attention
    folder = Path(name)
    try:
        if name in BUILT_IN:
            hub, published = BUILT_IN[name]
            if _is_cached(hub):
                model = AutoModelForCausalLM.from_pretrained(hub, local_files_only=True, **options)
                weights = "checkpoint"
            else:
                model, weights = _random(_config(published), options, seed, device), "random"
        elif is_folder(folder):
            if not is_file(folder / "config.json"):
                raise InputError(f"The folder {folder} has no config.json: name that of a model.")
            if any(found for pattern in _WEIGHTS for found in folder.glob(pattern)):
                model = AutoModelForCausalLM.from_pretrained(
                    folder, local_files_only=True, **options
                )
                weights = "checkpoint"
            else:
                model, weights = _random(_config(folder), options, seed, device), "random"
        else:
            model, weights = AutoModelForCausalLM.from_pretrained(name, **options), "checkpoint"
        model = model.eval().to(device)
    except torch.OutOfMemoryError:
        raise DeviceError(
            f"The weights of {name} in {dtype} do not fit into the memory of {device}: choose a "
            "smaller model."
        ) from None
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
        raise InputError(
            f"The model {name!r} cannot be loaded ({reason}): give {', '.join(BUILT_IN)}, a folder "
            "with a model, or a name on the hub."
        ) from None
    used = str(getattr(model.config, "_attn_implementation", attention))
    return LanguageModel(model, name, "checkpoint" if weights == "checkpoint" else "random", used)


def _is_cached(hub: str) -> bool:
    """Whether a model of the hub is at hand; asked of the hub, that takes half a minute offline."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(hub, "config.json"), str)


def _config(source: dict[str, Any] | Path) -> Any:
    from transformers import AutoConfig

    if isinstance(source, Path):
        return AutoConfig.from_pretrained(source, local_files_only=True)
    values = dict(source)
    return AutoConfig.for_model(values.pop("model_type"), **values)


def _random(config: Any, options: dict[str, Any], seed: int, device: str) -> Any:
    """A model whose weights have the scale of ``initializer_range``, as before any training."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, **options)
