"""The asm statements of a text, with what stands for them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence

from pytest_gpuenergy.emulator.ptx.branches import first_conditional
from pytest_gpuenergy.emulator.ptx.refusals import UnsupportedError, refusal_of
from pytest_gpuenergy.emulator.ptx.statements import end_of_statement, shown_template, statement_at
from pytest_gpuenergy.emulator.ptx.strings import Strings, with_choice
from pytest_gpuenergy.emulator.tokens import LITERAL, SKIPPED

_KEYWORD = re.compile(
    rf"(?P<skipped>{SKIPPED}|{LITERAL})|(?<!\w)(?:asm|__asm__|__asm)(?!\w)(?=\s*[\w(\\])",
    re.VERBOSE | re.DOTALL,
)
# What the translation needs of the host besides interface.h.
_OF_HEADER = re.compile(r"::cuhost::cuhost_(?!(?:commit_copies|finish_copies|yield)\b)")
_DEFINE = re.compile(r"[ \t]*#[ \t]*define\b")


class Assembler:
    """Replaces the asm statements of a text.

    Attributes:
        refusals: why those that cannot run are refused, by number.
        headers: of ``cuda/host`` that they need.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self.refusals: list[str] = []
        self.headers: set[str] = set()

    @functools.cached_property
    def _strings(self) -> Strings:
        return Strings(self._source)

    def replaced(self, position: int) -> tuple[int, str]:
        """The end of the statement whose keyword ends at ``position``, and what stands for it."""
        end = end_of_statement(self._source, position)
        code = self._code(self._source[position:end])
        if code.count("\n") > self._source.count("\n", position, end):
            line = self._source.count("\n", 0, end) + 1
            code += f'#line {line} "kernel.cu"\n'
        return end, code

    def _code(self, text: str) -> str:
        if conditional := first_conditional(text):
            parts = (
                f"{directive}\n{self._code(conditional.before + branch + conditional.after)}\n"
                for directive, branch in conditional.branches
            )
            return "".join(["\n", *parts, "#endif\n"])
        if choice := self._strings.choice_in(text):
            return self._chosen(text, *choice)
        try:
            code = self._translated(text)
        except UnsupportedError as unsupported:
            # An error only where the compiler finds the call reachable: helpers may be unused.
            self.refusals.append(refusal_of(str(unsupported)))
            return f"::cuhost_refused_{len(self.refusals) - 1}()"
        if _OF_HEADER.search(code):
            self.headers.add("ptx.h")
        return code

    def _chosen(self, text: str, name: str, choices: Sequence[str]) -> str:
        """Code for each string that a macro may stand for, of which the compiler takes one."""
        parts = (
            f"if constexpr (::cuhost::cuhost_same({name}, {choice})) "
            f"{{ {self._code(with_choice(text, name, choice))}; }}"
            for choice in choices
        )
        self.headers.add("ptx.h")
        return f"__extension__ ({{ {' else '.join(parts)} (void)0; }})"

    def _translated(self, text: str) -> str:
        # It makes its tables of instructions in 25 ms, and most texts have no PTX.
        from pytest_gpuenergy.emulator.ptx.code import code_of

        return code_of(statement_at(text, self._strings.value, self._strings.body))

    def refusal(self, position: int) -> str:
        """Why the statement is refused: the instruction that cannot run, or all of them."""
        end = end_of_statement(self._source, position)
        try:
            self._translated(self._source[position:end])
        except UnsupportedError as unsupported:
            return refusal_of(str(unsupported))
        return refusal_of(shown_template(self._source, position))

    def in_macro(self, start: int, end: int) -> Iterator[tuple[int, int, str]]:
        """The edits of a directive's text: of the statements that a macro stands for."""
        if not _DEFINE.match(self._source, start, end):
            return
        position = start
        while found := _KEYWORD.search(self._source, position, end):
            position = found.end()
            if found["skipped"]:
                continue
            stop = end_of_statement(self._source[:end], position)
            if stop <= position:
                continue
            code = self._code(self._source[position:stop].replace("\\\n", ""))
            lines = self._source.count("\n", found.start(), stop)
            code = code.replace("\n", " ")
            yield found.start(), stop, code + " \\\n" * lines
            position = stop
