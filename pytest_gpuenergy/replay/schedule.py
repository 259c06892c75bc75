"""Reads what a server of language models runs: a list of steps, or a trace of requests to batch.

A trace becomes steps by this rule, in which a request runs from its prefill to its last token:

1. While fewer requests run than the batch may have, the first one that waits is prefilled, by
   itself. Its prefill generates its first token.
2. A decode step generates one token of each running request. Those that have all of theirs leave.
3. Both are repeated until no request runs or waits.
"""

from __future__ import annotations

import csv
import heapq
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from pytest_gpuenergy.support import FormError, InputError, convert, parse, read_bytes

Phase: TypeAlias = Literal["prefill", "decode"]

BUCKET_TOKENS = 256
"""The default multiple of tokens that the steps of a trace are rounded to."""
MAX_BATCH = 8
"""The default number of requests of a trace that run at once."""

_LARGEST_BYTES = 1 << 26
_LARGEST_NUMBER = 1 << 24
_MOST_TOKENS = 1 << 22
"""The number of tokens that a trace may generate; each step takes about 2 µs to batch."""
_SMALL_GRAPHS, _LARGEST_SMALL = 8, 256
"""The multiples of this number, up to the second, are batches that vLLM captures graphs for."""


class Step(Struct, frozen=True, order=True):
    """The size of a step.

    Attributes:
        phase: ``prefill`` or ``decode``.
        batch: The number of sequences.
        tokens: The tokens of each prompt for a prefill; for a decode step, the tokens of each
            sequence that its cache of keys and values holds before.
    """

    phase: Phase
    batch: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.phase} {self.batch} x {self.tokens}"


