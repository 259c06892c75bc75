"""Runs a language model under PyTorch's profiler, with annotations for phases and layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from pytest_gpuenergy.replay.calls import CallForm
from pytest_gpuenergy.replay.models import LanguageModel
from pytest_gpuenergy.support.errors import DeviceError, InputError
from pytest_gpuenergy.support.files import write_atomically
from pytest_gpuenergy.support.json_output import dump

TRACE = "trace.json.gz"
PROFILE_JSON = "profile.json"


@dataclass(frozen=True)
class Prompt:
    """What a model is asked for.

    Attributes:
        tokens: length of the prompt, of random tokens.
        new_tokens: that are generated; the first comes from the prefill, each other one from a
            decode step.
        batch: prompts at once.
        seed: of the tokens.
    """

    tokens: int = 1024
    new_tokens: int = 32
    batch: int = 1
    seed: int = 0


class ProfileRecord(Struct, frozen=True):
    """What was profiled, and with what; stands in ``profile.json``."""

    model: str
    weights: str
    attention: str
    dtype: str
    parameters: int
    layers: int
    prompt_tokens: int
    new_tokens: int
    batch: int
    seed: int
    device: str
    torch: str
    transformers: str
    schema_version: int = 1

    def steps(self, decode: int) -> tuple[int, ...]:
        """The prefill, which is 0, and the decode step ``decode``, if any has been profiled.

        Raises:
            InputError: there are decode steps, but not this one.
        """
        last = self.new_tokens - 1
        if last and not 0 < decode <= last:
            raise InputError(
                f"The profile of {self.model} has no decode step {decode}: give 1 to {last}."
            )
        return (0, decode) if last else (0,)


def read_profile(folder: Path) -> ProfileRecord:
    """What a run's folder is the profile of.

    Raises:
        InputError: it has no profile, or a damaged one.
    """
    path = folder / PROFILE_JSON
    try:
        return msgspec.json.decode(path.read_bytes(), type=ProfileRecord)
    except OSError:
        raise InputError(
            f"The folder {folder} has no {PROFILE_JSON}: name one that gpuenergy profile has "
            "written."
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged ({error}): profile again.") from None


def profile_model(
    model: LanguageModel, prompt: Prompt, folder: Path, device: str
) -> tuple[ProfileRecord, list[CallForm]]:
    """Generate once to warm up, and once under the profiler; write the trace and what it is of.

    Args:
        model: to run.
        prompt: what for.
        folder: to write ``trace.json.gz`` and ``profile.json`` to; made if need be.
        device: PyTorch's name of it.

    Returns:
        What was profiled, and the form of each call of an operator by its number.

    Raises:
        DeviceError: the device's memory is too small.
        OSError: a file cannot be written.
    """
    import torch
    import transformers

    from pytest_gpuenergy.replay.capture import CallRecorder

    folder.mkdir(parents=True, exist_ok=True)
    try:
        with torch.inference_mode(), layers_annotated(model):
            tokens = prompt_of(model, prompt, device)
            generate(model.model, tokens, prompt.new_tokens)  # libraries choose and allocate
            recorder = CallRecorder(model.model)
            with profiler_on(device) as profiler:
                with recorder:
                    generate(model.model, tokens, prompt.new_tokens)
                settle(device)
    except (RuntimeError, IndexError, ValueError) as error:
        raise DeviceError(_failure(model, prompt, device, error)) from None
    profiler.export_chrome_trace(str(folder / TRACE))
    record = ProfileRecord(
        model=model.name,
        weights=model.weights,
        attention=model.attention,
        dtype=str(next(model.model.parameters()).dtype).removeprefix("torch."),
        parameters=sum(one.numel() for one in model.model.parameters()),
        layers=len(model.layers),
        prompt_tokens=prompt.tokens,
        new_tokens=prompt.new_tokens,
        batch=prompt.batch,
        seed=prompt.seed,
        device=_name(device),
        torch=torch.__version__,
        transformers=transformers.__version__,
    )
    write_atomically(folder / PROFILE_JSON, dump(record))
    return record, recorder.forms


def _failure(model: LanguageModel, prompt: Prompt, device: str, error: Exception) -> str:
    import torch

    reason = str(error).strip().partition("\n")[0].rstrip(".")
    what = f"a batch of {prompt.batch} and {prompt.tokens} tokens"
    if isinstance(error, torch.OutOfMemoryError) or "t allocate memory" in reason:
        return (
            f"{model.name} does not fit into the memory of {device} with {what}: give a smaller "
            "--batch or --prompt-tokens."
        )
    return f"{model.name} failed on {device} with {what} ({reason}): give another model or size."


def profiler_on(device: str) -> Any:
    """PyTorch's profiler of what the host and ``device`` do; a context manager."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if device.startswith("cuda"):
        activities.append(ProfilerActivity.CUDA)
    return profile(activities=activities, record_shapes=True, acc_events=True)


def settle(device: str) -> None:
    """Wait until ``device`` has finished."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def generate(model: Any, tokens: Any, new_tokens: int) -> None:
    """Generate greedily, with a cache of keys and values."""
    from torch.profiler import record_function

    with record_function("prefill"):
        out = model(input_ids=tokens, use_cache=True)
        latest = out.logits[:, -1:].argmax(dim=-1)
    for step in range(1, new_tokens):
        with record_function(f"decode {step}"):
            out = model(input_ids=latest, past_key_values=out.past_key_values, use_cache=True)
            latest = out.logits[:, -1:].argmax(dim=-1)


def prompt_of(model: LanguageModel, prompt: Prompt, device: str) -> Any:
    """Random tokens of the model's vocabulary, on its device."""
    import torch

    generator = torch.Generator().manual_seed(prompt.seed)
    shape = (prompt.batch, prompt.tokens)
    return torch.randint(model.vocabulary, shape, generator=generator).to(device)


@contextmanager
def layers_annotated(model: LanguageModel) -> Iterator[None]:
    """Let each layer run within an annotation such as ``layer 3``."""
    from torch.profiler import record_function

    hooks = []
    for number, layer in enumerate(model.layers):
        open_ones: list[Any] = []

        def enter(*_: Any, number: int = number, open_ones: list[Any] = open_ones) -> None:
            open_ones.append(record_function(f"layer {number}"))
            open_ones[-1].__enter__()

        def leave(*_: Any, open_ones: list[Any] = open_ones) -> None:
            open_ones.pop().__exit__(None, None, None)

        hooks += [layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device
