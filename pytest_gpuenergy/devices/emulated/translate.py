"""CUDA C++ text made into C++ for the host compiler, line by line the same.

Only tokens that no header can express are touched: declarations of variables that are
``__shared__`` or the device's, inline assembler and ``#include``. Everything else is the business
of ``cuda/host/kernel.h``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.devices.emulated.kernel_text import function_of
from pytest_gpuenergy.support.errors import KernelFault

CANNOT = "cannot run on the emulated GPU"

_SUPPORTED_HEADER_NAMES = """
    cuda.h cuda_runtime.h cuda_runtime_api.h device_launch_parameters.h vector_types.h
    vector_functions.h math_constants.h device_functions.h
    cassert cfloat climits cmath cstddef cstdint cstdio cstdlib cstring limits type_traits utility
    assert.h float.h limits.h math.h stddef.h stdint.h stdio.h stdlib.h string.h
    cuda/std/cstdint cuda/std/type_traits cuda/std/limits cuda/std/cstddef cuda/std/cmath
"""
_SUPPORTED_HEADERS = frozenset(_SUPPORTED_HEADER_NAMES.split())
# Copies that TVM lowers synchronously still carry these; waiting for nothing is right then.
_IGNORED_PTX = re.compile(r"cp\.async\.(commit_group|wait_all|wait_group\s+(\d+|%\d+))\s*;?\s*")

_SKIPPED = r"""
    //(?:[^\n\\]|\\.|\\\n)*
  | /\*.*?\*/
  | (?:u8|[uUL])?R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)"
"""
_LITERAL = r"""
    "(?:[^"\\\n]|\\.)*"
  | '(?:[^'\\\n]|\\.)*'
