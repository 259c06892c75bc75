"""Asks an endpoint within a budget, and keeps every question and answer in ``llm.jsonl``.

A line is on disk before its answer is used, so that a search that is continued pays for no answer
twice, and finds the same proposals.
"""

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
"""Tokens of one answer, including the model's reasoning."""
_LEAST_OUTPUT_TOKENS = 1_024
"""Tokens without which no question is asked: the answer would be cut off and paid for nothing."""

FILE_NAME = "llm.jsonl"
_LARGEST_BYTES = 1 << 30
"""Size of the file of exchanges."""
Missing = Literal["", "away", "budget", "garbled"]


@dataclass
class Consultant:
    """Asks a model about the states of one kernel.

    Attributes:
        endpoint: the client of the model, which all kernels of a command share.
        log: the exchanges, including those of earlier runs.
        tell: called with one sentence when the model is not asked any more.
    """

    endpoint: Endpoint
    log: AnswerLog
    tell: Callable[[str], None]
    _told: bool = field(default=False, repr=False)

    @property
    def settings(self) -> LlmSettings:
        """The settings of the endpoint."""
        return self.endpoint.settings

    @property
    def tokens(self) -> tuple[int, int]:
        """The tokens of all questions and of all answers so far."""
        every = self.log.exchanges.values()
        return sum(record.input_tokens for record in every), sum(
            record.output_tokens for record in every
        )

    def ask(self, state_id: str, turn: int, question: Question) -> LlmExchange:
        """Ask, unless this was asked before or the budget is spent.

        Raises:
            OutputError: the exchange cannot be written.
        """
        earlier = self.log.exchanges.get((state_id, turn))
        if earlier is not None:
            return earlier
        was_away = self.endpoint.away
        exchange = self._exchange(state_id, turn, question)
        self.log.add(exchange)
        newly_away = exchange.missing == "away" and not was_away
        if (exchange.missing == "budget" or newly_away) and not self._told:
            self._told = True
            model = self.settings.model
            self.tell(f"{model} is not asked any more, because {exchange.why}: rules only.")
        return exchange

    def _exchange(self, state_id: str, turn: int, question: Question) -> LlmExchange:
        unanswered = LlmExchange(state=state_id, turn=turn, model=self.settings.model)
        input_tokens = len(encode(question))  # at most, because a token has at least one byte
        most = self._most_output_tokens(input_tokens)
        if most < _LEAST_OUTPUT_TOKENS:
            return replace(unanswered, missing="budget", why="its budget is spent")
        try:
            reply = self.endpoint.ask(question, most)
        except AwayError as error:
            return replace(unanswered, missing="away", why=str(error))
        except FormError as error:
            garbled = replace(unanswered, missing="garbled", why=str(error))
            return _with_tokens(garbled, Reply(), input_tokens, most)
        return _with_tokens(unanswered, reply, input_tokens, most)

    def _most_output_tokens(self, input_tokens: int) -> int:
        """Return how long an answer may be so that the budget holds whatever the model does."""
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


def _with_tokens(exchange: LlmExchange, reply: Reply, input_tokens: int, most: int) -> LlmExchange:
    """Add the tokens that count against the budget: the most possible if none were counted."""
    return replace(
        exchange,
        reply=reply,
        input_tokens=input_tokens if reply.input_tokens is None else reply.input_tokens,
        output_tokens=most if reply.output_tokens is None else reply.output_tokens,
    )


class LlmExchange(Struct, frozen=True, kw_only=True):
    """A question and its reply.

    Attributes:
        state: the id of the state that the question is about.
        turn: 0 for the first question about the state, 1 for the second.
        model: the name of the model.
        missing: the kind of reason why there is no reply; empty if there is one.
        why: the reason in words.
        reply: the reply of the model.
        input_tokens, output_tokens: the tokens that count against the budget.
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
        folder: the folder of the kernel, which the caller has locked.

    Attributes:
        exchanges: the exchanges by state and turn, in the order of the questions.

    Raises:
        InputError: the file is damaged.
        OutputError: the file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self.exchanges: dict[tuple[str, int], LlmExchange] = {}
        with writing(self._path):
            open(self._path, "a", opener=open_file).close()
            drop_torn_line(self._path)
        read = read_lines(self._path, "list of answers", LlmExchange, _LARGEST_BYTES)
        self.exchanges = {(record.state, record.turn): record for record in read}

    def add(self, exchange: LlmExchange) -> None:
        """Append an exchange.

        Raises:
            OutputError: the exchange cannot be written.
        """
        with (
            writing(self._path),
            open(self._path, "a", encoding="utf-8", opener=open_file) as stream,
        ):
            stream.write(encode(exchange).decode() + "\n")
        self.exchanges[exchange.state, exchange.turn] = exchange
