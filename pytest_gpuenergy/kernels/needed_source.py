"""Reduces a file to what one kernel needs: no host code, other kernels or unused helpers.

Names decide: a declaration is needed if the entry, or something that is needed, mentions its name.
Too much may therefore be kept, never too little, except where the text is beyond this reader; then
the whole text is.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.kernels.cuda_tokens import CudaToken, cuda_tokens

_NAME = re.compile(r"[A-Za-z_]\w*")
_INCLUDE = re.compile(r"\s*#\s*include\s*[<\"]([^>\"\n]+)[>\"]")
_DEFINE = re.compile(r"\s*#\s*define\s+(\w+)(.*)", re.DOTALL)
_CUFFT_TYPES = (
    "typedef float cufftReal; typedef double cufftDoubleReal; "
    "typedef float2 cufftComplex; typedef double2 cufftDoubleComplex;"
)
_HALVES = "#include <cuda_bf16.h>"
_BROUGHT = {
    "cuda_fp8.h": _HALVES,
    "cublas_v2.h": _HALVES,
    "cublasLt.h": "#include <cuda_fp16.h>",
    "cufft.h": _CUFFT_TYPES,
    "cufftXt.h": _CUFFT_TYPES,
}
"""Text that replaces headers that are left out, for what kernels need from them."""
_OF_C = (
    "assert|ctype|dirent|errno|fcntl|fenv|float|getopt|inttypes|limits|locale|malloc|math|memory|omp"
    "|pthread|sched|setjmp|signal|std(?:arg|bool|def|int|io|lib)|strings?|time|unistd|wchar|windows"
)
HOST_HEADER = re.compile(
    rf"(?:[a-z_]+|(?:{_OF_C})\.h"
    r"|(?:sys|arpa|netinet|thrust(?!/complex\.h)|torch|ATen|c10|pybind11|GL|GLES\d?|GLFW|GLUT|EGL|X11|vulkan)/.*"
    r"|helper_(?!math\.)\w+\.h|(?:cublas|cudnn|cusparse|cufft|nvtx|nccl|curand(?!_))\w*(?:/\w+)?\.h"
    r"|cuda_(?:profiler_api|gl_interop|egl_interop|d3d\d+_interop)\.h)"
)
"""Matches the headers of C, C++, samples and libraries that only host code needs."""
_CONDITION = re.compile(r"\s*#\s*(if|else|elif|endif)")
_TYPES = frozenset({"struct", "class", "union", "enum"})
_KEYWORDS = _TYPES | {
    *("template", "typedef", "using", "typename", "const", "static", "unsigned", "final")
}
_NAMESPACES = frozenset({"std", "cuda", "nvcuda", "cooperative_groups", "cub"})
"""The namespaces that may be used without a declaration in the text."""
_DEVICE = frozenset({"__device__", "__global__", "__constant__", "__managed__"})
_HOST = re.compile(
    r"<<<|\bthrow\b|\bcuda(?:Stream|Event|Error)_t\b"
    r"|\bcuda(?:Malloc|Memcpy|Memset|Free|Launch|Get|Set|Stream|Event|Func|Occupancy)\w*\s*\("
    r"|\bcu[a-z]+(?:Handle|_?handle|Status|_?status)_t\b"
    r"|\bstd\s*::\s*(?:string|vector|map|unordered_map|set|list|cout|cerr|endl|\w*stream|runtime_error"
    r"|exception|unique_ptr|shared_ptr|mutex|thread|function|chrono|filesystem|mt19937|to_string)\b"
)
"""Matches what only host code has."""
_ATTRIBUTES = frozenset(
    {
        *("__launch_bounds__", "__cluster_dims__", "__attribute__", "__align__", "alignas"),
        *("decltype", "__declspec", "noexcept", "__maxnreg__", "__block_size__"),
    }
)


@dataclass(frozen=True)
class _Declaration:
    """A declaration at file scope or in a namespace.

    Attributes:
        start, end: the positions of the declaration in the text.
        declared: the names by which others mention it; empty if it is always needed.
        used: the names that it mentions.
        called: the macro whose call it may be: the name that begins it, if a parenthesis follows.
        opened: the namespace whose names it makes known, with ``using namespace``.
        scopes: the namespaces that it stands in, or gives another name.
        is_host: whether it is host code, which no kernel can call.
    """

    start: int
    end: int
    declared: frozenset[str]
    used: frozenset[str]
    called: str
    opened: str
    scopes: frozenset[str]
    is_host: bool


@functools.lru_cache(maxsize=8)  # texts are compiled in several variants
def reachable(source: str, entries: tuple[str, ...], has_header: Callable[[str], bool]) -> str:
    """Return the text, line by line as before, with blanks for what none of its entries needs.

    Args:
        source: CUDA C++ text.
        entries: the kernels that are launched, such as ``scale<4>``.
        has_header: whether a header, such as ``cuda_fp16.h``, can be included; others are left out.
    """
    items, directives = _read(source)
    if items is None:
        return source
    macros: dict[str, set[str]] = {}
    of_host: set[str] = set()  # macros that stand for host code
    blanks = []
    for token in directives:
        if (define := _DEFINE.match(token.text)) is not None:
            macros.setdefault(define[1], set()).update(_NAME.findall(define[2]))
            of_host |= {define[1]} if _HOST.search(define[2]) else set()
        include = _INCLUDE.match(token.text)
        if include is not None and not has_header(include[1].strip()):
            header = include[1].strip()
            halves = _HALVES if header.startswith(("torch/", "ATen/", "c10/cuda/")) else ""
            blanks.append((token.start, token.end, _BROUGHT.get(header, halves)))
    needed = {name for entry in entries for name in _NAME.findall(entry)}
    while more := {name for name in macros if macros[name] & of_host} - of_host:
        of_host |= more
    inner = (_NAMESPACES - {"std"}).union(*(item.scopes for item in items))
    known = inner | {"std"}
    waiting = [
        item
        for item in items
        if (not item.declared or item.called in macros)
        and item.called not in of_host
        and (not item.opened or item.opened in known or item.opened.partition("::")[0] in inner)
    ]
    kept: set[int] = {item.start for item in waiting}
    grown = True
    while grown:
        for item in waiting:
            needed |= item.used
        for name in [name for name in macros if name in needed]:
            needed |= macros.pop(name)
        waiting = [
            item
            for item in items
            if item.start not in kept and item.declared & needed and not item.is_host
        ]
        kept |= {item.start for item in waiting}
        grown = bool(waiting)
    blanks += [(item.start, item.end, "") for item in items if item.start not in kept]
    return _without(source, sorted(blanks), directives)


@functools.lru_cache(maxsize=2)  # each entry of a text is asked for by itself, too
def _read(source: str) -> tuple[Sequence[_Declaration] | None, Sequence[CudaToken]]:
    """Return the declarations of a text, as `_items` does, and its directives."""
    tokens = list(cuda_tokens(source))
    return _items(tokens), [token for token in tokens if token.kind == "directive"]


def _items(tokens: Sequence[CudaToken]) -> list[_Declaration] | None:
    """Return the declarations of a text; None if its braces do not match."""
    items: list[_Declaration] = []
    head: list[CudaToken] = []  # of the declaration so far, with its body
    body_at = -1  # index in ``head`` of the brace that opens the body
    depth = 0
    scopes: list[frozenset[str]] = []  # names of the namespaces around
    # For each condition around, whether this is a later branch, within a declaration. What it opens
    # or closes, the first branch does as well.
    alternatives: list[bool] = []
    for token in tokens:
        condition = _CONDITION.match(token.text) if token.kind == "directive" else None
        if condition is not None and condition[1] == "if":
            alternatives.append(False)
        elif condition is not None and alternatives:
            last = alternatives.pop()
            if condition[1] != "endif":
                alternatives.append(last or bool(head))
        if token.kind == "directive" and not head:
            continue
        head.append(token)
        if token.kind != "symbol" or any(alternatives):
            continue
        if token.text in "([{":
            if token.text == "{" and depth == 0 and _is_scope(head[:-1]):
                names = (token.text for token in head if token.kind == "name")
                scopes, head, body_at = [*scopes, frozenset(names)], [], -1
                continue
            if token.text == "{" and depth == 0 and body_at < 0:
                body_at = len(head) - 1
            depth += 1
        elif token.text in ")]}":
            if depth == 0 and token.text == "}" and len(head) == 1 and scopes:
                scopes, head = scopes[:-1], []
                continue
            depth -= 1
        if depth < 0:
            return None
        ends = token.text == ";" or (token.text == "}" and _is_function(head[:body_at]))
        if depth == 0 and ends:
            items.append(_item(head, body_at, scopes))
            head, body_at = [], -1
    while head and head[-1].kind == "directive":
        head.pop()
    if head and depth == 0 and head[-1].text == ")":  # calls of macros at the end
        items.append(_item(head, body_at, scopes))
        head = []
    return items if depth == 0 and not scopes and not head else None


def _is_scope(head: Sequence[CudaToken]) -> bool:
    words = [token.text for token in head if token.kind != "directive"]
    words = words[1:] if words[:1] == ["inline"] else words
    return words[:1] == ["namespace"] or (
        len(words) == 2 and words[0] == "extern" and words[1].startswith('"')
    )


def _is_function(head: Sequence[CudaToken]) -> bool:
    """Return whether a brace after ``head`` opens the body of a function."""
    words, _ = _top(head)
    return "(" in words and "=" not in words[: words.index("(")] and not _type_of(words)


def _top(head: Sequence[CudaToken]) -> tuple[list[str], list[CudaToken]]:
    """Return the words outside parentheses, template parameters and attributes, with tokens."""
    found: list[CudaToken] = []
    depth, angles, previous = 0, 0, ""
    for token in head:
        if token.kind == "directive":
            continue
        text = token.text
        if text in ("(", "["):
            if depth == angles == 0 and previous not in _ATTRIBUTES:
                found.append(token)
            depth += 1
        elif text in (")", "]"):
            depth -= 1
        elif depth == 0 and text in ("<", ">", ">>") and previous != "operator":
            angles = max(0, angles + {"<": 1, ">": -1, ">>": -2}[text])
        elif depth == angles == 0 and text not in _ATTRIBUTES:
            found.append(token)
        previous = text
    return [token.text for token in found], found


def _type_of(words: Sequence[str]) -> bool:
    """Return whether words begin the definition of a type."""
    plain = [word for word in words if word not in ("template", "typedef", "static", "const")]
    return bool(plain) and plain[0] in _TYPES and "(" not in plain


def _item(
    tokens: Sequence[CudaToken], body_at: int, scopes: Sequence[frozenset[str]]
) -> _Declaration:
    head = tokens if body_at < 0 else tokens[:body_at]
    words, top = _top(head)
    used = frozenset(token.text for token in tokens if token.kind == "name")
    macros = {
        name for token in tokens if token.kind == "directive" for name in _NAME.findall(token.text)
    }
    conditions = [
        found[1] for token in tokens if (found := _CONDITION.match(token.text)) is not None
    ]
    declared: set[str] = set()
    if words[:2] == ["using", "namespace"] or words[:1] == ["static_assert"]:
        pass
    elif conditions and conditions.count("if") != conditions.count("endif"):
        pass  # a condition begins in one declaration and ends in another
    elif "operator" in words:
        declared = set() if _DEVICE & set(words) else {"operator"}
    elif words[:1] in (["typedef"], ["using"]) or _type_of(words):
        own = top[: words.index(":")] if ":" in words else top  # without base classes
        declared = {token.text for token in own if token.kind == "name"} - _KEYWORDS
        tail = tokens[body_at:] if body_at >= 0 else ()
        closing = max((k for k, token in enumerate(tail) if token.text == "}"), default=0)
        behind = tail if "enum" in words else tail[closing:]
        declared |= {token.text for token in behind if token.kind == "name"} - _KEYWORDS
        if words[:1] == ["using"] and "=" not in words:  # using a::b;
            declared = {token.text for token in top[-2:] if token.kind == "name"}
    elif "(" in words and "=" not in words[: words.index("(")]:
        before = top[: words.index("(")]
        declared = {token.text for token in before[-1:] if token.kind == "name"}
        for scope, name in itertools.pairwise(before):
            declared |= {scope.text} if name.text == "::" and scope.kind == "name" else set()
    else:
        for token, after in itertools.zip_longest(top, top[1:]):
            if token.kind == "name" and (after is None or after.text in ("[", "=", ";", ",", ":")):
                declared.add(token.text)
    is_host = (
        not _DEVICE & used and _HOST.search(" ".join(token.text for token in tokens)) is not None
    )
    called = words[0] if words[1:2] == ["("] else ""
    opened = "".join(words[2:-1]) if words[:2] == ["using", "namespace"] else ""
    around = frozenset[str]().union(*scopes, words[1:2] if words[:1] == ["namespace"] else ())
    place = tokens[0].start, tokens[-1].end
    return _Declaration(*place, frozenset(declared), used | macros, called, opened, around, is_host)


def _without(
    source: str, blanks: Sequence[tuple[int, int, str]], directives: Sequence[CudaToken]
) -> str:
    """Return the text without some of its parts, whose line breaks and other directives stay."""
    parts, last = [], 0
    for start, end, instead in blanks:
        if start < last:  # an include within a declaration that is left out
            continue
        inner = [] if source[start:end].lstrip().startswith("#") else directives
        parts += [source[last:start], instead]
        at = start
        for token in inner:
            if start <= token.start and token.end <= end:
                parts += ["\n" * source.count("\n", at, token.start), token.text]
                at = token.end
        parts.append("\n" * source.count("\n", at, end))
        last = end
    return "".join([*parts, source[last:]])
