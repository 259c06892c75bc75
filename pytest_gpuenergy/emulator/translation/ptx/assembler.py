"""The asm statements of a text and the C++ that replaces them, also in macros and conditionals."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from pytest_gpuenergy.emulator.translation.ptx.arithmetic import register_code
from pytest_gpuenergy.emulator.translation.ptx.forms import form_code
from pytest_gpuenergy.emulator.translation.ptx.instructions import (
    Label,
    Part,
    Registers,
    RegisterScope,
    parsed,
)
from pytest_gpuenergy.emulator.translation.ptx.matrices import matrix_code
from pytest_gpuenergy.emulator.translation.ptx.memory_access import memory_code
from pytest_gpuenergy.emulator.translation.ptx.ptx_operands import BITS, HOST, Names
from pytest_gpuenergy.emulator.translation.ptx.statements import (
    MacroStrings,
    Statement,
    UnsupportedError,
    end_of_statement,
    parse_statement,
    refusal_message,
    shown_template,
    with_choice,
)
from pytest_gpuenergy.kernels import CudaToken, cuda_tokens

_HINT = ".L2::cache_hint"


def statement_code(statement: Statement) -> str:
    """Return an expression of type void that does what the statement does."""
    operands = statement.operands
    names = Names(operands)
    parts = list(parsed(statement.template))
    names.label([part.name for part in parts if isinstance(part, Label)])
    body = [_part(part, names) for part in parts]
    if names.depth:
        raise UnsupportedError("asm with a brace that nothing closes")
    if not body and not operands:
        return "((void)0)"
    before = [names.labels]
    for number, operand in enumerate(operands):  # a variable for the register of each
        variable, expression = f"cuhost_r{number}", operand.expression.strip()
        if operand.constraint == "n":
            before.append(f"constexpr auto {variable} = (long long)({expression});")
            continue
        register = f"{HOST}b<{BITS[operand.constraint]}>"
        taken = f"{HOST}operand<{register}>"
        if not operand.access:
            before.append(f"const {register} {variable} = {taken}({expression});")
            continue
        value = f" = {taken}(cuhost_o{number})" if operand.access == "+" else ""
        before.append(f"auto& cuhost_o{number} = ({expression}); {register} {variable}{value};")
    return f"__extension__ ({{ {' '.join([*before, *body, names.write_back()])} (void)0; }})"


def _part(part: Part, names: Names) -> str:
    if isinstance(part, Label):
        return f"{names.jump(part.name)}:;"
    if isinstance(part, RegisterScope):
        names.open() if part.opens else names.close()
        return "{" if part.opens else "}"
    if isinstance(part, Registers):
        return names.declare(part)
    plain = part
    if _HINT in part.opcode:  # a cache policy, the last operand, changes no result
        opcode, operands = part.opcode.replace(_HINT, ""), part.operands[:-1]
        plain = replace(part, opcode=opcode, operands=operands)
    code = (
        memory_code(plain, names)
        or register_code(plain, names)
        or matrix_code(plain, names)
        or form_code(plain, names)
    )
    if not code:
        raise UnsupportedError(part.text)
    if not part.guard:
        return code
    return f"if ({names.predicate('!' * part.negated + part.guard)}) {{ {code} }}"


_KEYWORDS = frozenset(("asm", "__asm__", "__asm"))
_KEYWORD_MACRO = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(?P<name>\w+)[ \t]+(?:asm|__asm__|__asm)"
    r"(?:[ \t]+(?:volatile|__volatile__|__volatile))?[ \t]*$",
    re.MULTILINE,
)
# Names in a replacement that interface.h does not declare.
_OF_HEADER = re.compile(r"::cuhost::cuhost_(?!(?:commit_copies|finish_copies|yield)\b)")


class AsmStatements:
    """The asm statements of a text and their replacements.

    Attributes:
        refusals: the reasons why statements cannot run, by number.
        headers: the headers of ``cuda/host`` that the statements need.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self.refusals: list[str] = []
        self.headers: set[str] = set()

    @functools.cached_property
    def _strings(self) -> MacroStrings:
        return MacroStrings(self._source)

    def replaced(self, position: int) -> tuple[int, str]:
        """Return the end of the statement whose keyword ends at ``position``, and its code."""
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
        if choice := self._strings.string_choice(text):
            name, choices = choice  # the compiler selects a string
            branches = (
                f"if constexpr (::cuhost::cuhost_same({name}, {string})) "
                f"{{ {self._code(with_choice(text, name, string))}; }}"
                for string in choices
            )
            self.headers.add("ptx.h")
            return f"__extension__ ({{ {' else '.join(branches)} (void)0; }})"
        try:
            code = self._host_code(text)
        except UnsupportedError as unsupported:
            # An error only where the compiler finds the call reachable: helpers may be unused.
            self.refusals.append(refusal_message(str(unsupported)))
            return f"::cuhost_refused_{len(self.refusals) - 1}()"
        if _OF_HEADER.search(code):
            self.headers.add("ptx.h")
        return code

    def _host_code(self, text: str) -> str:
        # Its tables of instructions take 25 ms to build, and most texts have no PTX.
        from pytest_gpuenergy.emulator.translation.ptx.assembler import statement_code

        return statement_code(parse_statement(text, self._strings))

    def refusal(self, position: int) -> str:
        """Return why a statement is refused: the instruction that cannot run, or all of them."""
        end = end_of_statement(self._source, position)
        try:
            self._host_code(self._source[position:end])
        except UnsupportedError as unsupported:
            return refusal_message(str(unsupported))
        return refusal_message(shown_template(self._source, position))

    def in_macro(self, directive: CudaToken) -> Iterator[tuple[int, int, str]]:
        """Yield the edits of the asm statements in the macro that a directive may define."""
        body = directive.start + directive.text.index("#") + 1
        position, is_definition = body, directive.text[body - directive.start :].split()[:1]
        for token in cuda_tokens(self._source, body, directive.end):
            if is_definition != ["define"] or token.start < position or token.text not in _KEYWORDS:
                continue
            stop = end_of_statement(self._source, token.end, directive.end)
            if stop > token.end:
                code = self._code(self._source[token.end : stop].replace("\\\n", ""))
                lines = self._source.count("\n", token.start, stop)
                yield token.start, stop, code.replace("\n", " ") + " \\\n" * lines
                position = stop


