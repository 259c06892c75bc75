"""Reads the folder that ``gpuenergy profile`` writes: its record, its trace, and its ranks."""

from __future__ import annotations

from itertools import count, takewhile
from pathlib import Path

from msgspec import Struct

from pytest_gpuenergy.replay.power import PowerAlignment
from pytest_gpuenergy.replay.profile.programs import Prompt
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    decode,
    dump,
    is_file,
    is_folder,
    read_bytes,
    write_atomically,
)

TRACE = "trace.json.gz"
TRACES = (TRACE, "trace.json")
"""The names that a trace may have in a folder; ours is the first."""
GRAPH_TRACE = "graph_trace.json.gz"
"""The trace of a run in which a program makes the calls of its CUDA graph, if they differ."""
PROFILE_JSON = "profile.json"
HOST = "cpu"
"""The name of the device in a profile of the host's operators."""
SCHEMA_VERSION = 1

_LARGEST_BYTES = 1 << 20
_MAX_RANKS = 1 << 10
UNIQUE_JSONL = "unique_kernels_compute.jsonl"


class ProfileRecord(Struct, frozen=True):
    """The record of a profile: the content of ``profile.json``.

    A function has no prompt, tokens or attention: its numbers of tokens are 0, and ``weights``,
    ``attention`` and ``dtype`` are ``own``.

    Attributes:
        model: The name of the program, as the user gave it.
        weights: ``checkpoint`` or ``random``.
        attention: The implementation of the attention.
        dtype: The type of the weights.
        parameters: The number of parameters of this rank.
        layers: The number of layers.
        prompt_tokens: The length of each prompt.
        new_tokens: The number of generated tokens.
        batch: The number of prompts at once.
        seed: The seed of the tokens and of random weights.
        device: The name of the GPU, or `HOST`.
        torch: The version of PyTorch.
        transformers: The version of transformers.
        rank: The number of this process among the ranks that share the model.
        ranks: The number of these ranks.
        schema_version: The version of this form.
        runs: The number of runs that were profiled, one after another.
        power: The alignment of the samples in ``power.csv``; None without samples.
        export: The file that the model was exported to; empty if it was not.
        tf32: Whether PyTorch was allowed to compute products of float32 matrices with TF32
            instructions; False in profiles of earlier releases, which did not record it.
        modules: The names of the modules outside of the layers, see
            `TorchProgram.outer_modules`.
        graph_differs: Whether the program makes other calls while a CUDA graph is captured. Their
            trace is `GRAPH_TRACE`.
    """

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
    rank: int = 0
    ranks: int = 1
    schema_version: int = SCHEMA_VERSION
    runs: int = 1
    power: PowerAlignment | None = None
    export: str = ""
    tf32: bool = False
    modules: tuple[str, ...] = ()
    graph_differs: bool = False

    @property
    def work(self) -> str:
        """Everything that the time and energy of a step depend on, in words."""
        return (
            f"{self.model}, {self.weights} weights of seed {self.seed}, {self.dtype}, "
            f"{self.attention} attention, {self.batch} prompts of {self.prompt_tokens} tokens, "
            f"rank {self.rank} of {self.ranks}, PyTorch {self.torch}, "
            f"transformers {self.transformers}"
        )

    @property
    def prompt(self) -> Prompt:
        """The prompt of the program."""
        return Prompt(self.prompt_tokens, self.new_tokens, self.batch, self.seed)

    def steps(self, decode: int) -> tuple[int, ...]:
        """Return the numbers of the prefill, 0, and of a decode step if any were profiled.

        Args:
            decode: The number of the decode step.

        Raises:
            InputError: There are decode steps, but not this one.
        """
        last = max(0, self.new_tokens - 1)
        if last and not 0 < decode <= last:
            raise InputError(
                f"The profile of {self.model} has no decode step {decode}: give 1 to {last}."
            )
        return (0, decode) if last else (0,)

    def step_name(self, step: int) -> str:
        """Return the name of a step for the user."""
        if not self.new_tokens:
            return "call"
        return "prefill" if step == 0 else f"decode step {step}"

    def tokens(self, step: int) -> int | None:
        """Return the number of tokens that a step reads or generates; None for a function."""
        if not self.new_tokens:
            return None
        return self.batch * (self.prompt_tokens if step == 0 else 1)


