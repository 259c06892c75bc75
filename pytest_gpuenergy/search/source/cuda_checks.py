"""Checks that a variant's CUDA text has kernels, and nothing that outlives a launch.

With a real GPU nothing of the text runs on the host, because our own code launches it. What is
refused here are ways to cheat that a check of results may miss (state between launches, clocks),
and on the emulated GPU, which runs the text on the host, ways to reach anything but the kernel's
arguments.

The text is cut into tokens and file-scope declarations, and not read from the syntax tree as
elsewhere: a parser recovers from what it does not understand and does not look into macros, but
this check must refuse both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from pytest_gpuenergy.emulator import EMULATED, SUPPORTED
from pytest_gpuenergy.kernels import CudaToken, cuda_tokens

HEADERS = frozenset(
    name for name in (*SUPPORTED, *EMULATED) if name.startswith(("cuda", "cooperative", "mma"))
) - {"cuda/std/chrono"}
"""Headers that may be included: those for kernels, of the ones that the emulated GPU knows."""

_FORBIDDEN = re.compile(
    r"(?:\w*clock(?:64|_\w+)?|\w*globaltimer\w*|chrono|__nanosleep"
    r"|(?:f|s|sn|v\w*)?printf|puts|putchar|\w*malloc|calloc|realloc|free|new|delete"
    r"|cuda[A-Z]\w*|__cuda\w+|__managed__|__host__|__attribute__|__declspec|_Pragma|__pragma"
    r"|__builtin_(?!assume|expect)\w+|__FILE__|__DATE__|__TIME__|mutable|thread_local|\w*grid_workspace"
    # Of C's library, what the emulated GPU's host compiler knows and what keeps something.
    r"|s?rand(?:om)?|[dlm]rand48|srand48|(?:init|set)state|strtok|signgam|(?:get|set|put)env"
    r"|setlocale|system|at\w*_?exit|std(?:in|out|err)|fe(?:set|get|raise|clear|hold|update)\w+)",
    re.ASCII,
)
IN_ASSEMBLER = re.compile(
    r"clock|timer|nanosleep|%pm\d|gridid|graph_exec|envreg"
    r"|(?<![\w.])\.(?:global|extern|visible|weak|common)\b"
)
"""PTX by which a kernel tells one launch from another, or keeps something for the next one."""
_ESCAPE = re.compile(r"\\[^nt\"'\\]")
_ASSEMBLER = ("asm", "__asm", "__asm__")
_TYPES = {"struct", "class", "union", "enum"}
_SPECIFIERS = {
    *("__device__", "__global__", "__constant__", "__shared__", "static", "extern", "inline"),
    *("const", "constexpr", "volatile", "namespace", "template", *_TYPES, *_ASSEMBLER),
}
_WITH_PARENTHESES = {
    *("alignas", "__align__", "decltype", "noexcept"),
    *("__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__block_size__"),
}
_RAW = re.compile(r'(?:u8|[uUL])?R"')
_OTHER_SPELLING = re.compile(r"%:|<%|%>|:>|<:(?!:)|::>|\?\?.?", re.DOTALL)
"""Digraphs and trigraphs, at the beginning of symbols that touch."""
_NAMESPACE = re.compile(r"namespace\b|inline namespace$")
_ANGLES = {"<": 1, ">": -1, ">>": -2}
_PRAGMAS = {"unroll", "nounroll", "once"}


class _CheckedDeclaration(NamedTuple):
    """A declaration at file scope, split at its braces into head, body and tail."""

    head: list[CudaToken]
    body: list[CudaToken] | None
    tail: list[CudaToken]


def findings(source: str) -> frozenset[str]:
    """Return what a text contains that no variant may add, each in a few words."""
    if re.search(r"\r(?!\n)", source):
        return frozenset({"a carriage return within a line"})  # some compilers end the line there
    if "??/" in source:
        return frozenset({"the trigraph ??/"})  # some compilers read a backslash, in comments, too
    plain, directives = _tokens(re.sub(r"\\\r?\n", "", source))
    found = {finding for tokens in (plain, *directives) for finding in _anywhere(tokens)}
    found.update(
        finding for directive in directives for finding in _findings_in_directive(directive)
    )
    found.update(f"a stray {token.text}" for token in plain if token.text.startswith("#"))
    if sum((token.text == "{") - (token.text == "}") for token in plain):
        found.add("braces that do not match")
    for declaration in _declarations(plain):
        found.update(_findings_in_declaration(declaration))
        found.update(_findings_in_body(declaration))
    return frozenset(found)


def assembler_statements(source: str) -> int:
    """Return the number of inline assembler statements."""
    plain, directives = _tokens(source)
    return sum(t.text in _ASSEMBLER for tokens in (plain, *directives) for t in tokens)


def _tokens(source: str) -> tuple[list[CudaToken], list[list[CudaToken]]]:
    """Return the tokens outside of directives, and those of each directive after its ``#``."""
    plain: list[CudaToken] = []
    directives = []
    for token in cuda_tokens(source):
        if token.kind == "directive":
            begin = source.index("#", token.start) + 1
            directives.append(list(cuda_tokens(source, begin, token.end)))
        else:
            plain.append(token)
    return plain, directives


