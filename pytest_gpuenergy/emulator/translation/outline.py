"""One pass over CUDA C++ text that collects the edits its translation for the host needs.

Only what no header can express is edited: declarations of ``__shared__`` and device variables,
``extern "C"``, inline assembler and ``#include``. ``cuda/host/kernel.h`` does the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.emulator.translation.cuda_text import (
    ATTRIBUTES,
    CLUSTER_DIMS,
    LAUNCH_BOUNDS,
    LITERAL,
    SKIPPED,
    Token,
    nested,
    without_attributes,
)
from pytest_gpuenergy.emulator.translation.ptx.assembler import Assembler
from pytest_gpuenergy.emulator.translation.ptx.statements import CANNOT
from pytest_gpuenergy.support import KernelFault

_SUPPORTED_NAMES = """
    cuda.h cudaTypedefs.h cuda_runtime.h cuda_runtime_api.h device_launch_parameters.h
    vector_types.h vector_functions.h math_constants.h device_functions.h
    cassert cfloat climits cmath cstddef cstdint cstdio cstdlib cstring limits type_traits utility
    assert.h float.h limits.h math.h stddef.h stdint.h stdio.h stdlib.h string.h
    cuda/std/cstdint cuda/std/type_traits cuda/std/limits cuda/std/cstddef cuda/std/cmath
    cuda/std/utility cuda/std/chrono
"""
SUPPORTED = frozenset(_SUPPORTED_NAMES.split())
"""Those of which the host's own, or `kernel.h`, provide what there is."""
_STANDARD = "algorithm array functional initializer_list numeric optional ratio tuple variant"
EMULATED = {
    **{f"cuda/std/{name}": name for name in _STANDARD.split()},
    "cuda_fp16.h": "half.h",
    "cuda_bf16.h": "bfloat16.h",
    "cooperative_groups.h": "groups.h",
    "cooperative_groups/memcpy_async.h": "group_copies.h",
    "cooperative_groups/reduce.h": "groups.h",
    "cooperative_groups/scan.h": "group_scans.h",
    "cuda/atomic": "atomic.h",
    "cuda/barrier": "barrier.h",
    "cuda/pipeline": "pipelines.h",
    "cuda_pipeline.h": "pipeline.h",
    "cuda_pipeline_primitives.h": "pipeline.h",
    "mma.h": "fragments.h",
}
"""CUDA's headers, and those of ``cuda/host`` or of C++ that stand for them."""

# Headers of cuda/host for what a text may name without a header of CUDA's own. They cost compile
# time, so only texts that need them have them.
_NAMED = {
    "simd.h": re.compile(r"\b__v(?:[a-z]+[24]|i[a-z]+\d?_[su]\w+)\b"),
    "special_functions.h": re.compile(
        r"\b(?:(?:sin|cos|sincos)pi|erfc?inv|erfcx|normcdf(?:inv)?|cyl_bessel_i[01]|rcbrt|rhypot"
        r"|r?norm[34]d)f?\s*\("
    ),
    "algorithm": re.compile(r"\bstd\s*::\s*(?:min|max|clamp|minmax)\s*[(<]"),
    "times.h": re.compile(r"\bchrono::"),
}


def is_offered(header: str) -> bool:
    """Whether CUDA text may include a header."""
    return header in SUPPORTED or header in EMULATED


def headers_named_in(source: str) -> set[str]:
    """Headers of ``cuda/host`` that a text needs although it includes none of CUDA's for it."""
    return {header for header, named in _NAMED.items() if named.search(source)}


@dataclass(frozen=True)
class Variables:
    """The variables of one declaration.

    Attributes:
        names: of the variables.
        words: the texts of all tokens that belong to their types.
        end: position after the declaration.
    """

    names: Sequence[Token]
    words: frozenset[str]
    end: int


@dataclass(frozen=True)
class SharedArray:
    """The array that ``extern __shared__`` declares; ``dimensions`` are those after the first."""

    element: str
    name: str
    dimensions: str


@dataclass(frozen=True)
class KernelHeader:
    """A ``__global__`` function.

    Attributes:
        name: of the function.
        bounds: the arguments of its launch bounds.
        cluster: those of ``__cluster_dims__``.
        defined: whether this is its definition.
    """

    name: str
    bounds: str
    cluster: str
    defined: bool


def variables_at(source: str, position: int) -> Variables | None:
    """The variables declared from ``position`` on.

    Returns:
        None for a function, and for a declaration that is not understood.
    """
    names: list[Token] = []
    words: set[str] = set()
    depth, angles, sought = 0, 0, True  # whether the next name is still to come
    before = ""
    last: Token | None = None
    for token in without_attributes(token for token, _ in nested(source, position)):
        text = token.text
        if sought:
            words.add(text)
            if last is not None and depth == angles == 0 and _is_variable(before, last, text):
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
            return Variables(names, frozenset(words), token.end) if names else None
        if depth < 0:
            return None
        before, last = last.text if last else "", token
    return None


