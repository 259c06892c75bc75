"""From a trace to its unique kernels, how each can be replayed, and the files of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pytest_gpuenergy.replay.clocks import CLOCK
from pytest_gpuenergy.replay.extract.exchanges import Exchanges, merged, side_by_side
from pytest_gpuenergy.replay.extract.kernel_list import read_list
from pytest_gpuenergy.replay.extract.trace import (
    Launch,
    Sizes,
    host_operators,
    launches,
    read_trace,
)
from pytest_gpuenergy.replay.extract.unique_kernels import (
    TIERS,
    Signature,
    UniqueKernel,
    identity,
    signature_of,
    unique_kernels,
)
from pytest_gpuenergy.replay.power import POWER_CSV, PowerCurve, Span, read_power
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
class Extraction:
    """What ran on the GPU in one trace.

    Attributes:
        launches: in the order of their beginning; none where a file told of unique kernels alone.
        kernels: the unique ones, the most total time first.
        signatures: of these, in the same order.
        clock: begin and end of the annotations in which the host's clock was read.
        power: of the card meanwhile; None if it is not known.
        notes: sentences without a period that say what of a file was not understood.
        exchanges: between the GPUs that share the model; None if there is one, or none.
    """

    launches: Sequence[Launch]
    kernels: Sequence[UniqueKernel]
    signatures: Sequence[Signature]
    clock: Sequence[Span] = ()
    power: PowerCurve | None = None
    notes: Sequence[str] = ()
    exchanges: Exchanges | None = None

    @property
    def on_host(self) -> bool:
        """Whether these are operators of the host, where there was no GPU."""
        return self.kernels[0].work == "operator"

    @property
    def runs(self) -> int | None:
        """How often the program ran, where the trace tells it."""
        return len({one.run for one in self.launches if one.run is not None}) or None

    @property
    def gpu_time_us(self) -> float:
        """The sum of all durations; launches on several streams at once each count."""
        return sum(one.total_us for one in self.kernels)

    @property
    def calls(self) -> int | None:
        """The number of launches; None if it is not known of all kernels."""
        known = [one.calls for one in self.kernels if one.calls is not None]
        return sum(known) if len(known) == len(self.kernels) else None

    @property
    def busy_us(self) -> float | None:
        """The time in which at least one of them ran; None if it is not known when they did."""
        if not self.launches:
            return None
        busy_us, until_us = 0.0, float("-inf")
        for one in self.launches:
            busy_us += max(0.0, one.end_us - max(until_us, one.begin_us))
            until_us = max(until_us, one.end_us)
        return busy_us

    @property
    def span_us(self) -> float | None:
        """From the beginning of the first to the end of the last; None as for `busy_us`."""
        if not self.launches:
            return None
        end_us = max(one.end_us for one in self.launches)
        return end_us - self.launches[0].begin_us

    @property
    def time_coverage(self) -> float:
        """The part of `gpu_time_us` that can be replayed."""
        return self._replayable_us / self.gpu_time_us if self.gpu_time_us else 0.0

    @property
    def call_coverage(self) -> float | None:
        """The part of the launches that can be replayed; None as for `calls`."""
        replayable = [kernel.calls or 0 for kernel, one in self._pairs if one.missing is None]
        return sum(replayable) / self.calls if self.calls else None

    @property
    def _replayable_us(self) -> float:
        return sum(kernel.total_us for kernel, one in self._pairs if one.missing is None)

    @property
    def _pairs(self) -> Iterable[tuple[UniqueKernel, Signature]]:
        return zip(self.kernels, self.signatures, strict=True)


def extract_kernels(source: Path, *, host: bool = False) -> Extraction:
    """Extract the kernels of a trace, or of a file of unique kernels.

    Args:
        source: the trace, the file, or the folder of a run with one of them; of several ranks, all
            are extracted.
        host: take the host's operators for kernels, where there is no GPU.

    Raises:
        InputError: it is none of these, nothing in it ran on a GPU, or the ranks' do not match.
    """
    if not is_folder(source):
        return _extract(source, host=host)
    host = host or _was_profiled_on_host(source)
    if ranks := rank_folders(source):
        return _of_ranks([_read(source_in(folder), host=host) for folder in ranks], host=host)
    found = _extract(source_in(source), host=host)
    curve = source / POWER_CSV
    return replace(found, power=read_power(curve)) if is_file(curve) else found


def _was_profiled_on_host(folder: Path) -> bool:
    return is_file(folder / PROFILE_JSON) and read_profile(folder).device == HOST


def _extract(path: Path, *, host: bool) -> Extraction:
    if ".jsonl" in path.suffixes:
        listed = read_list(path)
        return Extraction(
            (),
            [one.kernel for one in listed.kernels],
            [signature_of(one.kernel.id, one.launch) for one in listed.kernels],
            notes=listed.notes,
        )
    found, clock = _read(path, host=host)
    return replace(_of_launches(found), clock=clock)


def _of_ranks(ranks: Sequence[_Trace], *, host: bool) -> Extraction:
    by_rank = [one.launches for one in ranks]
    if host:  # operators that call others last longer than they say
        return _of_launches(side_by_side(by_rank))
    found, exchanges = merged(by_rank)
    return replace(_of_launches(found), exchanges=exchanges)


def _of_launches(found: Sequence[Launch]) -> Extraction:
    unique = unique_kernels(found)
    return Extraction(
        found,
        [kernel for kernel, _ in unique],
        [signature_of(kernel.id, group[0]) for kernel, group in unique],
    )


class _Trace(NamedTuple):
    """What ran in a trace, and where the host's clock was read."""

    launches: list[Launch]
    clock: list[Span]


def _read(path: Path, *, host: bool) -> _Trace:
    events = read_trace(path)
    found = host_operators(events) if host else launches(events)
    if not found:
        raise InputError(
            f"Nothing in the trace {path} ran on a GPU: profile with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] where there is one."
        )
    clocks = [one for one in events if one.category == "annotation" and one.name == CLOCK]
    return _Trace(found, [(one.ts, one.end) for one in clocks])


def write_extraction(found: Extraction, folder: Path) -> None:
    """Write the files to ``folder``, which is made if need be: those of launches only with some.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if found.launches:
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
        "launches": found.calls,
        "runs": found.runs,
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
        *(one.dispatched, one.phase, one.run, one.step, one.layer, one.call),
        *(one.begin_us, one.duration_us),
        *(_text(one.grid), _text(one.block), one.shared_memory_bytes, one.registers, one.bytes),
        *(one.device, one.stream, one.correlation, one.rank),
    ]


def _text(sizes: Sizes | None) -> str | None:
    return None if sizes is None else "x".join(map(str, sizes))