def _findings_in_directive(directive: Sequence[CudaToken]) -> Iterator[str]:
    words = [token.text for token in directive]
    name, rest = (words[0], words[1:]) if words else ("", [])
    if name == "include":
        if "".join(rest).strip('<>"') not in HEADERS:
            yield f"#include {''.join(rest)}"
    elif name == "pragma":
        if not rest or rest[0] not in _PRAGMAS:
            yield f"#{' '.join(words)}"
    elif name in ("define", "undef"):
        if rest and (rest[0] in _SPECIFIERS or rest[0].startswith("__")):
            yield f"a macro called {rest[0]}"
        if {"#", "##"} & set(rest) or _SPECIFIERS & set(rest[1:]) - {"const", "volatile"}:
            yield f"the macro {rest[0]}, which pastes or declares"
        if rest.count("{") != rest.count("}"):
            yield f"the macro {rest[0]}, whose braces do not match"
    elif words:
        yield f"#{' '.join(words)}"


def _anywhere(tokens: Sequence[CudaToken]) -> Iterator[str]:
    for position, token in enumerate(tokens):
        after = tokens[position + 1] if position + 1 < len(tokens) else None
        touching = token.text + (after.text if after and token.end == after.start else "")
        if token.text in _ASSEMBLER:
            yield from _findings_in_assembler(tokens[position + 1 :])
        if token.kind == "name" and _FORBIDDEN.fullmatch(token.text):
            yield token.text
        elif token.kind == "literal" and IN_ASSEMBLER.search(token.text):
            yield f"assembler with {token.text}"
        elif _RAW.match(token.text) or (token.kind == "symbol" and touching.startswith("/*")):
            yield "a raw string or an endless comment"
        elif token.text == "<<<":
            yield "a launch of its own"
        elif token.kind == "symbol" and (other := _OTHER_SPELLING.match(touching)):
            yield f"another spelling of a symbol, {other[0]}"
        elif token.text in ('"', "'", "\\", "`", "@"):
            yield f"a stray {token.text}"


def _findings_in_assembler(tokens: Sequence[CudaToken]) -> Iterator[str]:
    """Yield what is forbidden in an assembler statement, whose text may be in several strings."""
    strings: list[str] = []
    for token in tokens:
        if token.text.startswith('"') and len(token.text) > 1:
            strings.append(token.text[1:-1])
        elif token.text in (":", "::", ")", ";"):
            break
        elif token.text not in ("volatile", "__volatile__", "("):
            yield "assembler whose text a macro completes"
    else:
        yield "assembler whose text a macro completes"
    text = "".join(strings)
    if IN_ASSEMBLER.search(text) and not any(map(IN_ASSEMBLER.search, strings)):
        yield f"assembler with {text[:60]}"
    if _ESCAPE.search(text):
        yield "assembler with an escape sequence"


def _declarations(tokens: Sequence[CudaToken]) -> Iterator[_CheckedDeclaration]:
    """Yield the declarations at file scope, and in namespaces."""
    head: list[CudaToken] = []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        position += 1
        if token.text == ";":
            yield _CheckedDeclaration(head, None, [])
            head = []
        elif token.text == "{" and _NAMESPACE.match(" ".join(t.text for t in head[:2])):
            head = []
        elif token.text == "{":
            depth, end = 1, position
            while end < len(tokens):
                depth += (tokens[end].text == "{") - (tokens[end].text == "}")
                if depth == 0:
                    break
                end += 1
            body, position = list(tokens[position:end]), end + 1
            tail: list[CudaToken] = []
            if not _is_function(head):
                while position < len(tokens) and tokens[position].text != ";":
                    tail.append(tokens[position])
                    position += 1
                position += 1
            yield _CheckedDeclaration(head, body, tail)
            head = []
        elif token.text != "}":
            head.append(token)
    if head:
        yield _CheckedDeclaration(head, None, [])


