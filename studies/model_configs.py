"""Writes the published configurations of models, which are then profiled with random weights.

    python studies/model_configs.py FOLDER [NAME ...]

Each configuration becomes ``FOLDER/NAME/config.json``, as ``gpuenergy profile FOLDER/NAME`` takes it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

CONFIGS: dict[str, dict[str, object]] = {
    "qwen2-0.5b": {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
    "llama-3.2-1b": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
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
    },
    "opt-350m": {
        "model_type": "opt",
        "architectures": ["OPTForCausalLM"],
        "vocab_size": 50272,
        "hidden_size": 1024,
        "ffn_dim": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "word_embed_proj_dim": 512,
        "do_layer_norm_before": False,
        "max_position_embeddings": 2048,
        "activation_function": "relu",
    },
    "pythia-410m": {
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"],
        "vocab_size": 50304,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "rotary_pct": 0.25,
        "max_position_embeddings": 2048,
        "use_parallel_residual": True,
        "hidden_act": "gelu",
        "tie_word_embeddings": False,
    },
    "gemma-2b": {
        "model_type": "gemma",
        "architectures": ["GemmaForCausalLM"],
        "vocab_size": 256000,
        "hidden_size": 2048,
        "intermediate_size": 16384,
        "num_hidden_layers": 18,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "granite-moe-1b": {
        "model_type": "granitemoe",
        "architectures": ["GraniteMoeForCausalLM"],
        "vocab_size": 49155,
        "hidden_size": 1024,
        "intermediate_size": 512,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_local_experts": 32,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 4096,
        "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0,
        "logits_scaling": 6.0,
        "residual_multiplier": 0.22,
        "tie_word_embeddings": True,
    },
    "mamba-370m": {
        "model_type": "mamba",
        "architectures": ["MambaForCausalLM"],
        "vocab_size": 50280,
        "hidden_size": 1024,
        "state_size": 16,
        "num_hidden_layers": 48,
        "conv_kernel": 4,
        "expand": 2,
        "time_step_rank": 64,
    },
}
"""The published configuration of each model, as its ``config.json`` on the hub has it."""


def main() -> None:
    """Write the configurations."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=[], help=f"of {', '.join(CONFIGS)}")
    options = parser.parse_args()
    for name in options.names or CONFIGS:
        folder = options.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(CONFIGS[name], indent=1) + "\n")


if __name__ == "__main__":
    main()
