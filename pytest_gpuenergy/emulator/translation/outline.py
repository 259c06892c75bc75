"""One pass over CUDA C++ text that collects the edits for its translation into C++.

Only what no header can express is edited: declarations of ``__shared__`` and device variables,
``extern "C"``, inline assembler and ``#include``. ``cuda/host/kernel.h`` does the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.emulator.translation.cuda_syntax import (
    ATTRIBUTES,
    CLUSTER_DIMS,
    LAUNCH_BOUNDS,
    LITERAL,
    SKIPPED,
    CudaToken,
    tokens_with_depth,
    without_attributes,
)
from pytest_gpuenergy.emulator.translation.ptx.assembler import AsmStatements
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
"""The headers that the host has, or whose contents are in `kernel.h`."""

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
"""Headers of CUDA, with the headers of ``cuda/host`` or C++ that stand for them."""

# Headers of cuda/host for names that CUDA declares without a header. They take time to compile, so
# only texts that use such a name include them.
_HEADERS_OF_NAMES = {
    "simd.h": re.compile(r"\b__v(?:[a-z]+[24]|i[a-z]+\d?_[su]\w+)\b"),
    "special_functions.h": re.compile(
        r"\b(?:(?:sin|cos|sincos)pi|erfc?inv|erfcx|normcdf(?:inv)?|cyl_bessel_i[01]|rcbrt|rhypot"
        r"|r?norm[34]d)f?\s*\("
    ),
    "algorithm": re.compile(r"\bstd\s*::\s*(?:min|max|clamp|minmax)\s*[(<]"),
    "times.h": re.compile(r"\bchrono::"),
}


def is_offered(header: str) -> bool:
    """Return whether CUDA text may include a header."""
    return header in SUPPORTED or header in EMULATED


@dataclass(frozen=True)
class _DeclaredVariables:
    """The variables of one declaration.

    Attributes:
        names: the names of the variables.
        words: the texts of all tokens that belong to their types.
        end: the position after the declaration.
    """

    names: Sequence[CudaToken]
    words: frozenset[str]
    end: int


@dataclass(frozen=True)
class _SharedArray:
    """The array that ``extern __shared__`` declares.

    Attributes:
        element: the type of its elements.
        name: its name.
        dimensions: the text of its dimensions after the first.
    """

    element: str
    name: str
    dimensions: str


@dataclass(frozen=True)
class _KernelHeader:
    """The declaration of a ``__global__`` function.

    Attributes:
        name: the name of the function.
        bounds: the arguments of ``__launch_bounds__``.
        cluster: the arguments of ``__cluster_dims__``.
        defined: whether this is the definition.
    """

    name: str
    bounds: str
    cluster: str
    defined: bool


def _variables_at(source: str, position: int) -> _DeclaredVariables | None:
    """Return the variables declared from ``position`` on.

    The result is None for a function and for a declaration that is not understood.
    """
    names: list[CudaToken] = []
    words: set[str] = set()
    depth, angles, expecting = 0, 0, True  # expecting: the next name is still to come
    before = ""
    last: CudaToken | None = None
    for token in without_attributes(token for token, _ in tokens_with_depth(source, position)):
        text = token.text
        if expecting:
            words.add(text)
            if last is not None and depth == angles == 0 and _is_variable(before, last, text):
                if before == "::":
                    return None
                names.append(last)
                expecting = False
        if text in "([{":
            if text == "(" and expecting:
                return None
            depth += 1
        elif text in ")]}":
            depth -= 1
        elif depth == 0 and text in "<>" and expecting:
            angles += 1 if text == "<" else -1
        elif depth == angles == 0 and text == ",":
            expecting = True
        elif depth == 0 and text == ";":
            return _DeclaredVariables(names, frozenset(words), token.end) if names else None
        if depth < 0:
            return None
        before, last = last.text if last else "", token
    return None


def _is_variable(before: str, token: CudaToken, after: str) -> bool:
    """Return whether ``token`` names a variable, judged by the texts around it."""
    is_type = bool({before, token.text} & {"struct", "union", "class"})
    return token.kind == "name" and after in "[,;={" and not is_type


def _declarator_at(source: str, position: int) -> list[CudaToken]:
    """Return the tokens from ``position`` to the first ``;``, ``{`` or ``=`` outside brackets."""
    tokens: list[CudaToken] = []
    for token, depth in tokens_with_depth(source, position):
        if token.text in ";{=" and depth == 0:
            break
        tokens.append(token)
    return tokens


def _shared_array(declarator: Sequence[CudaToken]) -> _SharedArray | None:
    """Return the array that the tokens after ``extern`` declare, or None."""
    texts = [token.text for token in without_attributes(declarator)]
    texts = [text for text in texts if text != "__shared__"]
    opening = texts.index("[") if "[" in texts else 0
    if opening < 2 or "]" not in texts[opening:]:
        return None
    closing = texts.index("]", opening)
    return _SharedArray(
        element=" ".join(texts[: opening - 1]),
        name=texts[opening - 1],
        dimensions="".join(texts[closing + 1 :]),
    )


def _kernel_at(source: str, position: int) -> _KernelHeader | None:
    """Return the kernel whose ``__global__`` ends at ``position``, or None at the text's end."""
    name, previous, attribute, begin = "", "", "", 0
    arguments: dict[str, str] = {}
    for token, depth in tokens_with_depth(source, position):
        if depth == 0 and token.text in ";{":
            bounds, cluster = arguments.get(LAUNCH_BOUNDS, ""), arguments.get(CLUSTER_DIMS, "")
            return _KernelHeader(name, bounds, cluster, token.text == "{")
        if token.text == "(" and depth == 1:
            attribute, begin = previous, token.end
            name = name if previous in ATTRIBUTES else name or previous
        elif token.text == ")" and depth == 0:
            arguments.setdefault(attribute, " ".join(source[begin : token.start].split()))
        if token.kind == "name":
            previous = token.text
    return None


# Text that may need an edit; everything else is skipped. A digit separator is not a quote.
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


def cluster_constant(kernel: str) -> str:
    """Return the name of the constant that holds the packed cluster size of the kernel."""
    return f"cuhost_cluster_{kernel}"


class Outline:
    """The parts of a text that its translation depends on, and the edits that it needs.

    Attributes:
        edits: the start, the end and the replacement of each edit, in order.
        kernels: the names of the ``__global__`` functions.
        bounds: the numbers of the launch bounds of each kernel that has any.
        clusters: the kernels with ``__cluster_dims__``.
        in_macros: whether a macro may declare kernels.
        unsupported: the reasons why some kernels cannot run, by kernel.
        headers: the headers of ``cuda/host`` that the text needs besides ``kernel.h``.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self.edits: list[tuple[int, int, str]] = []
        self._asm_statements = AsmStatements(source)
        self.kernels: set[str] = set()
        self.bounds: dict[str, list[int]] = {}
        self.clusters: set[str] = set()
        self.in_macros = False
        self.headers = {h for h, names in _HEADERS_OF_NAMES.items() if names.search(source)}
        self.unsupported: dict[str, str] = {}
        self._depth = 0
        self._kernel = ""
        self._kernel_depth = -1
        self._named = ""
        self._bound = ""  # arguments of __launch_bounds__ of the latest kernel
        self._cluster = ""  # arguments of its __cluster_dims__
        self._variables = 0
        self._extern_names: set[str] = set()
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
                self._widen_gap(match)
            elif word := match["word"]:
                position = self._handlers[word](match.start(), match.end())
            elif match["skipped"].startswith("/"):
                self._widen_gap(match)
        self.headers |= self._asm_statements.headers

    def rewritten(self) -> str:
        """Return the text with the edits made and as many lines as before."""
        parts, last = [], 0
        for start, end, text in self.edits:
            lines = "\n" * (self.source.count("\n", start, end) - text.count("\n"))
            parts += [self.source[last:start], text, lines]
            last = end
        return "".join([*parts, self.source[last:]])

    @property
    def refusals(self) -> Sequence[str]:
        """The reasons why calls that must not be compiled are refused, by number."""
        return self._asm_statements.refusals

    @property
    def _handlers(self) -> Mapping[str, Callable[[int, int], int]]:
        return {
            "extern": self._extern,
            "__shared__": self._shared_variables,
            "__global__": self._kernel_header,
            **dict.fromkeys(("__device__", "__constant__", "__managed__"), self._device_variables),
            **dict.fromkeys(("asm", "__asm__", "__asm"), self._asm),
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
            self.edits.append(
                (end, end, f" enum {{ {cluster_constant(self._kernel)} = {packed} }};")
            )
            self.clusters.add(self._kernel)
        self._kernel, self._kernel_depth, self._bound, self._cluster = "", -1, "", ""

    def _directive(self, match: re.Match[str]) -> None:
        self.in_macros |= "__global__" in match[0]
        include = _INCLUDE.match(match[0])
        if include is None:
            macro = [*self._asm_statements.in_macro(match.start(), match.end())]
            if match[0].lstrip("# \t").startswith("define"):
                macro += (
                    (m.start(), m.end(), rf"{m[1]} * const {m[2]} = ({m[1]} *){_DYNAMIC}")
                    for m in _SHARED_IN_MACRO.finditer(self.source, match.start(), match.end())
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

    def _widen_gap(self, match: re.Match[str]) -> None:
        """Note the end of a gap of directives and comments between declarations."""
        begin, end = self._gap
        joined = not self.source[end : match.start()].strip()
        self._gap = (begin if joined else match.start(), match.end())

    def _is_template(self, start: int) -> bool:
        """Return whether ``template<...>`` precedes the declaration that begins at ``start``."""
        begin, end = self._gap
        if not self.source[end:start].strip():
            start = begin
        return self.source[:start].rstrip().endswith(">")

    def _kernel_header(self, start: int, end: int) -> int:
        """Note the name, the launch bounds and the cluster size of a kernel."""
        header = _kernel_at(self.source, end)
        if header is not None:
            for token in _declarator_at(self.source, end):
                if reason := _REFUSED_ATTRIBUTES.get(token.text):
                    line = self._line(token.start)
                    self.unsupported[header.name] = f"line {line}: {CANNOT}: {reason}"
            self.kernels.add(header.name)
            self._named = header.name if header.defined else ""
            self._bound = header.bounds if header.defined else ""
            if self._is_template(start) and not self._bound.isdecimal():
                self._bound = ""
            self._cluster = header.cluster if header.defined else ""
            plain = _PLAIN_SIZES.fullmatch(header.cluster) or not self._is_template(start)
            if header.cluster and not (header.defined and plain):
                reason = f"{CLUSTER_DIMS} that depends on a template, or is not at the definition"
                self.unsupported[header.name] = f"line {self._line(start)}: {CANNOT}: {reason}"
        return end

    def _extern(self, start: int, end: int) -> int:
        """Remove ``extern "C"``, rewrite ``extern __shared__``, and note other ``extern`` names.

        An ``extern "C"`` function that is declared before its definition would be visible outside
        the text, which is compiled twice.
        """
        if linkage := _LINKAGE.match(self.source, end):
            block = self.source[linkage.end() :].lstrip().startswith("{")
            self.edits.append((start, linkage.end(), "namespace" if block else ""))
            return linkage.end()
        declarator = _declarator_at(self.source, end)
        if any(token.text == "__shared__" for token in declarator):
            return self._dynamic_shared(start, declarator)
        declared = _variables_at(self.source, end)
        if declared is None:
            return end
        self._extern_names.update(token.text for token in declared.names)
        return declared.end

    def _dynamic_shared(self, start: int, declarator: Sequence[CudaToken]) -> int:
        """Turn ``extern __shared__ T name[];`` into a pointer to the dynamic shared memory.

        Further dimensions stay, as in ``extern __shared__ float tile[][32];``.
        """
        array = _shared_array(declarator)
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

    def _shared_variables(self, start: int, end: int) -> int:
        """Register ``__shared__`` variables with the runtime."""
        declared = _variables_at(self.source, end)
        if declared is None:
            raise KernelFault(
                "compile",
                f"line {self._line(start)}: __shared__ must declare variables on the emulated "
                "GPU, such as __shared__ float name[4];",
            )
        self.edits.append((start, end, ""))
        return self._register(declared, f'CUHOST_SHARED({{}}, "{self._kernel}", {{}})')

    def _device_variables(self, start: int, end: int) -> int:
        """Register ``__device__`` and ``__constant__`` variables with the runtime.

        Constants keep their names, since the compiler may need their values. Declarations in a
        function, a class or a template and those before a definition are left alone.
        """
        if len(self._namespaces) < self._depth or self._is_template(start):
            return end
        declared = _variables_at(self.source, end)
        if declared is None:
            return end
        constant = "__constant__" in {*declared.words, self.source[start:end]}
        counted = " CUHOST_CONSTANT({0}, {1})" if constant else ""
        if not declared.words & (_LEFT_ALONE | self._extern_names):
            return self._register(declared, f"CUHOST_DEVICE({{0}}, {{1}}){counted}")
        if constant and not declared.words & _NO_DEFINITION | self._extern_names & declared.words:
            return self._register(declared, counted, rename=False)
        return end

    def _register(
        self, declared: _DeclaredVariables, registration: str, *, rename: bool = True
    ) -> int:
        text = ""
        for token in declared.names:
            if rename:
                self.edits.append((token.start, token.end, f"cuhost_value_{self._variables}"))
            text += " " + registration.format(self._variables, token.text)
            self._variables += 1
        self.edits.append((declared.end, declared.end, text))
        return declared.end

    def _asm(self, start: int, end: int) -> int:
        """Replace inline assembler, or refuse it where the compiler finds it reachable."""
        stop, text = self._asm_statements.replaced(end)
        if not self._depth:
            reason = self._asm_statements.refusal(end)
            raise KernelFault("compile", f"line {self._line(start)}: {reason}")
        self.edits.append((start, stop, text))
        return stop

    def _line(self, position: int) -> int:
        return self.source.count("\n", 0, position) + 1
