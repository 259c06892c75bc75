"""Extracts the launches and unique kernels of a trace, and writes them to files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_gpuenergy.replay.extract.exchanges import Exchanges, merged, side_by_side
from pytest_gpuenergy.replay.extract.kernel_list import read_list
from pytest_gpuenergy.replay.extract.trace import (
    TraceLaunch,
    host_operators,
    in_graphs,
    launches,
    read_trace,
    unread_plans,
)
from pytest_gpuenergy.replay.extract.unique_kernels import (
    TIERS,
    Signature,
    UniqueKernel,
    identity,
    replay_signature,
    unique_kernels,
)
from pytest_gpuenergy.replay.power import CLOCK, POWER_CSV, PowerCurve, Span, read_power
from pytest_gpuenergy.replay.profile_folder import (
    HOST,
    PROFILE_JSON,
    UNIQUE_JSONL,
    rank_folders,
    read_profile,
    source_in,
)
from pytest_gpuenergy.support import (
    Cell,
    InputError,
    csv_text,
    dump,
    encode,
    is_file,
    is_folder,
    plain,
    write_atomically,
)

SCHEMA_VERSION = 1

LAUNCHES_JSONL = "kernel_launch_params.jsonl"
LAUNCHES_CSV = "kernel_launch_params.csv"
SIGNATURES_JSON = "kernel_signatures.json"
EXCHANGES_JSON = "exchanges.json"

_COLUMNS = (
    *("kernel", "name", "work", "operator", "dispatched", "phase", "run", "step"),
    *("layer", "call", "begin_us"),
    *("duration_us", "grid", "block", "shared_memory_bytes", "registers", "bytes"),
    *("device", "stream", "correlation", "rank"),
)


@dataclass(frozen=True)
class KernelExtraction:
    """The kernels that ran on the GPU in one trace.

    Attributes:
        launches: The launches in the order of their begin; none for a list of unique kernels.
        kernels: The unique kernels, the most total time first.
        clock: Begin and end of the annotations in which the host's clock was read.
        power: The power of the card meanwhile; None if it is unknown.
        notes: Sentences without a period that say what of a file was not understood.
        exchanges: The exchanges between the GPUs that share the model; None for a single GPU, or
            for a program on the host.
    """

    launches: Sequence[TraceLaunch]
    kernels: Sequence[UniqueKernel]
    clock: Sequence[Span] = ()
    power: PowerCurve | None = None
    notes: Sequence[str] = ()
    exchanges: Exchanges | None = None

    @cached_property
    def identities(self) -> list[str]:
        """The id of the unique kernel that each launch belongs to."""
        return list(map(identity, self.launches))

    @cached_property
    def signatures(self) -> list[Signature]:
        """The way to replay each unique kernel, in the order of the kernels."""
        return list(map(replay_signature, self.kernels))

    @property
    def pairs(self) -> list[tuple[UniqueKernel, Signature]]:
        """Each unique kernel with its signature."""
        return list(zip(self.kernels, self.signatures, strict=True))

    @property
    def on_host(self) -> bool:
        """Whether the launches are operators of the host, because there was no GPU."""
        return self.kernels[0].work == "operator"

    @property
    def runs(self) -> int | None:
        """The number of runs of the program; None if the trace does not number them."""
        return len({launch.run for launch in self.launches if launch.run is not None}) or None

    @property
    def gpu_time_us(self) -> float:
        """The sum of all durations; launches on several streams at once each count."""
        return sum(kernel.total_us for kernel in self.kernels)

    @property
    def calls(self) -> int | None:
        """The number of launches; None if it is unknown for any kernel."""
        counts = [kernel.calls for kernel in self.kernels if kernel.calls is not None]
        return sum(counts) if len(counts) == len(self.kernels) else None

    @property
    def busy_us(self) -> float | None:
        """The time in which at least one launch ran; None if the launches are unknown."""
        if not self.launches:
            return None
        busy_us, until_us = 0.0, float("-inf")
        for launch in self.launches:
            busy_us += max(0.0, launch.end_us - max(until_us, launch.begin_us))
            until_us = max(until_us, launch.end_us)
        return busy_us

    @property
    def span_us(self) -> float | None:
        """The time from the first begin to the last end; None if the launches are unknown."""
        if not self.launches:
            return None
        end_us = max(launch.end_us for launch in self.launches)
        return end_us - self.launches[0].begin_us

    @property
    def time_coverage(self) -> float:
        """The part of `gpu_time_us` that can be replayed."""
        replayable = [kernel.total_us for kernel, how in self.pairs if how.missing is None]
        return sum(replayable) / self.gpu_time_us if self.gpu_time_us else 0.0

    @property
    def call_coverage(self) -> float | None:
        """The part of the launches that can be replayed; None if `calls` is."""
        replayable = [kernel.calls or 0 for kernel, how in self.pairs if how.missing is None]
        return sum(replayable) / self.calls if self.calls else None


def extract_kernels(source: Path, *, host: bool = False) -> KernelExtraction:
    """Extract the kernels of a trace, or of a list of unique kernels.

    Args:
        source: The trace, the list, or the folder of a profile, whose ranks are merged.
        host: Whether to take the host's operators for kernels, where there is no GPU.

    Raises:
        InputError: The source is none of these, nothing in it ran on a GPU, or the traces of the
            ranks do not match.
    """
    if not is_folder(source):
        return _extract_file(source, host=host)
    host = host or (is_file(source / PROFILE_JSON) and read_profile(source).device == HOST)
    if ranks := rank_folders(source):
        notes: list[str] = []
        by_rank = [_read_launches(source_in(folder), host=host, notes=notes)[0] for folder in ranks]
        if host:  # operators have no common end: their durations exclude those that they call
            found = side_by_side(by_rank)
            return KernelExtraction(found, unique_kernels(found), notes=notes)
        found, exchanges = merged(by_rank)
        return KernelExtraction(found, unique_kernels(found), notes=notes, exchanges=exchanges)
    extraction = _extract_file(source_in(source), host=host)
    curve = source / POWER_CSV
    return replace(extraction, power=read_power(curve)) if is_file(curve) else extraction


def _extract_file(path: Path, *, host: bool) -> KernelExtraction:
    notes: list[str] = []
    if ".jsonl" in path.suffixes:
        kernels, notes = read_list(path)
        return KernelExtraction((), kernels, notes=notes)
    found, clock = _read_launches(path, host=host, notes=notes)
    return KernelExtraction(found, unique_kernels(found), clock, notes=notes)


def _read_launches(
    path: Path, *, host: bool, notes: list[str]
) -> tuple[list[TraceLaunch], list[Span]]:
    """Return the launches of a trace, and the spans in which the host's clock was read."""
    events = read_trace(path, notes)
    found = host_operators(events) if host else launches(events)
    notes += unread_plans(events)
    if not found:
        left_out = f" ({'; '.join(notes)})" if notes else ""
        raise InputError(
            f"Nothing in the trace {path} ran on a GPU{left_out}: profile with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] where there is one."
        )
    if from_graphs := in_graphs(events, found):
        us = sum(launch.duration_us for launch in from_graphs)
        share = us / (sum(launch.duration_us for launch in found) or 1.0)
        notes.append(
            f"{len(from_graphs)} launches with {share:.1%} of the GPU time belong to CUDA graphs, "
            "whose operators a trace does not name: profile without graphs (vLLM: --enforce-eager, "
            "SGLang: --disable-cuda-graph)"
        )
    clocks = [event for event in events if event.category == "annotation" and event.name == CLOCK]
    return found, [(event.ts, event.end) for event in clocks]