def _is_variable(before: str, token: Token, after: str) -> bool:
    """Whether ``token`` names a variable, by the texts around it."""
    is_type = bool({before, token.text} & {"struct", "union", "class"})
    return token.kind == "name" and after in "[,;={" and not is_type


def declarator_at(source: str, position: int) -> list[Token]:
    """The tokens from ``position`` up to the first ``;``, ``{`` or ``=`` outside of brackets."""
    tokens: list[Token] = []
    for token, depth in nested(source, position):
        if token.text in ";{=" and depth == 0:
            break
        tokens.append(token)
    return tokens


def shared_array(declarator: Sequence[Token]) -> SharedArray | None:
    """The array declared by the tokens after ``extern``; None when they declare none."""
    texts = [token.text for token in without_attributes(declarator)]
    texts = [text for text in texts if text != "__shared__"]
    opening = texts.index("[") if "[" in texts else 0
    if opening < 2 or "]" not in texts[opening:]:
        return None
    closing = texts.index("]", opening)
    return SharedArray(
        element=" ".join(texts[: opening - 1]),
        name=texts[opening - 1],
        dimensions="".join(texts[closing + 1 :]),
    )


def kernel_at(source: str, position: int) -> KernelHeader | None:
    """The kernel whose ``__global__`` ends at ``position``; None when the text ends before it."""
    name, previous, attribute, begin = "", "", "", 0
    arguments: dict[str, str] = {}
    for token, depth in nested(source, position):
        if depth == 0 and token.text in ";{":
            bounds, cluster = (arguments.get(one, "") for one in (LAUNCH_BOUNDS, CLUSTER_DIMS))
            return KernelHeader(name, bounds, cluster, token.text == "{")
        if token.text == "(" and depth == 1:
            attribute, begin = previous, token.end
            name = name if previous in ATTRIBUTES else name or previous
        elif token.text == ")" and depth == 0:
            arguments.setdefault(attribute, " ".join(source[begin : token.start].split()))
        if token.kind == "name":
            previous = token.text
    return None


