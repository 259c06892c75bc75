"""Asks an endpoint within a budget, and never the same twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.search.llm.endpoint import AwayError, Endpoint, LlmSettings, Question, Reply
from pytest_gpuenergy.search.running.search_state import read_lines
from pytest_gpuenergy.support import FormError, drop_torn_line, encode, open_file
from pytest_gpuenergy.tuning import writing

MOST_OUTPUT_TOKENS = 16_384
"""Of one answer, what the model thinks included."""
_LEAST_OUTPUT_TOKENS = 1_024
"""With fewer an answer would be cut off, and paid for nothing."""


@dataclass
class Consultant:
    """Asks about the states of one kernel.

    Attributes:
        endpoint: that is asked; shared by all kernels of a command.
        log: of the exchanges, those of earlier runs included.
        tell: called with one sentence when the rules take over.
    """

    endpoint: Endpoint
    log: AnswerLog
    tell: Callable[[str], None]
    _told: bool = field(default=False, repr=False)

    @property
    def settings(self) -> LlmSettings:
        """Those of the endpoint."""
        return self.endpoint.settings

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens of all questions and of all answers so far."""
        every = self.log.exchanges.values()
        return sum(one.input_tokens for one in every), sum(one.output_tokens for one in every)

    def ask(self, state_id: str, turn: int, question: Question) -> Exchange:
        """Ask, unless this was asked before or the budget is spent.

        Raises:
            OutputError: the exchange cannot be written.
        """
        known = self.log.exchanges.get((state_id, turn))
        if known is not None:
            return known
        known_away = self.endpoint.away
        exchange = self._exchange(state_id, turn, question)
        self.log.add(exchange)
        if exchange.missing == "budget" or (exchange.missing == "away" and not known_away):
            self._tell(exchange.why)
        return exchange

    def _exchange(self, state_id: str, turn: int, question: Question) -> Exchange:
        unanswered = Exchange(state=state_id, turn=turn, model=self.settings.model)
        # A token is a byte at least.
        least = len(encode(question))
        most = self._most_output_tokens(least)
        if most < _LEAST_OUTPUT_TOKENS:
            return replace(unanswered, missing="budget", why="its budget is spent")
        try:
            reply = self.endpoint.ask(question, most)
        except AwayError as error:
            return replace(unanswered, missing="away", why=str(error))
        except FormError as error:
            garbled = replace(unanswered, missing="garbled", why=str(error))
            return _with_tokens(garbled, Reply(), least, most)
        return _with_tokens(unanswered, reply, least, most)

    def _most_output_tokens(self, input_tokens: int) -> int:
        """How long an answer may be, so that the budget holds whatever the model does."""
        settings = self.settings
        used = self.tokens
        most = MOST_OUTPUT_TOKENS
        if settings.max_tokens is not None:
            most = min(most, settings.max_tokens - sum(used) - input_tokens)
        if settings.max_usd is not None and settings.prices is not None:
            left_usd = settings.max_usd - settings.prices.of(used[0] + input_tokens, used[1])
            price = settings.prices.output_usd / 1e6
            if left_usd < 0 or left_usd < most * price:
                most = max(0, int(left_usd / price)) if price else 0
        return most

    def _tell(self, why: str) -> None:
        if not self._told:
            self._told = True
            self.tell(f"{self.settings.model} is not asked any more, because {why}: rules only.")


def _with_tokens(exchange: Exchange, reply: Reply, input_tokens: int, most: int) -> Exchange:
    """With what counts against the budget: the most possible, if the endpoint does not say."""
    return replace(
        exchange,
        reply=reply,
        input_tokens=input_tokens if reply.input_tokens is None else reply.input_tokens,
        output_tokens=most if reply.output_tokens is None else reply.output_tokens,
    )


FILE_NAME = "llm.jsonl"
_LARGEST_BYTES = 1 << 30

Missing = Literal["", "away", "budget", "garbled"]


class Exchange(Struct, frozen=True, kw_only=True):
    """A question and what came back.

    Attributes:
        state: id of the state that it was about.
        turn: 0 of the first question about it, 1 of the second.
        model: that was asked.
        missing: why there is no reply; empty if there is one.
        why: the same in words.
        reply: of the model.
        input_tokens, output_tokens: that count against the budget.
    """

    state: str
    turn: int
    model: str
    missing: Missing = ""
    why: str = ""
    reply: Reply = Reply()
    input_tokens: int = 0
    output_tokens: int = 0


class AnswerLog:
    """The exchanges of a search, on disk.

    Args:
        folder: of the kernel, which exists and is locked by the caller.

    Attributes:
        exchanges: by the state and the turn, in the order of the questions.

    Raises:
        InputError: the file is damaged.
        OutputError: it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self.exchanges: dict[tuple[str, int], Exchange] = {}
        with writing(self._path):
            open(self._path, "a", opener=open_file).close()
            drop_torn_line(self._path)
        read = read_lines(self._path, "list of answers", Exchange, _LARGEST_BYTES)
        self.exchanges = {(one.state, one.turn): one for one in read}

    def add(self, exchange: Exchange) -> None:
        """Append an exchange.

        Raises:
            OutputError: it cannot be written.
        """
        with (
            writing(self._path),
            open(self._path, "a", encoding="utf-8", opener=open_file) as stream,
        ):
            stream.write(encode(exchange).decode() + "\n")
        self.exchanges[exchange.state, exchange.turn] = exchange
