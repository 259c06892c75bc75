"""Moves by a language model, which is asked for a diff of a state; it is applied and checked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from pytest_gpuenergy.search.analysis.text_checks import additions, assembler_statements
from pytest_gpuenergy.search.llm.consultant import Consultant, LlmExchange
from pytest_gpuenergy.search.llm.endpoint import Question
from pytest_gpuenergy.search.llm.request import (
    VOCABULARY,
    Context,
    LlmAnswer,
    change_label,
    first_question,
    read_answer,
    second_question,
    updated_launch,
)
from pytest_gpuenergy.search.moves.move import REGIONS, Application, Region
from pytest_gpuenergy.search.source.triton_checks import ModuleError
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, Language, State
from pytest_gpuenergy.search.validation.result import Result, SearchNode
from pytest_gpuenergy.support import FormError

_HUNK_HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")


class PatchError(ValueError):
    """The diff does not apply; the message is a clause without a period."""


def apply_patch(diff: str, text: str) -> str:
    """Return the text after applying a diff.

    A hunk is applied where its header says if its lines are found there, and otherwise at the only
    place where they are. The names of files and notes about the last newline are ignored.

    Args:
        diff: a unified diff of one file.
        text: the content of the file.

    Raises:
        PatchError: ``diff`` is not a unified diff, or the lines of a hunk are not found, or are
            found in several places.
    """
    lines, diff_lines = text.split("\n"), diff.rstrip("\n").split("\n")
    starts = [k for k, line in enumerate(diff_lines) if line.startswith("@@")]
    if not starts:
        raise PatchError("it is not a unified diff: it has no hunk")
    patched: list[str] = []
    consumed = 0
    ends = [*starts[1:], len(diff_lines)]
    for number, (start, end) in enumerate(zip(starts, ends, strict=True), 1):
        old, new = _hunk(number, diff_lines[start + 1 : end])
        places = [k for k in range(len(lines) - len(old) + 1) if lines[k : k + len(old)] == old]
        header = _HUNK_HEADER.match(diff_lines[start])
        if header and (int(header[2] or 1), int(header[3] or 1)) == (len(old), len(new)):
            stated = int(header[1]) - 1  # relied on only if the header's counts are right
            places = [stated] if stated in places else places
        if not places:
            raise PatchError(f"the lines of hunk {number} are not in the source")
        if len(places) > 1:
            raise PatchError(f"hunk {number} fits in {len(places)} places of the source")
        if places[0] < consumed:
            raise PatchError(f"hunk {number} overlaps the one before it, or precedes it")
        patched += [*lines[consumed : places[0]], *new]
        consumed = places[0] + len(old)
    return "\n".join([*patched, *lines[consumed:]])


def _hunk(number: int, body: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the lines that a hunk finds, and those that replace them."""
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
    return old, new


Reason = Literal[
    "away",  # the endpoint does not answer
    "budget",  # the budget is spent
    "garbled",  # the reply does not follow the protocol or the schema
    "cut_off",  # the reply is incomplete
    "declined",  # the model declines
    "move",  # the move is not in the vocabulary
    "patch",  # the diff does not apply, and no whole source follows
    "launch",  # the launch plan cannot be used
    "unchanged",  # nothing changes
    "syntax",  # the text cannot be parsed
    "unsafe",  # the text contains something that no proposal may add
]
"""The reasons for having no proposal, as the folder of a search records them."""


class _RefusedError(Exception):
    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


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
        self._proposed: set[str] = set()
        """The ids of the states that the model has proposed."""

    @property
    def prior(self) -> float:
        """The gain to expect of a proposal, as the natural logarithm of a speedup."""
        return self.consultant.settings.prior

    def has_proposed(self, application: Application) -> bool:
        """Return whether the model has proposed an application."""
        return application.state.id in self._proposed

    def learn(self, node: SearchNode, result: Result) -> None:
        """Take a result into account, which later questions mention; the baseline comes first."""
        self._results[node.id] = result
        self._nodes.append(node)

    def applications(self, state: State, spec: KernelSpec) -> Iterator[Application]:
        """Yield the proposal for a state, if there is one.

        Raises:
            OutputError: the exchange with the model cannot be written.
        """
        result = self._results.get(state.id)
        context = Context(
            result,
            self.gpu,
            self._nodes[0].time_ms if self._nodes else None,
            {} if result is None else self.regions_of(result),
            self._nodes[1:],
        )
        event = {"id": state.id, "model": self.consultant.settings.model}
        try:
            application = self._application(state, spec, context)
        except _RefusedError as error:
            self.counts[error.reason] += 1
            self.note("llm", **event, outcome=error.reason, message=str(error))
            return
        self.counts["proposals"] += 1
        self.note("llm", **event, outcome="proposal", move=application.move, what=application.what)
        self._proposed.add(application.state.id)
        yield application

    def lines(self) -> Iterator[str]:
        """Yield a summary of the questions so far, as Markdown."""
        if not self.counts:
            return
        parts = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        input_tokens, output_tokens = self.consultant.tokens
        settings = self.consultant.settings
        price = ""
        if settings.prices is not None:
            price = f", ${settings.prices.of(input_tokens, output_tokens):.4f}"
        yield ""
        yield (
            f"Proposals of {settings.model}: {parts}; {input_tokens} tokens in, {output_tokens} "
            f"tokens out{price}."
        )

    def _application(self, state: State, spec: KernelSpec, context: Context) -> Application:
        question = first_question(state, spec, context)
        exchange, answer = self._ask(state, 0, question)
        try:
            source = apply_patch(answer.diff, state.source) if answer.diff else state.source
        except PatchError as error:
            self.counts["second_questions"] += 1
            retry = second_question(question, exchange.reply.text, str(error))
            _, answer = self._ask(state, 1, retry)
            source = answer.source
            if not source.strip():
                raise _RefusedError("patch", f"{error}, and no source follows") from None
        try:
            launch = updated_launch(replace(state, source=source), answer.launch, spec)
        except FormError as error:
            raise _RefusedError("launch", str(error)) from None
        changed = State(state.language, source, launch)
        if changed.id == state.id:
            raise _RefusedError("unchanged", "it changes nothing")
        try:
            added = additions(changed, state)
        except ModuleError as error:
            raise _RefusedError("syntax", str(error)) from None
        if added:
            raise _RefusedError("unsafe", f"it adds {', '.join(sorted(added))}")
        if assembler_statements(changed) > assembler_statements(state):
            self.counts["inline_assembler"] += 1
        return Application(answer.move, f"{change_label(answer)} by {exchange.model}", changed)

    def _ask(self, state: State, turn: int, question: Question) -> tuple[LlmExchange, LlmAnswer]:
        exchange = self.consultant.ask(state.id, turn, question)
        if exchange.missing:
            raise _RefusedError(exchange.missing, exchange.why)
        if exchange.reply.stopped:
            raise _RefusedError(exchange.reply.stopped, "the model gave no complete answer")
        try:
            answer = read_answer(exchange.reply.text)
        except FormError as error:
            raise _RefusedError("garbled", str(error)) from None
        if answer.move not in VOCABULARY:
            raise _RefusedError("move", f"{answer.move[:40]!r} is not a move of the vocabulary")
        return exchange, answer
