"""The folder that ``gpuenergy profile`` writes: its record, its trace, and the folders of ranks."""

from __future__ import annotations

from itertools import count, takewhile
from pathlib import Path

from msgspec import Struct

from pytest_gpuenergy.replay.power import PowerAlignment
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
"""Names under which a folder may have a trace; ours is the first."""
PROFILE_JSON = "profile.json"
HOST = "cpu"
"""The device of a profile of the host's operators."""
SCHEMA_VERSION = 1

_LARGEST_BYTES = 1 << 20
_MOST_RANKS = 1 << 10
UNIQUE_JSONL = "unique_kernels_compute.jsonl"


class ProfileRecord(Struct, frozen=True):
    """What was profiled, and with what; stands in ``profile.json``.

    Several ``ranks`` share a model, and ``parameters`` are those of this ``rank``.

    A function has no prompt, tokens or attention: its numbers of tokens are 0, and ``weights``,
    ``attention`` and ``dtype`` are ``own``.

    Attributes:
        runs: that were profiled, one after another.
        power: of the samples in ``power.csv``; None without them.
        export: the file that the model was exported to; empty if it was not.
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

    @property
    def work(self) -> str:
        """What a step's time and energy depend on, in words."""
        return (
            f"{self.model}, {self.weights} weights of seed {self.seed}, {self.dtype}, "
            f"{self.attention} attention, {self.batch} prompts of {self.prompt_tokens} tokens, "
            f"rank {self.rank} of {self.ranks}, PyTorch {self.torch}, "
            f"transformers {self.transformers}"
        )

    def steps(self, decode: int) -> tuple[int, ...]:
        """The prefill, which is 0, and the decode step ``decode``, if any has been profiled.

        Raises:
            InputError: there are decode steps, but not this one.
        """
        last = max(0, self.new_tokens - 1)
        if last and not 0 < decode <= last:
            raise InputError(
                f"The profile of {self.model} has no decode step {decode}: give 1 to {last}."
            )
        return (0, decode) if last else (0,)

    def step_name(self, step: int) -> str:
        """The words for a step."""
        if not self.new_tokens:
            return "call"
        return "prefill" if step == 0 else f"decode step {step}"

    def tokens(self, step: int) -> int | None:
        """Of the prompts for the prefill, generated ones for a decode step; None for a function."""
        if not self.new_tokens:
            return None
        return self.batch * (self.prompt_tokens if step == 0 else 1)


def read_profile(folder: Path) -> ProfileRecord:
    """What a run's folder is the profile of.

    Raises:
        InputError: it has no profile, or a damaged one.
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
        _check(record)
    except FormError as error:
        raise InputError(f"{path} is damaged ({error}): profile again.") from None
    if record.schema_version != SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {record.schema_version}, but this release reads version "
            f"{SCHEMA_VERSION}: use the release that wrote it, or profile again."
        )
    return record


def _check(record: ProfileRecord) -> None:
    if not 0 <= record.rank < record.ranks <= _MOST_RANKS:
        raise FormError(f"it is of rank {record.rank} of {record.ranks}")
    for name in ("prompt_tokens", "new_tokens", "batch"):
        if (number := getattr(record, name)) < 0:
            raise FormError(f"{name} is {number}")


def rank_folders(folder: Path) -> list[Path]:
    """The folders of the ranks, where several share the model; none for a single GPU.

    Raises:
        InputError: the folder's profile is damaged, or a rank's folder is missing.
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
    """Where a rank writes to, in the folder of a profile of several."""
    return folder / f"rank{rank}"


def list_in(folder: Path) -> Path | None:
    """The file with unique kernels in a folder: that of another tool, or else our own.

    Raises:
        InputError: there are several.
    """
    others = sorted(one for one in folder.glob(f"*_{UNIQUE_JSONL}") if is_file(one))
    if len(others) > 1:
        raise InputError(
            f"The folder {folder} has {others[0].name} and {others[1].name}: name one of them."
        )
    own = folder / UNIQUE_JSONL
    return others[0] if others else own if is_file(own) else None


def source_in(folder: Path) -> Path:
    """The trace of a run's folder, or else its file of unique kernels.

    Raises:
        InputError: it has neither.
    """
    for name in TRACES:
        if is_file(folder / name):
            return folder / name
    if (found := list_in(folder)) is not None:
        return found
    raise InputError(
        f"The folder {folder} has no {TRACES[0]} and no {UNIQUE_JSONL}: name a folder of "
        "gpuenergy profile, or a trace."
    )