def write_extraction(extraction: KernelExtraction, folder: Path) -> None:
    """Write the files of an extraction; those of launches only if there are any.

    Args:
        extraction: The extraction.
        folder: The folder to write to, which is made if need be.

    Raises:
        OSError: A file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if extraction.launches:
        rows = [
            {"kernel": key, **plain(launch)}
            for key, launch in zip(extraction.identities, extraction.launches, strict=True)
        ]
        write_atomically(folder / LAUNCHES_JSONL, _lines(rows))
        write_atomically(folder / LAUNCHES_CSV, csv_text([_COLUMNS, *map(_cells, rows)]))
    write_atomically(folder / UNIQUE_JSONL, _lines(extraction.kernels))
    document = {
        "schema_version": SCHEMA_VERSION,
        "gpu_time_us": extraction.gpu_time_us,
        "busy_us": extraction.busy_us,
        "span_us": extraction.span_us,
        "launches": extraction.calls,
        "runs": extraction.runs,
        "time_coverage": extraction.time_coverage,
        "call_coverage": extraction.call_coverage,
        "tiers": {str(number): what for number, what in TIERS.items()},
        "signatures": extraction.signatures,
    }
    write_atomically(folder / SIGNATURES_JSON, dump(document))
    if extraction.exchanges is not None:
        document = {"schema_version": SCHEMA_VERSION, **plain(extraction.exchanges)}
        write_atomically(folder / EXCHANGES_JSON, dump(document))


def _lines(records: Iterable[object]) -> bytes:
    return b"".join(encode(record) + b"\n" for record in records)


def _cells(row: Mapping[str, Any]) -> list[Cell]:
    """Return the columns of a launch: its operator by name, and sizes such as ``4x2x1``."""
    operator = row["operator"]
    sizes = {
        name: None if row[name] is None else "x".join(map(str, row[name]))
        for name in ("grid", "block")
    }
    shown = {**row, **sizes, "operator": None if operator is None else operator["name"]}
    return [shown[name] for name in _COLUMNS]
