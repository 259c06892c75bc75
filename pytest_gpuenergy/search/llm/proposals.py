"""A language model as a source of moves, beside the rules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.search.llm.consultant import Consultant, Exchange
from pytest_gpuenergy.search.llm.endpoint import Question
from pytest_gpuenergy.search.llm.request import (
    VOCABULARY,
    Answer,
    Context,
    first_question,
    label_of,
    read_answer,
    second_question,
    updated_launch,
)
from pytest_gpuenergy.search.moves.move import REGIONS, Application, Region
from pytest_gpuenergy.search.source import cuda_checks, triton_checks
from pytest_gpuenergy.search.source.text_checks import additions
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, Language, State
from pytest_gpuenergy.search.trust.result import Node, Result
from pytest_gpuenergy.support import FormError

Reason = (
    Literal["away", "budget", "garbled", "cut_off", "declined"]
    | Literal["move", "patch", "launch", "unchanged", "syntax", "unsafe"]
)
"""Why there is no proposal: the endpoint is away; the budget is spent; what came back is not of the
protocol or the schema; it is not complete; the model declines; the move is not of the vocabulary;
the diff does not apply, nor does a whole source follow; the launch plan cannot be used; nothing
changes; the text cannot be read; it contains what no proposal may add."""


class Refusal(Struct, frozen=True):
    """A state for which there is no proposal.

    Attributes:
        reason: see `Reason`.
        message: a clause.
    """

    reason: Reason
    message: str


class _RefusedError(Exception):
    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.refusal = Refusal(reason, message)


@dataclass
class LlmMoves:
    """Proposes at most one move for each state, as a `Move` does.

    Attributes:
        consultant: asks the model.
        gpu: name of the GPU.
        note: called with what became of each question, as fields of an event.
        regions_of: shares of a state's time by what it is spent on, if there is a model of it.
        counts: proposals, refusals by their reason, second questions and inline assembler.
    """

    consultant: Consultant
    gpu: str = ""
    note: Callable[..., None] = lambda *_, **__: None
    regions_of: Callable[[Result], Mapping[Region, float]] = lambda _: {}
    counts: Counter[str] = field(default_factory=Counter)

    name = "llm"
    languages: frozenset[Language] = frozenset({"cuda", "triton"})
    relieves: frozenset[Region] = frozenset(REGIONS)

    def __post_init__(self) -> None:
        self._results: dict[str, Result] = {}
        self._nodes: list[Node] = []
        self._made: set[str] = set()

    @property
    def prior(self) -> float:
        """The gain to expect of a proposal, as the natural logarithm of a speedup."""
        return self.consultant.settings.prior

    def has_made(self, application: Application) -> bool:
        """Whether an application is a proposal of this model."""
        return application.state.id in self._made

    def learn(self, node: Node, result: Result) -> None:
        """Take note of what was evaluated, which later questions mention; the baseline first."""
        self._results[node.id] = result
        self._nodes.append(node)

    def applications(self, state: State, spec: KernelSpec) -> Iterator[Application]:
        """The proposal for a state, if there is one."""
        found = self.suggest(state, spec, self._context(state))
        if isinstance(found, Application):
            yield found

    def suggest(self, state: State, spec: KernelSpec, context: Context) -> Application | Refusal:
        """Ask for a move, and check it.

        Raises:
            OutputError: what came back cannot be written.
        """
        found: Application | Refusal
        try:
            found = self._application(state, spec, context)
        except _RefusedError as error:
            found = error.refusal
        self._count(state, found)
        return found

    def lines(self) -> Iterator[str]:
        """What came of the questions so far, as Markdown."""
        if not self.counts:
            return
        parts = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        asked, answered = self.consultant.tokens
        settings = self.consultant.settings
        price = "" if settings.prices is None else f", ${settings.prices.of(asked, answered):.4f}"
        yield ""
        yield (
            f"Proposals of {settings.model}: {parts}; {asked} tokens in, {answered} tokens "
            f"out{price}."
        )

    def _context(self, state: State) -> Context:
        first = self._nodes[0].time_ms if self._nodes else None
        result = self._results.get(state.id)
        regions = {} if result is None else self.regions_of(result)
        return Context(result, self.gpu, first, regions, self._nodes[1:])

    def _application(self, state: State, spec: KernelSpec, context: Context) -> Application:
        question = first_question(state, spec, context)
        exchange = self._ask(state, 0, question)
        answer = _answer_in(exchange)
        _check_move(answer)
        try:
            source = apply_patch(answer.diff, state.source) if answer.diff else state.source
        except PatchError as error:
            answer = self._second(state, question, exchange, str(error))
            source = answer.source
        try:
            launch = updated_launch(replace(state, source=source), answer.launch, spec)
        except FormError as error:
            raise _RefusedError("launch", str(error)) from None
        changed = State(state.language, source, launch)
        self._check(state, changed)
        self._made.add(changed.id)
        return Application(answer.move, f"{label_of(answer)} by {exchange.model}", changed)

    def _second(self, state: State, question: Question, exchange: Exchange, why: str) -> Answer:
        """The answer to the second question, which has the whole source."""
        self.counts["second_questions"] += 1
        again = self._ask(state, 1, second_question(question, exchange.reply.text, why))
        answer = _answer_in(again)
        _check_move(answer)
        if not answer.source.strip():
            raise _RefusedError("patch", f"{why}, and no source follows")
        return answer

    def _ask(self, state: State, turn: int, question: Question) -> Exchange:
        exchange = self.consultant.ask(state.id, turn, question)
        if exchange.missing:
            raise _RefusedError(exchange.missing, exchange.why)
        if exchange.reply.stopped:
            raise _RefusedError(exchange.reply.stopped, "the model gave no complete answer")
        return exchange

    def _check(self, before: State, after: State) -> None:
        if after.id == before.id:
            raise _RefusedError("unchanged", "it changes nothing")
        try:
            added = additions(after, before)
        except triton_checks.ModuleError as error:
            raise _RefusedError("syntax", str(error)) from None
        if added:
            raise _RefusedError("unsafe", f"it adds {', '.join(sorted(added))}")
        checks = cuda_checks if after.language == "cuda" else triton_checks
        many = checks.assembler_statements
        if many(after.source) > many(before.source):
            self.counts["inline_assembler"] += 1

    def _count(self, state: State, found: Application | Refusal) -> None:
        fields: dict[str, Any] = {"id": state.id, "model": self.consultant.settings.model}
        if isinstance(found, Application):
            self.counts["proposals"] += 1
            fields |= {"outcome": "proposal", "move": found.move, "what": found.what}
        else:
            self.counts[found.reason] += 1
            fields |= {"outcome": found.reason, "message": found.message}
        self.note("llm", **fields)


def _answer_in(exchange: Exchange) -> Answer:
    try:
        return read_answer(exchange.reply.text)
    except FormError as error:
        raise _RefusedError("garbled", str(error)) from None


def _check_move(answer: Answer) -> None:
    if answer.move not in VOCABULARY:
        raise _RefusedError("move", f"{answer.move[:40]!r} is no move of the vocabulary")


_HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")


class PatchError(ValueError):
    """A diff does not apply; the message is a clause without a period."""


@dataclass(frozen=True)
class _Hunk:
    """Lines to find, and those that take their place.

    Attributes:
        number: of the hunk, from 1.
        old, new: the lines, without newlines.
        start: index of the line where the header says that it belongs, if the header's counts are
            those of its lines; otherwise None.
    """

    number: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    start: int | None


def apply_patch(diff: str, text: str) -> str:
    """The text after the change.

    A hunk belongs where its header says if its lines are found there, otherwise at the only place
    where they are. Names of files, and what is said of the last line's newline, do not matter.

    Args:
        diff: a unified diff of one file.
        text: the file.

    Raises:
        PatchError: it is no unified diff, or lines of it are not found, or in several places.
    """
    lines = text.split("\n")
    found: list[str] = []
    done = 0
    for hunk in _hunks(diff):
        place = _place(hunk, lines)
        if place < done:
            raise PatchError(f"hunk {hunk.number} overlaps the one before it, or precedes it")
        found += [*lines[done:place], *hunk.new]
        done = place + len(hunk.old)
    found += lines[done:]
    return "\n".join(found)


def _place(hunk: _Hunk, lines: Sequence[str]) -> int:
    old = list(hunk.old)
    places = [k for k in range(len(lines) - len(old) + 1) if lines[k : k + len(old)] == old]
    if hunk.start in places:
        return hunk.start
    if not places:
        raise PatchError(f"the lines of hunk {hunk.number} are not in the source")
    if len(places) > 1:
        raise PatchError(f"hunk {hunk.number} fits in {len(places)} places of the source")
    return places[0]


def _hunks(diff: str) -> Iterator[_Hunk]:
    lines = diff.rstrip("\n").split("\n")
    starts = [k for k, line in enumerate(lines) if line.startswith("@@")]
    if not starts:
        raise PatchError("it is not a unified diff: it has no hunk")
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(lines)], strict=True), 1):
        yield _hunk(number, lines[start], lines[start + 1 : end])


def _hunk(number: int, header: str, body: Sequence[str]) -> _Hunk:
    old: list[str] = []
    new: list[str] = []
    for line in body:
        kind, rest = line[:1] or " ", line[1:]  # editors drop the blank of an empty line
        if kind == "\\":
            continue
        if kind not in " -+":
            raise PatchError(f"hunk {number} has a line that begins with neither ' ', '-' nor '+'")
        if kind in " -":
            old.append(rest)
        if kind in " +":
            new.append(rest)
    if not old:
        raise PatchError(f"hunk {number} has no line of the source, so its place is unknown")
    return _Hunk(number, tuple(old), tuple(new), _start(header, len(old), len(new)))


def _start(header: str, old: int, new: int) -> int | None:
    match = _HEADER.match(header)
    if match is None or (int(match[2] or 1), int(match[3] or 1)) != (old, new):
        return None
    return int(match[1]) - 1
