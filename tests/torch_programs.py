"""Small programs of PyTorch's to profile on the host: language models and functions."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest

from pytest_gpuenergy.cli import main

CONFIGS = {
    "bert": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "is_decoder": True,
    },
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "llama": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "mistral": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "sliding_window": 4,
    },
    "openai-gpt": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "rwkv": {"hidden_size": 32, "num_hidden_layers": 2, "context_length": 32},
}
TWO_PRODUCTS = """
import torch

layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(2))
value = torch.ones(64, 64)


def compute():
    return layers[1](layers[0](value))
"""

_numbers = count()


def model_folder(path: Path, kind: str) -> str:
    """Make the folder of a model without weights."""
    path.mkdir()
    config = {"model_type": kind, "vocab_size": 64, **CONFIGS[kind]}
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def write_module(folder: Path, patch: pytest.MonkeyPatch, text: str) -> str:
    """Write a module that can be imported until ``patch`` is undone; return its name."""
    name = f"program_{next(_numbers)}"
    (folder / f"{name}.py").write_text(text)
    patch.syspath_prepend(folder)
    return name


def profile(name: str, run: Path, *options: str) -> int:
    """Profile a program on the host, and return the exit status."""
    return main(["profile", name, "--gpu-device", "cpu", "--out", str(run), *options])
