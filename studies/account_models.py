"""Profiles and replays models of published configurations in one process, in pieces.

    python studies/account_models.py FOLDER qwen2-0.5b llama-3.2-1b --keep results/

Weights are random. Each model is profiled; then the decode step is replayed, then the rest, with
``--changes`` also what changes would save. A line of ``exits.txt`` has the exit status and the
seconds of each command. Results are copied as flat files every few seconds.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from argparse import ArgumentParser
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from threading import Event, Thread
from typing import Any

from pytest_gpuenergy.cli import main as gpuenergy

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
KEPT = (
    "operator_calls.jsonl",
    "profile.json",
    "results/measurements.jsonl",
    "results/gpu_energy_report.json",
)


def main() -> int:
    """Run the commands of each model."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="+", choices=sorted(CONFIGS))
    parser.add_argument("--keep", type=Path, required=True, metavar="DIR")
    parser.add_argument("--prefix", default="")
    parser.add_argument("--prompt-tokens", default="1024")
    parser.add_argument("--gpu-device", default="auto")
    parser.add_argument("--changes", action="store_true")
    parser.add_argument("--full", action="store_true", help="Without --brief")
    options = parser.parse_args()
    worst = 0
    for name in options.models:
        model, run = options.folder / name, options.folder / f"{name}.run"
        model.mkdir(parents=True, exist_ok=True)
        (model / "config.json").write_text(json.dumps(CONFIGS[name]))
        sizes = ("--prompt-tokens", options.prompt_tokens, "--new-tokens", "2")
        device = ("--gpu-device", options.gpu_device)
        length = () if options.full else ("--brief",)
        commands = [("profile", str(model), *sizes, "--out", str(run), *device)]
        replay = ("replay", str(run), *length, *device)
        more = ("--changes",) if options.changes else ()
        commands += [(*replay, "--kernels", "decode"), (*replay, "--resume", *more)]
        stop = Event()
        keeper = Thread(target=keep_often, args=(run, name, options, stop), daemon=True)
        keeper.start()
        for number, words in enumerate(commands):
            began_s = time.monotonic()
            if "decode" in words:
                words = [
                    ",".join(decode_calls(run)) if word == "decode" else word for word in words
                ]
            text = options.keep / f"{options.prefix}{name}-{number}-{words[0]}.txt"
            with text.open("w") as file, redirect_stdout(file), redirect_stderr(file):
                status = gpuenergy(list(words))
            worst = max(worst, status)
            line = f"{name} {words[0]} {number}: exit {status}, {time.monotonic() - began_s:.1f} s"
            print(line, flush=True)
            with (options.keep / f"{options.prefix}exits.txt").open("a") as file:
                file.write(line + "\n")
            if status:
                break
        stop.set()
        keeper.join()
    return worst


def decode_calls(run: Path) -> list[str]:
    """Return the ids of the calls that the first decode step makes as a graph or from the host."""
    calls = map(json.loads, (run / "operator_calls.jsonl").read_text().splitlines())
    return [
        one["id"]
        for one in calls
        if "1" in one["steps"] or "1" in ((one.get("graph") or {}).get("steps") or {})
    ]


def keep_often(run: Path, name: str, options: Any, stop: Event) -> None:
    """Copy results now and then, and at the end."""
    while True:
        done = stop.wait(4.0)
        for kept in KEPT:
            if (path := run / kept).is_file():
                target = f"{options.prefix}{name}-{path.name}.gz"
                content = gzip.compress(path.read_bytes(), 4)
                (options.keep / target).write_bytes(content)
        if done:
            return


if __name__ == "__main__":
    sys.exit(main())
