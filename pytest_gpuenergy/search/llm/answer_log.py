"""``llm.jsonl``: every question that a search has asked, and what came back.

A line is on disk before its answer is used, so that a search that is continued pays for no answer
twice, and finds the same proposals.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

from pytest_gpuenergy.search.llm.protocol import Reply
from pytest_gpuenergy.search.search_state import read_lines
from pytest_gpuenergy.support import drop_torn_line, encode, open_file
from pytest_gpuenergy.tuning import writing

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
