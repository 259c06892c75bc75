"""Draws language models of transformers whose accounts nobody has looked at.

    python studies/draw_models.py --seed 47

The names of all models for causal language modelling are put into a random order. The first ones
are taken that are decoders by themselves, that `account_models` had no account of when they were
drawn, and whose default configuration, which transformers takes from a published model, has
between 0.1 and 3 billion parameters. A line of the output says for each name, up to the last one
that is taken, its size and why it is left out. Needs PyTorch and transformers, but no GPU.
"""

from __future__ import annotations

import logging
import random
import sys

from study_command import study_parser

_LEAST, _MOST = 100_000_000, 3_000_000_000
_NO_LANGUAGE_MODEL_ALONE = ("bert", "xmod", "data2vec", "electra", "whisper", "marian", "bart")
_NO_LANGUAGE_MODEL_ALONE += ("blenderbot", "pegasus", "prophetnet", "t5", "git", "musicgen", "blip")
_NO_LANGUAGE_MODEL_ALONE += ("trocr", "speech", "camembert", "ernie", "rembert", "xlm", "roformer")
"""Parts of the names of encoders, and of decoders that need the output of an encoder."""
_KNOWN = ("bloom", "vicuna", "llama", "qwen2", "opt", "gpt_neox", "gemma", "granitemoe", "mamba")
_KNOWN += ("gemma3_text", "gpt2", "gpt-sw3", "stablelm", "nanochat", "hrm_text", "zamba2", "xlnet")
_KNOWN += ("gemma2", "got_ocr2", "granite_swa", "big_bird", "diffllama")
"""The names of the models whose accounts had been looked at, or were being developed with."""


def why_not(name: str) -> tuple[int, str]:
    """Return the number of a model's parameters, and why it is left out; nothing if it is not."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if any(part in name for part in _NO_LANGUAGE_MODEL_ALONE):
        return 0, "no decoder by itself"
    if name in _KNOWN:
        return 0, "known"
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name))
    except Exception as problem:  # whatever its code raises
        return 0, f"its default configuration fails: {type(problem).__name__}"
    size = sum(weight.numel() for weight in model.parameters())
    if not _LEAST <= size <= _MOST:
        return size, "too small" if size < _LEAST else "too large"
    return size, ""


def main() -> int:
    """Draw some models; see the module's documentation."""
    parser = study_parser(__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=3)
    options = parser.parse_args()
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    transformers.utils.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    names = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    random.Random(options.seed).shuffle(names)
    print(f"{len(names)} models of transformers {transformers.__version__}, seed {options.seed}")
    left = options.count
    for name in names:
        size, reason = why_not(name)
        left -= not reason
        print(f"{name}: {size / 1e6:.0f} million parameters, {reason or 'TAKEN'}", flush=True)
        if not left:
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