def read_profile(folder: Path) -> ProfileRecord:
    """Read the record of a profile's folder.

    Raises:
        InputError: The folder has no record, or a damaged one.
    """
    path = folder / PROFILE_JSON
    if not is_file(path):
        if list_in(folder) is not None:
            raise InputError(
                f"The folder {folder} has unique kernels and no {PROFILE_JSON}, without which the "
                "model that made their calls cannot be run again: profile it with gpuenergy "
                "profile MODEL, and replay that."
            )
        raise InputError(
            f"The folder {folder} has no {PROFILE_JSON}: name one that gpuenergy profile has "
            "written."
        )
    content = read_bytes(path, "profile", _LARGEST_BYTES)
    try:
        record = decode(content, ProfileRecord, "the profile")
        if not 0 <= record.rank < record.ranks <= _MAX_RANKS:
            raise FormError(f"it is of rank {record.rank} of {record.ranks}")
        for name in ("layers", "parameters", "prompt_tokens", "new_tokens", "batch", "runs"):
            if (number := getattr(record, name)) < 0:
                raise FormError(f"{name} is {number}")
    except FormError as error:
        raise InputError(f"{path} is damaged ({error}): profile again.") from None
    if record.schema_version != SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {record.schema_version}, but this release reads version "
            f"{SCHEMA_VERSION}: use the release that wrote it, or profile again."
        )
    return record


def rank_folders(folder: Path) -> list[Path]:
    """Return the folders of the ranks that share the model; none for a single GPU.

    Raises:
        InputError: The record of the folder is damaged, or the folder of a rank is missing.
    """
    found = list(takewhile(is_folder, (folder_of_rank(folder, rank) for rank in count())))
    is_ranks_own = not found and any(is_file(folder / name) for name in TRACES)
    if is_ranks_own or not is_file(folder / PROFILE_JSON):
        return found
    ranks = read_profile(folder).ranks
    if ranks == 1:  # an earlier profile may have left some
        return []
    if len(found) < ranks:
        raise InputError(
            f"{folder} is the profile of a model on {ranks} GPUs, and has no folder "
            f"{folder_of_rank(folder, len(found)).name}: profile again."
        )
    return found[:ranks]


def write_profile(record: ProfileRecord, folder: Path) -> None:
    """Write ``profile.json``.

    Raises:
        OSError: it cannot be written.
    """
    write_atomically(folder / PROFILE_JSON, dump(record))


def folder_of_rank(folder: Path, rank: int) -> Path:
    """Return the folder of a rank within the folder of a profile."""
    return folder / f"rank{rank}"


def list_in(folder: Path) -> Path | None:
    """Return the list of unique kernels in a folder: that of another tool, or else our own."""
    others = sorted(path for path in folder.glob(f"*_{UNIQUE_JSONL}") if is_file(path))
    if len(others) > 1:
        raise InputError(
            f"The folder {folder} has {others[0].name} and {others[1].name}: name one of them."
        )
    own = folder / UNIQUE_JSONL
    return others[0] if others else own if is_file(own) else None


def source_in(folder: Path) -> Path:
    """Return the trace of a profile's folder, or else its list of unique kernels."""
    for name in TRACES:
        if is_file(folder / name):
            return folder / name
    if (found := list_in(folder)) is not None:
        return found
    raise InputError(
        f"The folder {folder} has no {TRACES[0]} and no {UNIQUE_JSONL}: name a folder of "
        "gpuenergy profile, or a trace."
    )
