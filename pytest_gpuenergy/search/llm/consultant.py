"""Asks an endpoint within a budget, and keeps every question and answer in ``llm.jsonl``.

A line is on disk before its answer is used, so that a search that is continued pays for no answer
twice, and finds the same proposals.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.search.llm.endpoint import AwayError, Endpoint, LlmSettings, Question, Reply
from pytest_gpuenergy.support import FormError, drop_torn_line, encode, open_file, read_records
from pytest_gpuenergy.tuning import writing

MAX_OUTPUT_TOKENS = 16_384
"""Tokens of one answer, including the model's reasoning."""
_MIN_OUTPUT_TOKENS = 1_024
"""Tokens without which no question is asked: the answer would be cut off and paid for nothing."""

FILE_NAME = "llm.jsonl"
_MAX_BYTES = 1 << 30
"""Size of the file of exchanges."""
Missing = Literal["", "away", "budget", "garbled"]


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


class Consultant:
    """Asks a model about the states of one kernel, and keeps the exchanges on disk.

    Args:
        endpoint: the client of the model, which all kernels of a command share.
        folder: the folder of the kernel, which the caller has locked.
        tell: called with one sentence when the model is not asked any more.

    Raises:
        InputError: the file of exchanges is damaged.
        OutputError: the file cannot be written.
    """

    def __init__(self, endpoint: Endpoint, folder: Path, tell: Callable[[str], None]) -> None:
        self._endpoint = endpoint
        self._path = folder / FILE_NAME
        self._tell = tell
        self._told = False
        with writing(self._path):
            open(self._path, "a", opener=open_file).close()
            drop_torn_line(self._path)
        exchanges = read_records(
            self._path,
            "list of answers",
            LlmExchange,
            _MAX_BYTES,
            remedy="name another --outdir",
        )
        self._exchanges = {(exchange.state, exchange.turn): exchange for exchange in exchanges}

    @property
    def settings(self) -> LlmSettings:
        """The settings of the endpoint."""
        return self._endpoint.settings

    @property
    def tokens(self) -> tuple[int, int]:
        """The tokens of all questions and of all answers so far."""
        exchanges = self._exchanges.values()
        return (
            sum(exchange.input_tokens for exchange in exchanges),
            sum(exchange.output_tokens for exchange in exchanges),
        )

    def ask(self, state_id: str, turn: int, question: Question) -> LlmExchange:
        """Ask, unless this was asked before or the budget is spent.

        Raises:
            OutputError: the exchange cannot be written.
        """
        earlier = self._exchanges.get((state_id, turn))
        if earlier is not None:
            return earlier
        was_away = self._endpoint.away
        exchange = self._exchange(state_id, turn, question)
        with (
            writing(self._path),
            open(self._path, "a", encoding="utf-8", opener=open_file) as stream,
        ):
            stream.write(encode(exchange).decode() + "\n")
        self._exchanges[state_id, turn] = exchange
        newly_away = exchange.missing == "away" and not was_away
        if (exchange.missing == "budget" or newly_away) and not self._told:
            self._told = True
            model = self.settings.model
            self._tell(f"{model} is not asked any more, because {exchange.why}: rules only.")
        return exchange

    def _exchange(self, state_id: str, turn: int, question: Question) -> LlmExchange:
        exchange = LlmExchange(state=state_id, turn=turn, model=self.settings.model)
        max_input_tokens = len(encode(question))  # because a token has at least one byte
        max_output_tokens = self._max_output_tokens(max_input_tokens)
        if max_output_tokens < _MIN_OUTPUT_TOKENS:
            return replace(exchange, missing="budget", why="its budget is spent")
        reply = Reply()
        try:
            reply = self._endpoint.ask(question, max_output_tokens)
        except AwayError as error:
            return replace(exchange, missing="away", why=str(error))
        except FormError as error:
            exchange = replace(exchange, missing="garbled", why=str(error))
        # Tokens that the endpoint does not count may have been as many as possible.
        used, made = reply.input_tokens, reply.output_tokens
        return replace(
            exchange,
            reply=reply,
            input_tokens=max_input_tokens if used is None else used,
            output_tokens=max_output_tokens if made is None else made,
        )

    def _max_output_tokens(self, input_tokens: int) -> int:
        """Return how long an answer may be so that the budget holds whatever the model does."""
        settings = self.settings
        used = self.tokens
        most = MAX_OUTPUT_TOKENS
        if settings.max_tokens is not None:
            most = min(most, settings.max_tokens - sum(used) - input_tokens)
        if settings.max_usd is not None and settings.prices is not None:
            left_usd = settings.max_usd - settings.prices.of(used[0] + input_tokens, used[1])
            price = settings.prices.output_usd / 1e6
            if left_usd < 0 or left_usd < most * price:
                most = max(0, int(left_usd / price)) if price else 0
        return most
