"""Programs for `account_models` that ``gpuenergy profile`` cannot make, with random weights.

``gpuenergy profile account_encoders:vit_base.compute`` profiles one of them, if this folder is the
working directory or on ``PYTHONPATH``. A model is made when its name is first asked for.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSpeechSeq2Seq,
    StaticCache,
)

VIT_BASE = {
    "model_type": "vit",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "num_labels": 1000,
    "layer_norm_eps": 1e-12,
}
WHISPER_SMALL = {
    "model_type": "whisper",
    "vocab_size": 51865,
    "num_mel_bins": 80,
    "d_model": 768,
    "encoder_layers": 12,
    "encoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "decoder_layers": 12,
    "decoder_attention_heads": 12,
    "decoder_ffn_dim": 3072,
    "max_source_positions": 1500,
    "max_target_positions": 448,
}
LLAMA_1B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": True,
}
"""The published configurations, as their ``config.json`` on the hub has them."""
_IMAGES = 8
_SPEECH_TOKENS = 32
_PROMPT_TOKENS = 1024
_CACHED_TOKENS = 2048


class Encoder(torch.nn.Module):
    """A model with the input that it is given.

    Args:
        model: The model.
        given: Its arguments, by name.
    """

    def __init__(self, model: Any, given: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.given = given

    def compute(self) -> Any:
        """Run the model once."""
        return self.model(**self.given)


class Int8Linear(torch.nn.Module):
    """A linear layer with weights of 8 bits, which rounds what it takes to 8 bits, row by row.

    Args:
        linear: The layer that it takes the place of.
    """

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        scale, weight = _rounded(linear.weight.data)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.scale = torch.nn.Parameter(scale.flatten(), requires_grad=False)
        self.bias = linear.bias

    def forward(self, value: Any) -> Any:
        """Multiply as integers, and scale the product."""
        scale, rows = _rounded(value.flatten(0, -2))
        product = torch._int_mm(rows, self.weight.t()) * scale * self.scale
        product = product.to(value.dtype).unflatten(0, value.shape[:-1])
        return product if self.bias is None else product + self.bias


def _rounded(rows: Any) -> tuple[Any, Any]:
    """Return the scales of rows in float32, and the rows as integers of 8 bits."""
    scale = rows.abs().amax(-1, keepdim=True).float() / 127
    return scale, (rows / scale).round().to(torch.int8)


@cache
def __getattr__(name: str) -> Encoder:
    """Make one of the programs: a step of ``llama_static`` decodes with a static cache."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Any:
        return torch.randn(shape, generator=generator).to(device, torch.float16)

    if name in ("vit_base", "vit_base_compiled", "vit_base_int8"):
        model = _loaded(AutoModelForImageClassification, VIT_BASE, device)
        if name == "vit_base_int8":
            for layer in list(model.vit.modules()):
                for inner, linear in layer.named_children():
                    if isinstance(linear, torch.nn.Linear):
                        setattr(layer, inner, Int8Linear(linear))
        if name == "vit_base_compiled":
            model.compile(dynamic=False)
        size = VIT_BASE["image_size"]
        return Encoder(model, {"pixel_values": random(_IMAGES, 3, size, size)})
    if name == "whisper_small":
        model = _loaded(AutoModelForSpeechSeq2Seq, WHISPER_SMALL, device)
        bins, positions = WHISPER_SMALL["num_mel_bins"], WHISPER_SMALL["max_source_positions"]
        vocabulary = WHISPER_SMALL["vocab_size"]
        tokens = torch.randint(vocabulary, (1, _SPEECH_TOKENS), generator=generator)
        given = {
            "input_features": random(1, bins, 2 * positions),
            "decoder_input_ids": tokens.to(device),
        }
        return Encoder(model, {**given, "use_cache": False})
    if name == "llama_static":
        model = _loaded(AutoModelForCausalLM, LLAMA_1B, device)
        tokens = torch.randint(LLAMA_1B["vocab_size"], (1, _PROMPT_TOKENS), generator=generator)
        cached = StaticCache(config=model.config, max_cache_len=_CACHED_TOKENS)
        given = {"past_key_values": cached, "use_cache": True}
        with torch.inference_mode():
            model(input_ids=tokens.to(device), **given)
        return Encoder(model, {**given, "input_ids": tokens[:, :1].to(device)})
    raise AttributeError(f"{__name__} has no model {name}")


def _loaded(kind: Any, config: dict[str, Any], device: torch.device) -> Any:
    torch.manual_seed(0)
    with device:
        made = kind.from_config(AutoConfig.for_model(**config), dtype=torch.float16)
    return made.eval().to(device)
