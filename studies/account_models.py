"""Profiles and replays models of published configurations, each in a process of its own.

    python studies/account_models.py FOLDER qwen2-0.5b llama-3.2-1b@8x512 --keep results/

Weights are random. ``@8x512`` gives a model 8 prompts of 512 tokens instead of one of 1024,
``@8x512x1`` leaves out the decode step, ``@decode:8x512`` measures nothing else, and ``@8x512x2x6``
leaves a model 6 of its layers. Each model is profiled and replayed; with ``--schedule
FILE``, in the sizes of a schedule. With ``--changes``, what changes would save is measured
afterwards, and with ``--unrestored`` what changes in place what it reads, without restoring that.
While a model is measured, the next process imports PyTorch. A model that fails or takes too long
leaves the others as they are. A line of ``exits.txt`` has the exit status and the seconds of each
command. Results are copied as flat files every few seconds.
"""

from __future__ import annotations

import gzip
import importlib
import json
import os
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from re import fullmatch
from shutil import copytree
from subprocess import PIPE, Popen, TimeoutExpired
from traceback import print_exc

from pytest_gpuenergy.cli import main as gpuenergy
from pytest_gpuenergy.replay.profile.language_models import BUILT_IN

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
    "gemma3-text": {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
    "gpt2": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "activation_function": "gelu_new",
        "tie_word_embeddings": True,
    },
    "stablelm-3b": {
        "model_type": "stablelm",
        "architectures": ["StableLmForCausalLM"],
        "vocab_size": 50304,
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
    "nanochat": {
        "model_type": "nanochat",
        "architectures": ["NanoChatForCausalLM"],
        "vocab_size": 50304,
        "hidden_size": 768,
        "intermediate_size": 8192,
        "num_hidden_layers": 12,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "max_position_embeddings": 2048,
        "hidden_act": "relu2",
        "final_logit_softcapping": 15.0,
        "tie_word_embeddings": False,
    },
    "xlnet-large": {
        "model_type": "xlnet",
        "architectures": ["XLNetLMHeadModel"],
        "vocab_size": 32000,
        "d_model": 1024,
        "n_layer": 24,
        "n_head": 16,
        "d_inner": 4096,
        "ff_activation": "gelu",
        "attn_type": "bi",
        "mem_len": 512,
        "tie_word_embeddings": True,
    },
    "hrm-text-1b": {
        "model_type": "hrm_text",
        "architectures": ["HrmTextForCausalLM"],
        "vocab_size": 151808,
        "hidden_size": 1536,
        "intermediate_size": 4096,
        "num_layers_per_stack": 16,
        "num_attention_heads": 12,
        "H_cycles": 2,
        "L_cycles": 3,
        "max_position_embeddings": 2048,
    },
    "zamba2-2.7b": {
        "model_type": "zamba2",
        "architectures": ["Zamba2ForCausalLM"],
        "vocab_size": 32000,
        "hidden_size": 2560,
        "num_hidden_layers": 54,
        "intermediate_size": 10240,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "layers_block_type": [
            "hybrid" if layer in (6, 12, 18, 24, 30, 36, 42, 47, 51) else "mamba"
            for layer in range(54)
        ],
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
    "granite-swa": {
        "model_type": "granite_swa",
        "architectures": ["GraniteSWAForCausalLM"],
        "vocab_size": 100352,
        "hidden_size": 2560,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "max_position_embeddings": 8192,
        "sliding_window": 128,
        "tie_word_embeddings": True,
    },
    "got-ocr2": {
        "model_type": "got_ocr2",
        "architectures": ["GotOcr2ForConditionalGeneration"],
        "text_config": {
            "model_type": "qwen2",
            "vocab_size": 151860,
            "hidden_size": 1024,
            "intermediate_size": 2816,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
        },
        "tie_word_embeddings": True,
    },
    "gemma2-2b": {
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "vocab_size": 256000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
    "nemotron-h": {"model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"]},
    "big-bird": {"model_type": "big_bird", "architectures": ["BigBirdForCausalLM"]},
    "diffllama": {"model_type": "diffllama", "architectures": ["DiffLlamaForCausalLM"]},
    "gpt-neo": {"model_type": "gpt_neo", "architectures": ["GPTNeoForCausalLM"]},
    "gpt-neox-japanese": {
        "model_type": "gpt_neox_japanese",
        "architectures": ["GPTNeoXJapaneseForCausalLM"],
    },
    "recurrent-gemma": {
        "model_type": "recurrent_gemma",
        "architectures": ["RecurrentGemmaForCausalLM"],
    },
    "lfm2": {"model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"]},
    "biogpt": {"model_type": "biogpt", "architectures": ["BioGptForCausalLM"]},
    "mpt": {"model_type": "mpt", "architectures": ["MptForCausalLM"]},
}
"""The published configuration of each model, as its ``config.json`` on the hub has it. The last
nineteen were drawn by `draw_models`, and have the sizes that transformers gives them by default."""
DIFFERENT = {
    "granite-moe-1b": ("--dtype", "bfloat16"),
    "xlnet-large": ("--dtype", "float32"),
}
"""What is profiled otherwise. PyTorch multiplies matrices of experts at once in bfloat16 only, and
XLNet adds positions in float32 to what it has computed."""
PROGRAMS = {
    "vit-base": "account_encoders:vit_base.compute",
    "vit-base-compiled": "account_encoders:vit_base_compiled.compute",
    "vit-base-int8": "account_encoders:vit_base_int8.compute",
    "whisper-small": "account_encoders:whisper_small.compute",
    "llama-static": "account_encoders:llama_static.compute",
}
"""Other models, by the functions that run them."""
MODELS = frozenset({*CONFIGS, *BUILT_IN, *PROGRAMS})
"""The names of all models; those that ``gpuenergy profile`` knows need no configuration here."""
KEPT = (
    "operator_calls.jsonl",
    "profile.json",
    "trace.json.gz",
    "graph_trace.json.gz",
    "measurements.jsonl",
    "gpu_energy_report.json",
    "serving_report.json",
)
UNRESTORED = "-unrestored"
"""What the name of a run without restores ends with."""
_SLOW_IMPORTS = ("torch", "transformers")
_KEEP_S = 4.0
_END_S = 10.0
"""The time in which a process has to end when it is asked to."""


