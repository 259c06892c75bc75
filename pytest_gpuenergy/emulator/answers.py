"""What the process of a compiled kernel answers, and whether the kernel itself has written it."""

from __future__ import annotations

import re
import secrets

from pytest_gpuenergy.emulator.arithmetic import unmarked
from pytest_gpuenergy.support import KernelFault, Outcome

_OUTCOMES: dict[str, Outcome] = {
    "correctness": "correctness",
    "runtime": "runtime",
    "timeout": "timeout",
    "constraints": "constraints",
}
_RAN = re.compile(r"ran (\d{1,18}) (\d{1,9}\.\d{6})")
_WAITING = re.compile(r"waiting (\d{1,18}) (\d{1,18})")
_FAULT = re.compile(r"fault (\S+) (.+)", re.DOTALL)
_MOST_BYTES = 1 << 20
_SHOWN = 1000


class Answers:
    """The answers to one question after another, on a pipe to which the kernel can write, too.

    Each question bears a token, and each line that answers it begins with that token. A kernel has
    not been told it, so a line without it is the kernel's own. One that searches the memory of its
    process for the token can still answer in place of its runtime. This wins it nothing: whether it
    is right is decided by its outputs.

    Args:
        entry: name of the kernel in messages.
    """

    def __init__(self, entry: str) -> None:
        self._entry = entry
        self._token = b""
        self._answered = True
        self._rest = b""
        self._read_bytes = 0
        self._lines: list[str] = []
        self._waiting: tuple[str, ...] = ()

    def ask(self) -> str:
        """The token of a question; it is that of the question before, if that has no answer."""
        if self._answered:
            self._token = secrets.token_hex(8).encode()
            self._answered = False
            self._lines.clear()
            self._waiting = ()
            self._read_bytes = len(self._rest)
        return self._token.decode()

    def take(self, piece: bytes) -> None:
        """Add what has been read.

        Raises:
            KernelFault: ``runtime``, when it is no answer to the question.
        """
        self._rest += piece
        self._read_bytes += len(piece)
        *lines, self._rest = self._rest.split(b"\n")
        start = self._token + b" "
        begun = self._rest[: len(start)]
        if (
            not all(line.startswith(start) for line in lines)
            or begun != start[: len(begun)]
            or self._read_bytes > _MOST_BYTES
        ):
            raise forged(self._entry)
        for line in lines:
            text = line[len(start) :].decode(errors="replace")
            if waiting := _WAITING.fullmatch(text):
                self._waiting = waiting.groups()
            else:
                self._lines.append(text)

    def late(self, timeout_s: float) -> KernelFault:
        """The fault of a kernel that takes longer than it may."""
        text = f"{self._entry} did not finish within {timeout_s:g} s"
        if self._waiting:
            count, most = self._waiting
            text += f": {count} blocks wait for one another, and the GPU holds {most} at once"
        return KernelFault("timeout", f"{text}.")

    @property
    def begun(self) -> bool:
        """Whether there is an answer."""
        return bool(self._lines)

    def runs(self, *, most: int, budget_s: float, elapsed_s: float) -> tuple[int, float]:
        """The number of runs and their processor time in s, from the only line there is.

        Args:
            most: runs that were asked for.
            budget_s: processor time after which fewer were to be made.
            elapsed_s: time since then.

        Raises:
            KernelFault: it tells of a fault, or says what cannot be.
        """
        self.raise_fault()
        told = _RAN.fullmatch(self._lines[0]) if len(self._lines) == 1 else None
        if told is None:
            raise forged(self._entry)
        count, spent_s = int(told[1]), float(told[2])
        enough = count == most or spent_s >= budget_s - 1e-6  # it is rounded
        possible = spent_s <= 1.01 * elapsed_s + 0.005  # clocks differ a little
        if not 1 <= count <= most or not enough or not possible:
            raise forged(self._entry)
        self._lines.clear()
        self._answered = True
        return count, spent_s

    def profiles(self) -> list[str] | None:
        """The lines before the last, if that is ``done``.

        Raises:
            KernelFault: a line tells of a fault, or is no answer.
        """
        self.raise_fault()
        if self._rest:
            raise forged(self._entry)
        return self._lines[:-1] if self._lines[-1:] == ["done"] else None

    def raise_fault(self) -> None:
        """Raise the fault that the last line tells, if it tells one.

        Raises:
            KernelFault: of the outcome and with the message that it gives.
        """
        if self._lines and (told := _FAULT.fullmatch(self._lines[-1])):
            raise KernelFault(_OUTCOMES.get(told[1], "runtime"), shown(unmarked(told[2])))


def forged(entry: str) -> KernelFault:
    """The fault of a kernel that answers itself."""
    return KernelFault(
        "runtime",
        f"{entry} wrote to the pipe on which the emulated GPU answers, which no kernel on a GPU "
        "can do.",
    )


def shown(text: str) -> str:
    """The beginning of a text that a kernel may have made up, without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text[:_SHOWN])