_DIRECTIVE = re.compile(
    r"^[ \t]*#[ \t]*(?P<word>if|ifdef|ifndef|elif|else|endif)\b(?:[^\n\\]|\\.|\\\n)*$",
    re.MULTILINE,
)


class Conditional(NamedTuple):
    """A text with a part that depends on preprocessor conditions.

    Attributes:
        before: the text before that part.
        branches: each directive with the text that it selects.
        after: the text after that part.
    """

    before: str
    branches: Sequence[tuple[str, str]]
    after: str


def first_conditional(text: str) -> Conditional | None:
    """Return ``text`` divided at its first complete conditional part, or None."""
    branches: list[tuple[str, str]] = []
    depth, before, directive, start = 0, "", "", 0
    for found in _DIRECTIVE.finditer(text):
        word = found["word"]
        if word.startswith("if"):
            depth += 1
        if depth == 1 and word in ("if", "ifdef", "ifndef"):
            before = text[: found.start()]
        elif depth == 1:
            branches.append((directive, text[start : found.start()]))
        if depth == 1:
            directive, start = found[0], found.end()
        if word == "endif":
            depth -= 1
            if not depth and branches:
                if not re.match(r"[ \t]*#[ \t]*else\b", branches[-1][0]):
                    branches.append(("#else", ""))
                return Conditional(before, branches, text[found.end() :])
    return None


def with_keywords(source: str) -> str:
    """Return ``source`` with ``asm`` in place of macros for it, and as many lines."""
    names = {found["name"] for found in _KEYWORD_MACRO.finditer(source)}
    if not names:
        return source
    used = rf"\b(?:{'|'.join(sorted(names))})\b(?=\s*\()"
    return re.sub(used, "asm volatile", _KEYWORD_MACRO.sub("", source))
