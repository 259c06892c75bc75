"""One pass over CUDA C++ text that collects the edits its translation for the host needs.

Only what no header can express is edited: declarations of ``__shared__`` and device variables,
``extern "C"``, inline assembler and ``#include``. ``cuda/host/kernel.h`` does the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from pytest_gpuenergy.emulator.declarations import (
    Variables,
    declarator_at,
    kernel_at,
    shared_array,
    variables_at,
)
from pytest_gpuenergy.emulator.headers import EMULATED, SUPPORTED, headers_named_in
from pytest_gpuenergy.emulator.ptx.assembler import Assembler
from pytest_gpuenergy.emulator.ptx.refusals import CANNOT
from pytest_gpuenergy.emulator.tokens import CLUSTER_DIMS, LITERAL, SKIPPED, Token
from pytest_gpuenergy.support import KernelFault

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