def _is_function(head: Sequence[CudaToken]) -> bool:
    words = _bare(head)
    if "(" not in words or _is_type(words) or "=" in words[: words.index("(")]:
        return False
    # Words in parentheses are parameters, not the name of a variable: ``int (x){0}``.
    first, second = (*words[words.index("(") + 1 :], "", "")[:2]
    if first in (")", ".", "...") or (first, second) == ("void", ")"):
        return True
    return first.isidentifier() and second not in ("[", "(", ")", "")


def _is_type(words: Sequence[str]) -> bool:
    before = words[: words.index("(")] if "(" in words else words
    return bool(_TYPES & set(_skip_template(before)[:2]))


def _skip_template(words: Sequence[str]) -> Sequence[str]:
    if words[:1] != ["template"]:
        return words
    depth = 0
    for index, word in enumerate(words):
        depth += _ANGLES.get(word, 0)
        if depth <= 0 and word in (">", ">>"):
            return words[index + 1 :]
    return words


def _bare(head: Sequence[CudaToken]) -> list[str]:
    """Return the words and symbols of a head, without attributes in parentheses."""
    words: list[str] = []
    depth = 0
    for token in head:
        if depth or (token.text == "(" and words and words[-1] in _WITH_PARENTHESES):
            depth += (token.text == "(") - (token.text == ")")
        else:
            words.append(token.text)
    return words


def _findings_in_declaration(declaration: _CheckedDeclaration) -> Iterator[str]:
    words = _bare(declaration.head)
    if set(_skip_template(words)[:1]) <= {"using", "typedef", "static_assert"}:
        return
    names = set(words)
    shown = " ".join(words)[:60]
    if names & set(_ASSEMBLER):
        yield "assembler outside a function"
    if "extern" in names and not names & {"__global__", "__shared__"}:
        yield f"the external declaration {shown}"
    if _is_type(words):
        if declaration.tail:
            yield f"the file-scope variable of type {shown}"
    elif _is_function(declaration.head):
        if declaration.body is None:
            yield f"the declaration {shown}, which has no body"
        elif not names & {"__device__", "__global__"}:
            yield f"the host function {shown}"
    elif "__device__" in names or not _is_constant(_skip_template(words)):
        yield f"the file-scope variable {shown}"


def _findings_in_body(declaration: _CheckedDeclaration) -> Iterator[str]:
    body = declaration.body or []
    inner = set() if _is_type(_bare(declaration.head)) else {"__device__", "__global__"}
    for token, after in pairwise((*body, CudaToken("", "", 0, 0))):
        if token.text == "static" and after.text not in ("constexpr", "__shared__"):
            yield f"a static variable before {after.text}"
        elif token.text == "extern" and after.text != "__shared__":
            yield "an external declaration in a function"
        elif token.text in inner:
            yield f"{token.text} in a function"


def _is_constant(words: Sequence[str]) -> bool:
    """Return whether variables are in shared or constant memory, or cannot be changed.

    The words are those of a declaration without ``template <...>``, up to its first brace or its
    end.
    """
    declarators: list[list[str]] = [[]]  # before each ``=``, without arguments of templates
    depth, is_value = 0, False
    for word in words:
        depth += _ANGLES.get(word, 0) + (word in ("(", "[")) - (word in (")", "]"))
        if depth == 0 and word == ",":
            declarators.append([])
            is_value = False
        elif depth == 0 and word == "=":
            is_value = True
        elif not is_value and word not in _ANGLES and not (depth and word == "const"):
            declarators[-1].append(word)
    first = declarators[0]
    specifiers = set(first[: first.index("(")] if "(" in first else first)
    if specifiers & {"__shared__", "__constant__", "constexpr"}:
        return True
    # A pointer or reference must be constant itself.
    marks = (
        max((at for at, word in enumerate(words) if word in ("*", "&", "&&")), default=None)
        for words in declarators
    )
    return "const" in specifiers and all(
        mark is None or "const" in words[mark:]
        for mark, words in zip(marks, declarators, strict=True)
    )
