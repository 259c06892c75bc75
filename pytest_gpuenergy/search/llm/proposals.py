"""A language model as a source of moves, beside the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.search.llm.answer import Answer, read_answer, summary_of, updated_launch
from pytest_gpuenergy.search.llm.answer_log import Exchange
from pytest_gpuenergy.search.llm.consultant import Consultant
from pytest_gpuenergy.search.llm.patch import PatchError, apply_patch
from pytest_gpuenergy.search.llm.protocol import Question
from pytest_gpuenergy.search.llm.request import (
    VOCABULARY,
    Context,
    first_question,
    second_question,
)
from pytest_gpuenergy.search.move import REGIONS, Application, Region
from pytest_gpuenergy.search.result import Result
from pytest_gpuenergy.search.search_state import Node
from pytest_gpuenergy.search.source import cuda_checks, triton_checks
from pytest_gpuenergy.search.source.text_checks import additions
from pytest_gpuenergy.search.spec import KernelSpec
from pytest_gpuenergy.search.state import Language, State
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
        return Application(answer.move, f"{summary_of(answer)} by {exchange.model}", changed)

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