# What may need an edit; all other text is skipped. A digit separator is not a quote.
_OUTLINE = re.compile(
    rf"""
    (?P<skipped>{SKIPPED} | {LITERAL} | (?<!\w)\d[\w.]*(?:'[\w.]+)+)
  | (?P<directive>^[ \t]*\#(?:[^\n\\/]|\\.|\\\n|/(?![/*])|/\*.*?\*/)*)
  | (?P<brace>[{{}}])
  | (?P<launch><<<)
  | (?<!\w)(?P<word>asm|__asm__|__asm|extern|__(?:shared|device|constant|managed|global)__)(?!\w)
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_LINKAGE = re.compile(r'\s*"C(?:\+\+)?"')
_INCLUDE = re.compile(r'\s*#\s*include\s*(?:<([^>\n]+)>|"([^"\n]+)")')
_SHARED_IN_MACRO = re.compile(
    r"\bextern\s+__shared__\s+([A-Za-z_][\w:]*(?:\s+\w+)*?)\s+(\w+)\s*\[\s*\]"
)
_PLAIN_SIZES = re.compile(r"[\d,\s]*")
_DYNAMIC = "::cuhost::cuhost_dynamic_shared"
_NAMESPACE = re.compile(r'(?:\bnamespace(?:\s+[\w:]+)?|\bextern\s*"C(?:\+\+)?")\s*$')
_NO_DEFINITION = frozenset(("extern", "typedef", "operator", "friend"))
_LEFT_ALONE = _NO_DEFINITION | {"const", "constexpr"}
_REFUSED_ATTRIBUTES = {
    "__block_size__": "__block_size__; __cluster_dims__ gives a size of clusters",
    "__maxnreg__": "__maxnreg__, a limit of registers; __launch_bounds__ gives one",
}


def cluster_of(kernel: str) -> str:
    """The name of a constant: the blocks of a cluster of the kernel, packed."""
    return f"cuhost_cluster_{kernel}"


class Outline:
    """The parts of a text that its translation depends on, and the edits that it needs.

    Attributes:
        edits: start, end and replacement, in order.
        kernels: names of the ``__global__`` functions.
        bounds: numbers of the launch bounds of each kernel that has any.
        clusters: kernels with ``__cluster_dims__``.
        in_macros: whether a macro may declare kernels.
        unsupported: why a kernel with a certain name cannot run.
        headers: of ``cuda/host`` that the text needs besides ``kernel.h``.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.edits: list[tuple[int, int, str]] = []
        self._assembler = Assembler(source)
        self.kernels: set[str] = set()
        self.bounds: dict[str, list[int]] = {}
        self.clusters: set[str] = set()
        self.in_macros = False
        self.headers = headers_named_in(source)
        self.unsupported: dict[str, str] = {}
        self._depth = 0
        self._kernel = ""
        self._kernel_depth = -1
        self._named = ""
        self._bound = ""  # arguments of the launch bounds of the kernel named last
        self._cluster = ""  # and of __cluster_dims__
        self._variables = 0
        self._elsewhere: set[str] = set()  # names declared extern
        self._gap = (0, 0)  # the last comments and directives
        self._namespaces: list[int] = []  # brace depths at which the open namespaces began

    def walk(self) -> None:
        """Collect the edits.

        Raises:
            KernelFault: ``compile`` when the text is malformed.
        """
        position = 0
        while match := _OUTLINE.search(self.source, position):
            position = match.end()
            if match["brace"]:
                self._brace(match["brace"], match.start(), match.end())
            elif match["launch"]:
                raise KernelFault(
                    "compile", f"line {self._line(match.start())}: {CANNOT}: launches by a kernel"
                )
            elif match["directive"]:
                self._directive(match)
                self._pass_over(match)
            elif word := match["word"]:
                position = self._handlers[word](match.start(), match.end())
            elif match["skipped"].startswith("/"):
                self._pass_over(match)
        self.headers |= self._assembler.headers

    def rewritten(self) -> str:
        """The text with the edits made, and as many lines as before."""
        parts, last = [], 0
        for start, end, text in self.edits:
            lines = "\n" * (self.source.count("\n", start, end) - text.count("\n"))
            parts += [self.source[last:start], text, lines]
            last = end
        return "".join([*parts, self.source[last:]])

    @property
    def refusals(self) -> Sequence[str]:
        """Why calls that must not be compiled are refused, by number."""
        return self._assembler.refusals

    @property
    def _handlers(self) -> Mapping[str, Callable[[int, int], int]]:
        return {
            "extern": self._extern,
            "__shared__": self._static,
            "__global__": self._global,
            **dict.fromkeys(("__device__", "__constant__", "__managed__"), self._of_device),
            **dict.fromkeys(("asm", "__asm__", "__asm"), self._assembled),
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
            text = f" enum {{ cuhost_bound_{number} = ::cuhost::cuhost_first({self._bound}) }};"
            self.edits.append((end, end, text))
        if self._cluster:
            packed = f"::cuhost::cuhost_packed({self._cluster})"
            self.edits.append((end, end, f" enum {{ {cluster_of(self._kernel)} = {packed} }};"))
            self.clusters.add(self._kernel)
        self._kernel, self._kernel_depth, self._bound, self._cluster = "", -1, "", ""

    def _directive(self, match: re.Match[str]) -> None:
        self.in_macros |= "__global__" in match[0]
        include = _INCLUDE.match(match[0])
        if include is None:
            macro = [*self._assembler.in_macro(match.start(), match.end())]
            if match[0].lstrip("# \t").startswith("define"):
                macro += (
                    (one.start(), one.end(), rf"{one[1]} * const {one[2]} = ({one[1]} *){_DYNAMIC}")
                    for one in _SHARED_IN_MACRO.finditer(self.source, match.start(), match.end())
                )
            self.edits += sorted(macro)
            return
        header = include[1] or include[2]
        text = ""
        if header in EMULATED:
            self.headers.add(EMULATED[header])
        elif header not in SUPPORTED:
            text = f"#error {CANNOT}: #include <{header}>"
        self.edits.append((match.start(), match.end(), text))

    def _attributes(self, kernel: str, end: int) -> None:
        """Note the attributes of a kernel because of which it cannot run."""
        for token in declarator_at(self.source, end):
            if reason := _REFUSED_ATTRIBUTES.get(token.text):
                self.unsupported[kernel] = f"line {self._line(token.start)}: {CANNOT}: {reason}"

    def _pass_over(self, match: re.Match[str]) -> None:
        """Note a directive or comment; with those directly before it, it is one gap."""
        begin, end = self._gap
        joined = not self.source[end : match.start()].strip()
        self._gap = (begin if joined else match.start(), match.end())

    def _of_template(self, start: int) -> bool:
        begin, end = self._gap
        if not self.source[end:start].strip():
            start = begin
        return self.source[:start].rstrip().endswith(">")

    def _global(self, start: int, end: int) -> int:
        """Remember the name and the launch bounds of a kernel; a definition begins a kernel."""
        header = kernel_at(self.source, end)
        if header is not None:
            self._attributes(header.name, end)
            self.kernels.add(header.name)
            self._named = header.name if header.defined else ""
            self._bound = header.bounds if header.defined else ""
            if self._of_template(start) and not self._bound.isdecimal():
                self._bound = ""
            self._cluster = header.cluster if header.defined else ""
            plain = _PLAIN_SIZES.fullmatch(header.cluster) or not self._of_template(start)
            if header.cluster and not (header.defined and plain):
                reason = f"{CLUSTER_DIMS} that depends on a template, or is not at the definition"
                self.unsupported[header.name] = f"line {self._line(start)}: {CANNOT}: {reason}"
        return end

    def _extern(self, start: int, end: int) -> int:
        """Remove ``extern "C"``, rewrite ``extern __shared__`` and note other ``extern`` names.

        A function that is ``extern "C"`` and declared before its definition would be visible
        outside of the text, which is compiled twice.
        """
        if linkage := _LINKAGE.match(self.source, end):
            block = self.source[linkage.end() :].lstrip().startswith("{")
            self.edits.append((start, linkage.end(), "namespace" if block else ""))
            return linkage.end()
        declarator = declarator_at(self.source, end)
        if any(token.text == "__shared__" for token in declarator):
            return self._dynamic_shared(start, declarator)
        elsewhere = variables_at(self.source, end)
        if elsewhere is None:
            return end
        self._elsewhere.update(token.text for token in elsewhere.names)
        return elsewhere.end

    def _dynamic_shared(self, start: int, declarator: Sequence[Token]) -> int:
        """Turn ``extern __shared__ T name[];`` into a pointer to the dynamic shared memory.

        Further dimensions stay, as in ``extern __shared__ float tile[][32];``.
        """
        array = shared_array(declarator)
        if array is None:
            raise KernelFault(
                "compile",
                f"line {self._line(start)}: extern __shared__ must declare an array without "
                "bounds on the emulated GPU, such as extern __shared__ float name[];",
            )
        if self._depth and not array.dimensions:
            element = array.element
            text = f"{element} * const {array.name} = ({element} *)::cuhost::cuhost_dynamic_shared"
        else:
            alias = f"cuhost_element_{array.name}"
            text = (
                f"typedef {array.element} {alias}{array.dimensions}; static {alias} *& "
                f"{array.name} = ({alias} *&)::cuhost::cuhost_dynamic_shared"
            )
        self.edits.append((start, declarator[-1].end, text))
        return declarator[-1].end

    def _static(self, start: int, end: int) -> int:
        """Register ``__shared__`` variables with the runtime."""
        declared = variables_at(self.source, end)
        if declared is None:
            raise KernelFault(
                "compile",
                f"line {self._line(start)}: __shared__ must declare variables on the emulated "
                "GPU, such as __shared__ float name[4];",
            )
        self.edits.append((start, end, ""))
        return self._register(declared, f'CUHOST_SHARED({{}}, "{self._kernel}", {{}})')

    def _of_device(self, start: int, end: int) -> int:
        """Register ``__device__`` and ``__constant__`` variables with the runtime.

        Constants are left alone, since the compiler may need their values, and so is what is
        declared in a function, a class or a template, or before its definition.
        """
        if len(self._namespaces) < self._depth or self._of_template(start):
            return end
        declared = variables_at(self.source, end)
        if declared is None:
            return end
        constant = "__constant__" in {*declared.words, self.source[start:end]}
        counted = " CUHOST_CONSTANT({0}, {1})" if constant else ""
        if not declared.words & (_LEFT_ALONE | self._elsewhere):
            return self._register(declared, f"CUHOST_DEVICE({{0}}, {{1}}){counted}")
        if constant and not declared.words & _NO_DEFINITION | self._elsewhere & declared.words:
            return self._register(declared, counted, rename=False)
        return end

    def _register(self, declared: Variables, registration: str, *, rename: bool = True) -> int:
        text = ""
        for token in declared.names:
            if rename:
                self.edits.append((token.start, token.end, f"cuhost_value_{self._variables}"))
            text += " " + registration.format(self._variables, token.text)
            self._variables += 1
        self.edits.append((declared.end, declared.end, text))
        return declared.end

    def _assembled(self, start: int, end: int) -> int:
        """Replace inline assembler, or refuse it where the compiler finds it reachable."""
        stop, text = self._assembler.replaced(end)
        if not self._depth:
            reason = self._assembler.refusal(end)
            raise KernelFault("compile", f"line {self._line(start)}: {reason}")
        self.edits.append((start, stop, text))
        return stop

    def _line(self, position: int) -> int:
        return self.source.count("\n", 0, position) + 1
