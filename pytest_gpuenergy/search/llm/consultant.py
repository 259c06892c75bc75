"""Asks an endpoint within a budget, and never the same twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from pytest_gpuenergy.search.llm.answer_log import AnswerLog, Exchange
from pytest_gpuenergy.search.llm.endpoint import AwayError, Endpoint
from pytest_gpuenergy.search.llm.protocol import Question, Reply
from pytest_gpuenergy.search.llm.settings import LlmSettings
from pytest_gpuenergy.support import FormError, encode

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
