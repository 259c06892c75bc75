"""A language model as a source of moves: asks for a change of a state, applies and checks it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.search.analysis.text_checks import additions, assembler_statements
from pytest_gpuenergy.search.llm.consultant import Consultant, LlmExchange
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
from pytest_gpuenergy.search.source.triton_checks import ModuleError
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, Language, State
from pytest_gpuenergy.search.trust.result import Result, SearchNode
from pytest_gpuenergy.support import FormError

Reason = (
    Literal["away", "budget", "garbled", "cut_off", "declined"]
    | Literal["move", "patch", "launch", "unchanged", "syntax", "unsafe"]
)
"""Why there is no proposal: the endpoint does not answer; the budget is spent; the reply does not
follow the protocol or the schema; it is incomplete; the model declines; the move is not in the
vocabulary; the diff does not apply and no whole source follows; the launch plan cannot be used;
nothing changes; the text cannot be parsed; it contains something that no proposal may add."""

_HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")


class Refusal(Struct, frozen=True):
    """Why there is no proposal for a state.

    Attributes:
        reason: the kind of reason, see `Reason`.
        message: the reason as a clause.
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
        gpu: the name of the GPU.
        note: called with the outcome of each question, as the fields of an event.
        regions_of: returns the estimated shares of a state's time by region.
        counts: the numbers of proposals, refusals by reason, second questions, and proposals with
            inline assembler.
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
        self._nodes: list[SearchNode] = []
        self._made: set[str] = set()

    @property
    def prior(self) -> float:
        """The gain to expect of a proposal, as the natural logarithm of a speedup."""
        return self.consultant.settings.prior

    def has_made(self, application: Application) -> bool:
        """Return whether an application is a proposal of this model."""
        return application.state.id in self._made

    def learn(self, node: SearchNode, result: Result) -> None:
        """Take a result into account, which later questions mention; the baseline comes first."""
        self._results[node.id] = result
        self._nodes.append(node)

    def applications(self, state: State, spec: KernelSpec) -> Iterator[Application]:
        """Yield the proposal for a state, if there is one."""
        first = self._nodes[0].time_ms if self._nodes else None
        result = self._results.get(state.id)
        regions = {} if result is None else self.regions_of(result)
        context = Context(result, self.gpu, first, regions, self._nodes[1:])
        found = self.suggest(state, spec, context)
        if isinstance(found, Application):
            yield found

    def suggest(self, state: State, spec: KernelSpec, context: Context) -> Application | Refusal:
        """Ask for a move and check it.

        Raises:
            OutputError: the exchange cannot be written.
        """
        found: Application | Refusal
        try:
            found = self._application(state, spec, context)
        except _RefusedError as error:
            found = error.refusal
        self._count(state, found)
        return found

    def lines(self) -> Iterator[str]:
        """Yield a summary of the questions so far, as Markdown."""
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

    def _second(self, state: State, question: Question, exchange: LlmExchange, why: str) -> Answer:
        """Ask the second question, whose answer has the whole source."""
        self.counts["second_questions"] += 1
        again = self._ask(state, 1, second_question(question, exchange.reply.text, why))
        answer = _answer_in(again)
        _check_move(answer)
        if not answer.source.strip():
            raise _RefusedError("patch", f"{why}, and no source follows")
        return answer

    def _ask(self, state: State, turn: int, question: Question) -> LlmExchange:
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
        except ModuleError as error:
            raise _RefusedError("syntax", str(error)) from None
        if added:
            raise _RefusedError("unsafe", f"it adds {', '.join(sorted(added))}")
        if assembler_statements(after) > assembler_statements(before):
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


def _answer_in(exchange: LlmExchange) -> Answer:
    try:
        return read_answer(exchange.reply.text)
    except FormError as error:
        raise _RefusedError("garbled", str(error)) from None


def _check_move(answer: Answer) -> None:
    if answer.move not in VOCABULARY:
        raise _RefusedError("move", f"{answer.move[:40]!r} is no move of the vocabulary")


class PatchError(ValueError):
    """The diff does not apply; the message is a clause without a period."""


@dataclass(frozen=True)
class _Hunk:
    """A hunk of a diff: lines to find, and the lines that replace them.

    Attributes:
        number: the number of the hunk, from 1.
        old: the lines to find, without newlines.
        new: the lines that replace them, without newlines.
        start: the index of the first line by the header; None if the header's counts are wrong.
    """

    number: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    start: int | None


def apply_patch(diff: str, text: str) -> str:
    """Return the text after applying a diff.

    A hunk is applied where its header says, if its lines are found there, and otherwise at the only
    place where they are. The names of files and notes about the last newline are ignored.

    Args:
        diff: a unified diff of one file.
        text: the content of the file.

    Raises:
        PatchError: the text is no unified diff, or the lines of a hunk are not found, or are found
            in several places.
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