class Batching(Struct, frozen=True):
    """The rules by which requests are batched and their steps rounded to sizes to measure.

    Attributes:
        max_batch: The number of requests that run at once, at most.
        bucket_tokens: Prompts and mean contexts are rounded to the nearest multiple of this
            number, which is at least one multiple.
        step_ms: The duration of each step for the arrival of requests, in milliseconds. None lets
            all requests wait from the beginning, in the order of their arrival.
    """

    max_batch: int = MAX_BATCH
    bucket_tokens: int = BUCKET_TOKENS
    step_ms: float | None = None

    def rounded(self, tokens: float) -> int:
        """Return the nearest multiple of the bucket, which is not zero; the upper one of two."""
        return max(1, math.floor(tokens / self.bucket_tokens + 0.5)) * self.bucket_tokens

    def padded(self, batch: int) -> int:
        """Return the next batch that vLLM captures a CUDA graph for, at most the largest batch.

        These are 1, 2, 4, the multiples of 8 up to 256, and those of 16.
        """
        larger = next((size for size in (1, 2, 4) if size >= batch), 0)
        multiple = _SMALL_GRAPHS if batch <= _LARGEST_SMALL else 2 * _SMALL_GRAPHS
        return min(self.max_batch, larger or -(-batch // multiple) * multiple)

    @property
    def options(self) -> str:
        """The options of a command for this batching, each after a space; none for the default."""
        default = Batching()
        named = {
            "--max-batch": (self.max_batch, default.max_batch),
            "--bucket-tokens": (self.bucket_tokens, default.bucket_tokens),
            "--step-ms": (self.step_ms, default.step_ms),
        }
        return "".join(f" {name} {now}" for name, (now, then) in named.items() if now != then)


class Request(Struct, frozen=True):
    """A request of a trace.

    Attributes:
        arrival_s: The time of its arrival, in seconds from any beginning.
        prompt_tokens: The number of tokens of its prompt.
        new_tokens: The number of tokens that it generates, of which the prefill makes the first.
    """

    arrival_s: float
    prompt_tokens: int
    new_tokens: int


@dataclass(frozen=True)
class ServedStep:
    """A step of a trace, before its size is rounded.

    Attributes:
        phase: ``prefill`` or ``decode``.
        requests: The indices of the requests that it serves.
        read_tokens: The number of their tokens together: of the prompt, or in the cache before.
    """

    phase: Phase
    requests: Sequence[int]
    read_tokens: int


class Served(Struct):
    """The steps of one size, and the tokens that they process.

    Attributes:
        steps: The number of steps.
        read_tokens: The number of tokens that their sequences have: of prompts for a prefill, and
            in the cache before for a decode step.
        new_tokens: The number of tokens that they generate.
    """

    steps: int = 0
    read_tokens: int = 0
    new_tokens: int = 0

    def add(self, steps: int, read_tokens: int, new_tokens: int) -> None:
        """Add steps of this size."""
        self.steps += steps
        self.read_tokens += read_tokens
        self.new_tokens += new_tokens


@dataclass
class Schedule:
    """The steps that a server runs, by their size.

    Attributes:
        served: What the steps of each size process.
        requests: The number of requests, each with one prefill.
        batching: How requests were batched; None for a list of steps.
        steady: The part of ``served`` while the server is fully loaded: after as many requests as
            run at once have their first token, and until only as many are left without one. It is
            empty if there is no such part.
    """

    served: dict[Step, Served] = field(default_factory=dict)
    requests: int = 0
    batching: Batching | None = None
    steady: dict[Step, Served] = field(default_factory=dict)

    def rounding(self, phase: Phase) -> float:
        """Return the tokens that steps of the sizes to measure read, relative to the real ones."""
        of_phase = [(step, served) for step, served in self.served.items() if step.phase == phase]
        real = sum(served.read_tokens for _, served in of_phase)
        measured = sum(served.steps * step.batch * step.tokens for step, served in of_phase)
        return measured / real if real else 1.0


def read_schedule(path: Path, batching: Batching) -> Schedule:
    """Read a list of steps or a trace of requests, as CSV with a header or JSON lines.

    Steps have ``step`` (``prefill`` or ``decode``), ``batch``, ``tokens`` and optionally
    ``count``. Requests have ``prompt_tokens``, ``new_tokens`` and optionally ``arrival_s``.

    Args:
        path: The file.
        batching: How to batch the requests of a trace.

    Raises:
        InputError: The file cannot be read, a line is neither a step nor a request, or steps are
            to be batched.
    """
    content = read_bytes(path, "schedule", _LARGEST_BYTES)
    rows = list(_rows(path, content))
    if not rows:
        raise InputError(
            f"{path} has no steps: give lines such as prefill,8,1024,1 below the header "
            "step,batch,tokens,count, or requests below arrival_s,prompt_tokens,new_tokens."
        )
    first_line, first = rows[0]
    if "step" in first:
        if batching.options:
            raise InputError(
                f"{path} lists steps, which run as they are, and{batching.options} is for "
                "requests: leave it out."
            )
        return _listed(path, [_step(path, line, row) for line, row in rows])
    if "new_tokens" not in first:
        raise _refusal(
            path,
            first_line,
            f"it has the fields {', '.join(map(repr, first)) or 'of nothing'}, which are neither "
            "those of a step nor those of a request",
        )
    return batched([_request(path, line, row) for line, row in rows], batching, str(path))


def batched(requests: Sequence[Request], batching: Batching, name: str = "trace") -> Schedule:
    """Return the schedule of a trace, see the rule of this module.

    Raises:
        InputError: The trace generates more tokens than can be batched.
    """
    tokens = sum(request.new_tokens for request in requests)
    if tokens > _MOST_TOKENS:
        raise InputError(
            f"{name} generates {tokens} tokens, of which {_MOST_TOKENS} can be batched: give a "
            "part of it."
        )
    found = Schedule(requests=len(requests), batching=batching)
    begun, most, total = 0, batching.max_batch, len(requests)
    for served in served_steps(requests, batching):
        batch = len(served.requests)
        size = Step(
            served.phase, batching.padded(batch), batching.rounded(served.read_tokens / batch)
        )
        amounts = 1, served.read_tokens, batch
        found.served.setdefault(size, Served()).add(*amounts)
        # The tokens of the steps after the first moment, up to those of the second, count.
        if most <= begun < total - most:
            found.steady.setdefault(size, Served()).add(*amounts)
        begun += served.phase == "prefill"
    return found


def served_steps(requests: Sequence[Request], batching: Batching) -> Iterator[ServedStep]:
    """Yield the steps that serve a trace, in order, see the rule of this module."""
    waiting = sorted(range(len(requests)), key=lambda index: requests[index].arrival_s)
    waiting.reverse()
    running: dict[int, None] = {}
    ends: list[tuple[int, int]] = []
    decoded, contexts, now_s = 0, 0, -math.inf
    step_s = math.inf if batching.step_ms is None else batching.step_ms / 1e3
    while waiting or running:
        if not running and waiting:  # idle until the next request arrives
            now_s = max(now_s, requests[waiting[-1]].arrival_s)
        while waiting and len(running) < batching.max_batch:
            index = waiting[-1]
            request = requests[index]
            if step_s < math.inf and request.arrival_s > now_s:
                break
            waiting.pop()
            yield ServedStep("prefill", (index,), request.prompt_tokens)
            now_s += step_s
            if request.new_tokens > 1:
                running[index] = None
                heapq.heappush(ends, (decoded + request.new_tokens - 1, index))
                contexts += request.prompt_tokens
        if running:
            yield ServedStep("decode", tuple(running), contexts)
            now_s += step_s
            decoded += 1
            contexts += len(running)
            while ends and ends[0][0] == decoded:
                _, index = heapq.heappop(ends)
                del running[index]
                contexts -= requests[index].prompt_tokens + requests[index].new_tokens - 1


def _listed(path: Path, steps: Sequence[tuple[Step, int]]) -> Schedule:
    found = Schedule()
    for step, count in steps:
        sequences = step.batch * count
        if count:
            served = found.served.setdefault(step, Served())
            served.add(count, sequences * step.tokens, sequences)
        if step.phase == "prefill":
            found.requests += sequences
    if not found.served:
        raise InputError(f"All counts in {path} are 0: give one that is above.")
    return found


def _rows(path: Path, content: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the fields of each line that is not empty."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text in UTF-8: give CSV or JSON lines.") from None
    if text.lstrip().startswith("["):
        raise _refusal(path, 1, "it begins a list, where each line is an object by itself")
    if text.lstrip().startswith("{"):
        for line, content_of_line in enumerate(text.split("\n"), 1):
            if content_of_line.strip():
                try:
                    value = parse(content_of_line.encode())
                    yield line, convert(value, dict[str, Any], "the line")
                except FormError as error:
                    raise _refusal(path, line, str(error)) from None
        return
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] = []
    try:
        for cells in reader:
            row = [cell.strip() for cell in cells]
            if not any(row):
                continue
            if not header:
                header = [name.lower() for name in row]
                if "step" not in header and "new_tokens" not in header:
                    raise _refusal(path, reader.line_num, "it is no header of steps or requests")
                if len(set(header)) < len(header):
                    raise _refusal(path, reader.line_num, "its header names a column twice")
                continue
            if len(row) != len(header):
                raise _refusal(
                    path,
                    reader.line_num,
                    f"it has {len(row)} columns, and the header {len(header)}",
                )
            pairs = zip(header, row, strict=True)
            yield reader.line_num, {name: _value(cell) for name, cell in pairs if cell}
    except csv.Error as error:
        raise _refusal(path, reader.line_num, f"it is no CSV: {error}") from None


def _value(cell: str) -> int | float | str:
    """Return a number if a cell of a table is one, otherwise its text."""
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def _step(path: Path, line: int, row: Mapping[str, Any]) -> tuple[Step, int]:
    _check_fields(path, line, row, ("step", "batch", "tokens"), ("count",))
    phase = row["step"]
    if phase not in ("prefill", "decode"):
        raise _refusal(path, line, f"its step is {phase!r}, and neither 'prefill' nor 'decode'")
    batch, tokens = (_number(path, line, row, name, least=1) for name in ("batch", "tokens"))
    count = _number(path, line, row, "count", least=0) if "count" in row else 1
    return Step(phase, batch, tokens), count


def _request(path: Path, line: int, row: Mapping[str, Any]) -> Request:
    _check_fields(path, line, row, ("prompt_tokens", "new_tokens"), ("arrival_s",))
    arrival_s = row.get("arrival_s", 0.0)
    is_number = isinstance(arrival_s, int | float) and not isinstance(arrival_s, bool)
    if not is_number or not abs(arrival_s) < 1e12:
        raise _refusal(path, line, f"its arrival_s is {arrival_s!r}, which is no time in seconds")
    prompt, new = (
        _number(path, line, row, name, least=1) for name in ("prompt_tokens", "new_tokens")
    )
    return Request(float(arrival_s), prompt, new)


def _check_fields(
    path: Path,
    line: int,
    row: Mapping[str, Any],
    needed: Sequence[str],
    optional: Sequence[str],
) -> None:
    if missing := [name for name in needed if name not in row]:
        raise _refusal(path, line, f"it has no {missing[0]}")
    if unknown := [name for name in row if name not in (*needed, *optional)]:
        known = ", ".join((*needed, *optional))
        raise _refusal(path, line, f"it has a field {unknown[0]!r} that is none of {known}")


def _number(path: Path, line: int, row: Mapping[str, Any], name: str, *, least: int) -> int:
    found = row[name]
    if isinstance(found, float) and found.is_integer():
        found = int(found)  # 8.0, as a table of numbers that lacks one is written
    if type(found) is not int or not least <= found <= _LARGEST_NUMBER:
        raise _refusal(
            path,
            line,
            f"its {name} is {found!r}, which is no whole number from {least} to {_LARGEST_NUMBER}",
        )
    return found


def _refusal(path: Path, line: int, why: str) -> InputError:
    return InputError(
        f"Line {line} of {path} cannot be used ({why}): give steps as step,batch,tokens,count or "
        "requests as arrival_s,prompt_tokens,new_tokens."
    )