def main() -> int:
    """Run each model, or with ``--only`` one of them in this process."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "models", nargs="+", type=known, metavar="MODEL[@[decode:]BATCHxPROMPT[xNEW[xLAYERS]]]"
    )
    parser.add_argument("--keep", type=Path, required=True, metavar="DIR")
    parser.add_argument("--prefix", default="")
    parser.add_argument("--gpu-device", default="auto")
    parser.add_argument("--changes", action="store_true")
    parser.add_argument("--schedule", metavar="FILE", help="Replay the steps of a schedule")
    parser.add_argument("--unrestored", action="store_true")
    parser.add_argument("--full", action="store_true", help="Without --brief")
    parser.add_argument("--limit-s", type=float, default=180.0, help="For each model")
    parser.add_argument("--budget-s", type=float, default=1e9, help="For all models")
    parser.add_argument("--only", action="store_true", help="Run a single model in this process")
    options = parser.parse_args()
    if options.only:
        return run_model(options.models[0], options)
    return run_models(options)


def known(name: str) -> str:
    """Check the name of a model and its sizes."""
    model, _, sizes = name.partition("@")
    if model not in MODELS:
        raise ArgumentTypeError(f"{model} is none of {', '.join(sorted(MODELS))}")
    form = r"(decode:)?\d+x\d+(x\d+){,2}" if model in CONFIGS else r"(decode:)?\d+x\d+(x\d+)?"
    if sizes and (model in PROGRAMS or not fullmatch(form, sizes)):
        raise ArgumentTypeError(f"{name} has no sizes like {model}@8x512")
    return name


def run_models(options: Namespace) -> int:
    """Run each model in a process, as long as there is time; return the worst exit status."""
    ends_s = time.monotonic() + options.budget_s
    options.keep.mkdir(parents=True, exist_ok=True)
    worst = 0
    following: Popen[bytes] | None = None
    for number, name in enumerate(options.models):
        process = following or started(name)
        left = options.models[number + 1 :]
        following = started(left[0]) if left else None
        last_s = min(ends_s, time.monotonic() + options.limit_s)
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has failed already
            process.stdin.write(b"\n")
            process.stdin.close()
        while process.poll() is None:
            try:
                process.wait(_KEEP_S)
            except TimeoutExpired:
                if time.monotonic() > last_s:
                    ended(process)
                    note(options, f"{name}: ended, since its time was over")
            keep_results(name, options)
        worst = max(worst, abs(process.returncode))
        if time.monotonic() > ends_s:
            break
    if following is not None and following.poll() is None:
        ended(following)
    return worst


def started(name: str) -> Popen[bytes]:
    """Start the process of a model, which waits for a line before it uses the GPU."""
    others = [word for word in sys.argv[1:] if word.partition("@")[0] not in MODELS]
    places = (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))
    return Popen(
        [sys.executable, __file__, *others, "--only", name],
        stdin=PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))},
    )


def ended(process: Popen[bytes]) -> None:
    """End a process, gently at first."""
    process.terminate()
    try:
        process.wait(_END_S)
    except TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdin is not None
    process.stdin.close()


def run_model(name: str, options: Namespace) -> int:
    """Run the commands of a model until one fails; return the worst exit status."""
    for package in _SLOW_IMPORTS:
        with suppress(ImportError):
            importlib.import_module(package)
    sys.stdin.readline()
    base, _, sized = name.partition("@")
    label, schedule = label_of(name), options.schedule
    model, run = options.folder / label, options.folder / f"{label}.run"
    sizes: tuple[str, ...] = ()
    program = PROGRAMS.get(base, base if base in BUILT_IN else str(model))
    if base not in PROGRAMS:
        model.mkdir(parents=True, exist_ok=True)
        decode, _, size = (sized or "1x1024").rpartition(":")
        batch, prompt, *others = size.split("x")
        new, layers = [*others, *("2", "")[len(others) :]]
        if base in CONFIGS:
            config = with_layers(CONFIGS[base], int(layers)) if layers else CONFIGS[base]
            (model / "config.json").write_text(json.dumps(config))
        sizes = ("--batch", batch, "--prompt-tokens", prompt, "--new-tokens", new)
        if decode:
            schedule = str(model / "schedule.csv")
            Path(schedule).write_text(f"step,batch,tokens,count\n{decode},{batch},{prompt},1\n")
        sizes = DIFFERENT.get(base, ()) + (() if schedule else sizes)
    device: tuple[str, ...] = ("--gpu-device", options.gpu_device)
    if schedule:
        device += ("--schedule", schedule)
    length = () if options.full else ("--brief",)
    replay = ("replay", str(run), *length, *device)
    commands = [("profile", program, *sizes, "--out", str(run), *device), replay]
    if options.changes:
        commands.append((*replay, "--resume", "--changes"))
    if options.unrestored:
        other = options.folder / f"{label}{UNRESTORED}.run"
        commands.append(("replay", str(other), *length, *device, "--resume"))
    for number, words in enumerate(commands):
        began_s = time.monotonic()
        is_unrestored = options.unrestored and number == len(commands) - 1
        if is_unrestored and not leave_unrestored(run, other):
            break
        text = options.keep / f"{options.prefix}{label}-{number}-{words[0]}.txt"
        with text.open("w") as file, redirect_stdout(file), redirect_stderr(file):
            try:
                status = gpuenergy(list(words))
            except BaseException:  # whatever it is, it belongs in the file
                print_exc()
                status = 70
        took_s = time.monotonic() - began_s
        note(options, f"{name} {words[0]} {number}: exit {status}, {took_s:.1f} s")
        for why, keys in missing(run).items():
            note(options, f"{name} misses {', '.join(keys)}: {why}")
        if status:
            return int(status)
    return 0


def label_of(name: str) -> str:
    """Return what the files of a model with some size are called."""
    return name.replace("@", "-").replace(":", "-")


def with_layers(config: dict[str, object], count: int) -> dict[str, object]:
    """Return the configuration of a model with only ``count`` of its layers."""
    found = dict(config)
    for name in ("num_hidden_layers", "n_layer"):
        if name in found:
            found[name] = count
    kinds = found.get("layers_block_type")
    if isinstance(kinds, list):
        found["layers_block_type"] = kinds[:count]
    return found


def leave_unrestored(run: Path, other: Path) -> bool:
    """Copy a run, whose next replay measures without restores what was measured with them.

    Returns whether there is anything to measure so.
    """
    from pytest_gpuenergy.replay.play import turns

    lines = (run / "results/measurements.jsonl").read_text().splitlines()
    others = [line for line in lines if "-restores" not in line]
    copytree(run, other)
    (other / "results/measurements.jsonl").write_text("".join(f"{line}\n" for line in others))
    turns.changed_before_read = lambda _: []
    return len(others) < len(lines)


def note(options: Namespace, line: str) -> None:
    """Print a line, and add it to ``exits.txt``."""
    print(line, flush=True)
    with (options.keep / f"{options.prefix}exits.txt").open("a") as file:
        file.write(line + "\n")


def missing(run: Path) -> dict[str, list[str]]:
    """Return by the reason what the reports of a replay, if there are any, have not measured."""
    found: dict[str, list[str]] = {}
    for path in run.glob("**/results/gpu_energy_report.json"):
        for key, why in json.loads(path.read_text())["missing"].items():
            found.setdefault(why, []).append(key)
    return found


def keep_results(name: str, options: Namespace) -> None:
    """Copy the results of a model as far as they are there, of each size of a schedule."""
    label = label_of(name)
    for run in (f"{label}.run", f"{label}{UNRESTORED}.run"):
        folder = options.folder / run
        for path in folder.glob("**/*"):
            if path.name not in KEPT or not path.is_file():
                continue
            size = [part for part in path.relative_to(folder).parts[:-1] if part != "results"]
            content = path.read_bytes()
            packed = path.suffix == ".gz"
            target = "-".join([run.removesuffix(".run"), *size, path.name])
            (options.keep / f"{options.prefix}{target}{'' if packed else '.gz'}").write_bytes(
                content if packed else gzip.compress(content, 4)
            )


if __name__ == "__main__":
    sys.exit(main())
