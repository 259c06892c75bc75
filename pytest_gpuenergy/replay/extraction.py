"""From a trace to its unique kernels, how each can be replayed, and the files of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gpuenergy.replay.exchanges import Exchanges, merged, side_by_side
from pytest_gpuenergy.replay.launches import Launch, Sizes, host_operators, launches
from pytest_gpuenergy.replay.profiling import rank_folders
from pytest_gpuenergy.replay.signature import TIERS, Signature, signature_of
from pytest_gpuenergy.replay.trace import read_trace
from pytest_gpuenergy.replay.unique import UniqueKernel, identity, unique_kernels
from pytest_gpuenergy.support.csv_output import Cell, csv_text
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.files import is_file, is_folder, write_atomically
from pytest_gpuenergy.support.json_output import dump, encode, plain

SCHEMA_VERSION = 1

LAUNCHES_JSONL = "kernel_launch_params.jsonl"
LAUNCHES_CSV = "kernel_launch_params.csv"
UNIQUE_JSONL = "unique_kernels_compute.jsonl"
SIGNATURES_JSON = "kernel_signatures.json"
EXCHANGES_JSON = "exchanges.json"

_TRACES = ("trace.json.gz", "trace.json")
_COLUMNS = (
    *("kernel", "name", "work", "operator", "dispatched", "phase", "step"),
    *("layer", "call", "begin_us"),
    *("duration_us", "grid", "block", "shared_memory_bytes", "registers", "bytes"),
    *("device", "stream", "correlation", "rank"),
)


@dataclass(frozen=True)
class Extraction:
    """What ran on the GPU in one trace.

    Attributes:
        launches: in the order of their beginning.
        kernels: the unique ones, the most total time first.
        signatures: of these, in the same order.
        exchanges: between the GPUs that share the model; None if there is one, or none.
    """

    launches: Sequence[Launch]
    kernels: Sequence[UniqueKernel]
    signatures: Sequence[Signature]
    exchanges: Exchanges | None = None

    @property
    def on_host(self) -> bool:
        """Whether these are operators of the host, where there was no GPU."""
        return self.launches[0].work == "operator"

    @property
    def gpu_time_us(self) -> float:
        """The sum of all durations; launches on several streams at once each count."""
        return sum(one.duration_us for one in self.launches)

    @property
    def busy_us(self) -> float:
        """The time in which at least one of them ran."""
        busy_us, until_us = 0.0, float("-inf")
        for one in self.launches:
            busy_us += max(0.0, one.end_us - max(until_us, one.begin_us))
            until_us = max(until_us, one.end_us)
        return busy_us

    @property
    def span_us(self) -> float:
        """From the beginning of the first to the end of the last."""
        end_us = max(one.end_us for one in self.launches)
        return end_us - self.launches[0].begin_us

    @property
    def time_coverage(self) -> float:
        """The part of `gpu_time_us` that can be replayed."""
        return self._replayable_us / self.gpu_time_us if self.gpu_time_us else 0.0

    @property
    def call_coverage(self) -> float:
        """The part of the launches that can be replayed."""
        calls = sum(kernel.calls for kernel, one in self._pairs if one.missing is None)
        return calls / len(self.launches)

    @property
    def _replayable_us(self) -> float:
        return sum(kernel.total_us for kernel, one in self._pairs if one.missing is None)

    @property
    def _pairs(self) -> Iterable[tuple[UniqueKernel, Signature]]:
        return zip(self.kernels, self.signatures, strict=True)


def trace_in(folder: Path) -> Path:
    """The trace of a run's folder.

    Raises:
        InputError: it has none.
    """
    for name in _TRACES:
        if is_file(folder / name):
            return folder / name
    raise InputError(
        f"The folder {folder} has no {_TRACES[0]}: name a folder of gpuenergy profile, or a trace."
    )


def extract(source: Path, *, host: bool = False) -> Extraction:
    """Extract the kernels of a trace.

    Args:
        source: the trace, or the folder of a run; of several ranks, all are extracted.
        host: take the host's operators for kernels, where there is no GPU.

    Raises:
        InputError: it is not a trace, nothing in it ran on a GPU, or the ranks' do not match.
    """
    paths = _traces(source)
    by_rank = [_launches(path, host=host) for path in paths]
    found, exchanges = by_rank[0], None
    if len(by_rank) > 1 and host:  # operators that call others last longer than they say
        found = side_by_side(by_rank)
    elif len(by_rank) > 1:
        found, exchanges = merged(by_rank)
    unique = unique_kernels(found)
    return Extraction(
        found,
        [kernel for kernel, _ in unique],
        [signature_of(kernel.id, group[0]) for kernel, group in unique],
        exchanges,
    )


def _traces(source: Path) -> list[Path]:
    """The trace itself, that of a run's folder, or those of its ranks."""
    if not is_folder(source):
        return [source]
    return [trace_in(folder) for folder in rank_folders(source) or [source]]


def _launches(path: Path, *, host: bool) -> list[Launch]:
    events = read_trace(path)
    found = host_operators(events) if host else launches(events)
    if not found:
        raise InputError(
            f"Nothing in the trace {path} ran on a GPU: profile with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] where there is one."
        )
    return found


def write_extraction(found: Extraction, folder: Path) -> None:
    """Write the files of an extraction to ``folder``, which is made if need be.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pairs = [(identity(one), one) for one in found.launches]
    lines = _lines({"kernel": kernel, **plain(one)} for kernel, one in pairs)
    write_atomically(folder / LAUNCHES_JSONL, lines)
    rows = [_COLUMNS, *(_row(kernel, one) for kernel, one in pairs)]
    write_atomically(folder / LAUNCHES_CSV, csv_text(rows))
    write_atomically(folder / UNIQUE_JSONL, _lines(found.kernels))
    write_atomically(folder / SIGNATURES_JSON, dump(_document(found)))
    if found.exchanges is not None:
        document = {"schema_version": SCHEMA_VERSION, **plain(found.exchanges)}
        write_atomically(folder / EXCHANGES_JSON, dump(document))


def _document(found: Extraction) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "gpu_time_us": found.gpu_time_us,
        "busy_us": found.busy_us,
        "span_us": found.span_us,
        "launches": len(found.launches),
        "time_coverage": found.time_coverage,
        "call_coverage": found.call_coverage,
        "tiers": {str(number): what for number, what in TIERS.items()},
        "signatures": found.signatures,
    }


def _lines(records: Iterable[object]) -> str:
    return "".join(encode(one).decode() + "\n" for one in records)


def _row(kernel: str, one: Launch) -> list[Cell]:
    return [
        *(kernel, one.name, one.work, None if one.operator is None else one.operator.name),
        *(one.dispatched, one.phase, one.step, one.layer, one.call, one.begin_us, one.duration_us),
        *(_text(one.grid), _text(one.block), one.shared_memory_bytes, one.registers, one.bytes),
        *(one.device, one.stream, one.correlation, one.rank),
    ]


def _text(sizes: Sizes | None) -> str | None:
    return None if sizes is None else "x".join(map(str, sizes))