"""
# What matters in a kernel; all other text is stepped over. A digit separator is no quote.
_OUTLINE = re.compile(
    rf"""
    (?P<skipped>{_SKIPPED} | {_LITERAL} | (?<!\w)\d[\w.]*(?:'[\w.]+)+)
  | (?P<directive>^[ \t]*\#(?:[^\n\\/]|\\.|\\\n|/(?![/*])|/\*.*?\*/)*)
  | (?P<brace>[{{}}])
  | (?<!\w)(?P<word>asm|__asm__|__asm|extern|__(?:shared|device|constant|managed|global)__)(?!\w)
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_TOKEN = re.compile(
    rf"""
    (?P<skipped>{_SKIPPED} | \s+)
  | (?P<literal>{_LITERAL})
  | (?P<name>[A-Za-z_]\w*)
  | (?P<number>\.?\d(?:[eEpP][+-]|'\w|[\w.])*)
  | (?P<symbol>::|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_LINKAGE = re.compile(r'\s*"C(?:\+\+)?"')
_INCLUDE = re.compile(r'\s*#\s*include\s*(?:<([^>\n]+)>|"([^"\n]+)")')
_NAMESPACE = re.compile(r'(?:\bnamespace(?:\s+[\w:]+)?|\bextern\s*"C(?:\+\+)?")\s*$')
_LEFT_ALONE = frozenset(("const", "constexpr", "extern", "typedef", "operator", "friend"))


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class _Declared:
    """Variables of one declaration, with the words that tell what they are, up to its end."""

    names: Sequence[_Token]
    words: frozenset[str]
    end: int


def translate(source: str, entries: Sequence[str]) -> str:
    """Text for the host compiler, complete but for the precompiled ``kernel.h``.

    Args:
        source: the text of a kernel.
        entries: what its launches call, see `is_entry`.

    Raises:
        KernelFault: ``compile`` when the text is malformed.
    """
    outline = _Outline(source)
    outline.walk()
    for entry in entries:
        name = function_of(entry)
        declared = name in outline.kernels or outline.in_macros
        if not declared and re.search(rf"\b{name}\s*\(", source):
            raise KernelFault(
                "compile", f"the launch does not fit the text: {entry} is not a __global__ function"
            )
    return _assemble(outline, entries)


class _Outline:
    """One pass over the text that collects the edits."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.edits: list[tuple[int, int, str]] = []
        self.refusals: list[str] = []
        self._depth = 0
        self._kernel = ""
        self._kernel_depth = -1
        self._named = ""
        self._bound = ""  # the arguments of the launch bounds of what is named
        self.kernels: set[str] = set()
        self.bounds: dict[str, list[int]] = {}  # the numbers of those that a kernel has
        self.in_macros = False  # whether a macro may declare kernels
        self._variables = 0
        self._elsewhere: set[str] = set()  # names that were declared extern
        self._namespaces: list[int] = []  # the depths at which those open here began

    def walk(self) -> None:
        position = 0
        while match := _OUTLINE.search(self.source, position):
            position = match.end()
            if match["brace"]:
                self._brace(match["brace"], match.start(), match.end())
            elif match["directive"]:
                self._directive(match)
            elif word := match["word"]:
                position = self._handlers[word](match.start(), match.end())

    def rewritten(self) -> str:
        parts, last = [], 0
        for start, end, text in self.edits:
            lines = "\n" * (self.source.count("\n", start, end) - text.count("\n"))
            parts += [self.source[last:start], text, lines]
            last = end
        return "".join([*parts, self.source[last:]])

    @property
    def _handlers(self) -> Mapping[str, Callable[[int, int], int]]:
        return {
            "extern": self._extern,
            "__shared__": self._static,
            "__global__": self._global,
            **dict.fromkeys(("__device__", "__constant__", "__managed__"), self._of_device),
            **dict.fromkeys(("asm", "__asm__", "__asm"), self._assembler),
        }

    def _brace(self, brace: str, start: int, end: int) -> None:
        if brace == "{":
            if _NAMESPACE.search(self.source, max(0, start - 200), start):
                self._namespaces.append(self._depth)
            if self._named:
                self._kernel, self._kernel_depth, self._named = self._named, self._depth, ""
            self._depth += 1
        else:
            self._depth -= 1
            if self._namespaces and self._depth <= self._namespaces[-1]:
                self._namespaces.pop()
            if self._depth <= self._kernel_depth:
                self._close_kernel(end)

    def _close_kernel(self, end: int) -> None:
        if self._bound:
            number = sum(map(len, self.bounds.values()))
            self.bounds.setdefault(self._kernel, []).append(number)
            text = f" enum {{ cuhost_bound_{number} = ::cuhost::first({self._bound}) }};"
            self.edits.append((end, end, text))
        self._kernel, self._kernel_depth, self._bound = "", -1, ""

    def _directive(self, match: re.Match[str]) -> None:
        self.in_macros |= "__global__" in match[0]
        include = _INCLUDE.match(match[0])
        if include is None:
            return
        header = include[1] or include[2]
        text = "" if header in _SUPPORTED_HEADERS else f"#error {CANNOT}: #include <{header}>"
        self.edits.append((match.start(), match.end(), text))

    def _of_template(self, start: int) -> bool:
        return self.source[:start].rstrip().endswith(">")

    def _global(self, start: int, end: int) -> int:
        """Remember the name and the launch bounds of a kernel; a definition begins a kernel."""
        name, previous, bound = "", "", slice(0)
        for token, depth in _nested(self.source, end):
            if depth == 0 and token.text in ";{":
                self.kernels.add(name)
                defined = token.text == "{"
                self._named = name if defined else ""
                self._bound = " ".join(self.source[bound].split()) if defined else ""
                if self._of_template(start) and not self._bound.isdecimal():
                    self._bound = ""
                break
            if previous == "__launch_bounds__" and depth == 1 and token.text == "(":
                bound = slice(token.end, token.end)
            elif bound.start and bound.start == bound.stop and depth == 0 and token.text == ")":
                bound = slice(bound.start, token.start)
            if token.text == "(" and depth == 1 and previous not in _ATTRIBUTES:
                name = name or previous
            if token.kind == "name":
                previous = token.text
        return end

    def _extern(self, start: int, end: int) -> int:
        """Turn ``extern __shared__ T name[];`` into a pointer to the dynamic shared memory.

        ``extern "C"`` is taken away: a function that has it and is declared before it is defined
        would be seen outside the text, which is compiled twice.
        """
        if linkage := _LINKAGE.match(self.source, end):
            block = self.source[linkage.end() :].lstrip().startswith("{")
            self.edits.append((start, linkage.end(), "namespace" if block else ""))
            return linkage.end()
        words: list[_Token] = []
        for token, depth in _nested(self.source, end):
            if token.text in ";{=" and depth == 0:
                break
            words.append(token)
        if not any(token.text == "__shared__" for token in words):
            elsewhere = _declared(self.source, end)
            if elsewhere is None:
                return end
            self._elsewhere.update(token.text for token in elsewhere.names)
            return elsewhere.end
        last = words[-1].end
        declared = [token for token in _without_attributes(words) if token.text != "__shared__"]
        brackets = [k for k, token in enumerate(declared) if token.text == "["]
        if (
            not brackets
            or brackets[0] < 2
            or "]" not in (token.text for token in declared[brackets[0] :])
        ):
            line = self._line(start)
            raise KernelFault(
                "compile",
                f"line {line}: extern __shared__ declares an array without bounds on the "
                "emulated GPU, such as extern __shared__ float name[];",
            )
        name = declared[brackets[0] - 1].text
        # Further dimensions stay: extern __shared__ float tile[][32].
        inner = "".join(token.text for token in declared[brackets[0] :])
        inner = inner[inner.index("]") + 1 :]
        element = " ".join(token.text for token in declared[: brackets[0] - 1])
        if self._depth and inner == "":
            text = f"{element} * const {name} = ({element} *)::cuhost::cuhost_dynamic_shared"
        else:
            alias = f"cuhost_element_{name}"
            text = (
                f"typedef {element} {alias}{inner}; static {alias} *& {name} = "
                f"({alias} *&)::cuhost::cuhost_dynamic_shared"
            )
        self.edits.append((start, last, text))
        return last

    def _static(self, start: int, end: int) -> int:
        """Put ``__shared__`` variables where the runtime knows them."""
        declared = _declared(self.source, end)
        if declared is None:
            raise KernelFault(
                "compile",
                f"line {self._line(start)}: __shared__ declares variables on the emulated GPU, "
                "such as __shared__ float name[4];",
            )
        self.edits.append((start, end, ""))
        return self._guard(declared, f'CUHOST_SHARED({{}}, "{self._kernel}", {{}})')

    def _of_device(self, start: int, end: int) -> int:
        """Put a ``__device__`` or ``__constant__`` variable there too.

        Constants stay, also as the compiler may need their value, and so does what is declared in a
        function, a class, a template, or before it is defined.
        """
        if len(self._namespaces) < self._depth or self._of_template(start):
            return end
        declared = _declared(self.source, end)
        if declared is None or declared.words & (_LEFT_ALONE | self._elsewhere):
            return end
        return self._guard(declared, "CUHOST_DEVICE({}, {})")

    def _guard(self, declared: _Declared, announcement: str) -> int:
        announced = ""
        for token in declared.names:
            self.edits.append((token.start, token.end, f"cuhost_value_{self._variables}"))
            announced += " " + announcement.format(self._variables, token.text)
            self._variables += 1
        self.edits.append((declared.end, declared.end, announced))
        return declared.end

    def _assembler(self, start: int, end: int) -> int:
        """Drop assembler text that waits for asynchronous copies, refuse any other."""
        pieces: list[str] = []
        operands = False
        for token, depth in _nested(self.source, end):
            if token.kind == "literal" and depth == 1 and not operands:
                pieces.append(token.text[1:-1])
            elif token.text == ":" or token.text == "::":
                operands = True
            elif depth == 0 and token.text == ")":
                end = token.end
                break
            elif depth == 0 and token.text == ";":
                break
        text = re.sub(r"\\[nt]", " ", "".join(pieces)).strip()
        if text and all(
            _IGNORED_PTX.fullmatch(part.strip()) for part in text.rstrip(";").split(";")
        ):
            self.edits.append((start, end, "((void)0)"))
            return end
        if not self._depth:
            raise KernelFault("compile", f"line {self._line(start)}: {_refusal(text)}")
        # An error only where the compiler finds the call alive: helpers may go unused.
        self.edits.append((start, end, f"::cuhost_refused_{len(self.refusals)}()"))
        self.refusals.append(_refusal(text))
        return end

    def _line(self, position: int) -> int:
        return self.source.count("\n", 0, position) + 1


_ATTRIBUTES = frozenset(
    ("__launch_bounds__", "__attribute__", "alignas", "__align__", "__declspec", "decltype", "")
)


def _refusal(ptx: str) -> str:
    shown = re.sub(r'[\\"]', "", " ".join(ptx.split()))
    return f"{CANNOT}: inline PTX '{shown[:60]}{'...' if len(shown) > 60 else ''}'"


def _nested(source: str, position: int) -> Iterator[tuple[_Token, int]]:
    """Tokens from ``position`` on with their depth of brackets.

    An opening bracket has the depth inside it, a closing one that outside.
    """
    depth = 0
    while match := _TOKEN.match(source, position):
        position = match.end()
        kind = str(match.lastgroup if match.lastgroup != "delimiter" else "skipped")
        if kind == "skipped":
            continue
        token = _Token(kind, match[0], match.start(), match.end())
        if token.text in ("(", "["):
            depth += 1
        elif token.text in (")", "]"):
            depth -= 1
        yield token, depth


def _without_attributes(words: Iterable[_Token]) -> Iterator[_Token]:
    depth, dropping = 0, False
    for token in words:
        if not dropping and token.text in _ATTRIBUTES:
            dropping = True
            continue
        if dropping:
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            if depth == 0 and token.text == ")":
                dropping = False
            continue
        yield token


def _declared(source: str, position: int) -> _Declared | None:
    """What is declared from ``position`` on; None when it is a function, or not understood."""
    names: list[_Token] = []
    words: set[str] = set()
    depth, angles, sought = 0, 0, True  # whether the next name is still to come
    before = ""
    last: _Token | None = None
    for token in _without_attributes(token for token, _ in _nested(source, position)):
        text = token.text
        if sought:
            words.add(text)
            if (
                last is not None
                and last.kind == "name"
                and depth == angles == 0
                and text in "[,;={"
                and not {before, last.text} & {"struct", "union", "class"}
            ):
                if before == "::":
                    return None
                names.append(last)
                sought = False
        if text in "([{":
            if text == "(" and sought:
                return None
            depth += 1
        elif text in ")]}":
            depth -= 1
        elif depth == 0 and text in "<>" and sought:
            angles += 1 if text == "<" else -1
        elif depth == angles == 0 and text == ",":
            sought = True
        elif depth == 0 and text == ";":
            return _Declared(names, frozenset(words), token.end) if names else None
        if depth < 0:
            return None
        before, last = last.text if last else "", token
    return None


def _bound(outline: _Outline, entry: str) -> str:
    """The most threads that a block of the entry may have, as an expression; 0 when not known."""
    numbers = outline.bounds.get(function_of(entry), [])
    scope = entry.partition("<")[0].rpartition("::")
    return f"{scope[0]}{scope[1]}cuhost_bound_{numbers[0]}" if len(numbers) == 1 else "0"


def _assemble(outline: _Outline, entries: Sequence[str]) -> str:
    refused = "".join(
        f'void cuhost_refused_{k}() __attribute__((error("{reason}")));\n'
        for k, reason in enumerate(outline.refusals)
    )
    functions = "".join(
        f'  ::cuhost::Caller<&{entry}>::entry("{function_of(entry)}", {_bound(outline, entry)}),\n'
        for entry in entries
    )
    return (
        f"{refused}"
        # Internal linkage keeps the text's names apart from the host's libraries.
        f'namespace cuda_device {{ namespace {{\n#line 1 "kernel.cu"\n{outline.rewritten()}\n'
        f'#line 1 "launch"\n'
        f"const ::cuhost::Entry cuhost_entries[] = {{\n{functions}}};\n"
        f"}} }}\n"
        f'extern "C" const ::cuhost::Table CUHOST_TABLE;\n'
        f"const ::cuhost::Table CUHOST_TABLE = {{::cuda_device::cuhost_entries}};\n"
    )
