"""One pass over CUDA C++ text that collects the edits for its translation into C++.

Only what no header can express is edited: declarations of ``__shared__`` and device variables,
``extern "C"``, inline assembler and ``#include``. ``cuda/host/kernel.h`` does the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.emulator.translation.cuda_syntax import (
    ATTRIBUTES,
    CLUSTER_DIMS,
    LAUNCH_BOUNDS,
    replace_spans,
    with_depth,
    without_attributes,
)
from pytest_gpuenergy.emulator.translation.ptx.assembler import AsmStatements
from pytest_gpuenergy.emulator.translation.ptx.statements import CANNOT
from pytest_gpuenergy.kernels import CudaToken, cuda_tokens, function_name, reachable
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

_CUB = """
    cub block/block_load block/block_radix_sort block/block_reduce block/block_scan
    block/block_store thread/thread_operators util_type util_ptx warp/warp_reduce warp/warp_scan
"""
_STANDARD = "algorithm array functional initializer_list numeric optional ratio tuple variant"
EMULATED = {
    **{f"cuda/std/{name}": name for name in _STANDARD.split()},
    **{f"cub/{name}.cuh": "cub.h" for name in _CUB.split()},
    "array": "array",
    "cuda_fp16.h": "half.h",
    "cuda_bf16.h": "bfloat16.h",
    "cuda_fp8.h": "fp8.h",
    "cuComplex.h": "complex_numbers.h",
    "thrust/complex.h": "complex_numbers.h",
    "cuda/std/complex": "complex_numbers.h",
    "cuda/std/span": "spans.h",
    "cuda/functional": "functions.h",
    "cuda/std/bit": "functions.h",
    "curand_kernel.h": "curand.h",
    "nv/target": "targets.h",
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

SHARED, OWN_SHARED = "CUHOST_SHARED(", "CUHOST_OWN_SHARED("
"""The macros by which the translation declares shared variables; the second one is for variables in
a kernel's own body, which are not static in checked builds."""
_COPYING_LAMBDA = re.compile(r"\[\s*=")


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


def _declared_variables(tokens: Iterable[CudaToken]) -> _DeclaredVariables | None:
    """Return the variables that the declaration at the beginning of ``tokens`` declares.

    The result is None for a function and for a declaration that is not understood.
    """
    names: list[CudaToken] = []
    words: set[str] = set()
    depth, angles, expecting = 0, 0, True  # expecting: the next name is still to come
    before = ""
    last: CudaToken | None = None
    for token in without_attributes(tokens):
        text = token.text
        if expecting:
            words.add(text)
            named = last is not None and last.kind == "name" and text in ("[", ",", ";", "=", "{")
            if last is not None and named and depth == angles == 0:
                if before == "::":
                    return None
                if not {before, last.text} & {"struct", "union", "class"}:
                    names.append(last)
                    expecting = False
        if text in ("(", "[", "{"):
            if text == "(" and expecting:
                return None
            depth += 1
        elif text in (")", "]", "}"):
            depth -= 1
        elif depth == 0 and expecting and text in ("<", ">", ">>"):
            angles += {"<": 1, ">": -1, ">>": -2}[text]
        elif depth == angles == 0 and text == ",":
            expecting = True
        elif depth == 0 and text == ";":
            return _DeclaredVariables(names, frozenset(words), token.end) if names else None
        if depth < 0:
            return None
        before, last = last.text if last else "", token
    return None


_LINKAGE = ('"C"', '"C++"')
_INCLUDE = re.compile(r'\s*#\s*include\s*(?:<([^>\n]+)>|"([^"\n]+)")')
_SHARED_IN_MACRO = re.compile(
    r"\bextern\s+__shared__\s+([A-Za-z_][\w:]*(?:\s+\w+)*?)\s+(\w+)\s*\[\s*\]"
)
_ALIGNED = re.compile(r"\b(?:alignas|__align__|aligned)\s*\(\s*([^)]*?)\s*\)")
_PLAIN_TYPE = re.compile(
    r"(?:(?:unsigned|signed|const|volatile) )*(?:(?:u?(?:char|short|int|long)|float|double)[1-4]?"
    r"|unsigned|signed|bool|u?int(?:8|16|32|64)_t|(?:__)?half2?|__nv_bfloat16|size_t)"
)
# Of dynamic shared memory: the least, and the greatest that is told apart.
_MIN_ALIGNMENT, _MAX_ALIGNMENT = 16, 1024
_PLAIN_SIZES = re.compile(r"[\d,\s]*")
_DYNAMIC = "::cuhost::cuhost_dynamic_shared"
_NAMESPACE = re.compile(r'(?:\bnamespace(?:\s+[\w:]+)?|\bextern\s*"C(?:\+\+)?")\s*$')
_NO_DEFINITION = frozenset(("extern", "typedef", "operator", "friend"))
_LEFT_ALONE = _NO_DEFINITION | {"const", "constexpr"}
_REFUSED_ATTRIBUTES = {
    "__block_size__": "__block_size__; __cluster_dims__ gives a size of clusters",
}


def cluster_constant(kernel: str) -> str:
    """Return the name of the constant that holds the packed cluster size of the kernel."""
    return f"cuhost_cluster_{kernel}"


class Outline:
    """The parts of a text that its translation depends on, and the edits that it needs.

    Args:
        source: the CUDA C++ text.
        entries: the kernel functions that are launched, see `translate`.

    Attributes:
        edits: the start, the end and the replacement of each edit, in order.
        kernels: the names of the ``__global__`` functions.
        bounds: the numbers of the launch bounds of each kernel that has any.
        clusters: the kernels with ``__cluster_dims__``.
        in_macros: whether a macro may declare kernels.
        shared_alignment: the alignment of dynamic shared memory, as far as its declarations say.
        unsupported: the reasons why some kernels cannot run, by kernel.
        headers: the headers of ``cuda/host`` that the text needs besides ``kernel.h``.
    """

    def __init__(self, source: str, entries: Sequence[str]) -> None:
        self.source = source
        self._entries = {function_name(entry): entry for entry in entries}
        self.edits: list[tuple[int, int, str]] = []
        self._asm_statements = AsmStatements(source)
        self.kernels: set[str] = set()
        self.bounds: dict[str, list[int]] = {}
        self.clusters: set[str] = set()
        self.in_macros = False
        self.shared_alignment = _MIN_ALIGNMENT
        self.headers = {h for h, names in _HEADERS_OF_NAMES.items() if names.search(source)}
        self.unsupported: dict[str, str] = {}
        self._directives: list[CudaToken] = []
        self._tokens: list[CudaToken] = []  # without directives
        for token in cuda_tokens(source):
            (self._directives if token.kind == "directive" else self._tokens).append(token)
        self._depth = 0
        self._kernel = ""
        self._kernel_depth = -1
        self._named = ""
        self._bound = ""  # arguments of __launch_bounds__ of the latest kernel
        self._cluster = ""  # arguments of its __cluster_dims__
        self._variables = 0
        self._extern_names: set[str] = set()
        self._namespaces: list[int] = []  # brace depths at which the open namespaces began

    def walk(self) -> None:
        """Collect the edits."""
        handlers: Mapping[str, Callable[[int], int]] = {
            "extern": self._extern,
            "__shared__": self._shared_variables,
            "__global__": self._kernel_header,
            **dict.fromkeys(("__device__", "__constant__", "__managed__"), self._device_variables),
            **dict.fromkeys(("asm", "__asm__", "__asm"), self._asm),
        }
        k = position = 0
        while k < len(self._tokens):
            token = self._tokens[k]
            if token.start < position:  # a handler has been beyond it
                pass
            elif token.text == "{":
                if _NAMESPACE.search(self.source, max(0, token.start - 200), token.start):
                    self._namespaces.append(self._depth)
                if self._named:
                    self._kernel, self._kernel_depth, self._named = self._named, self._depth, ""
                self._depth += 1
            elif token.text == "}":
                self._depth -= 1
                if self._namespaces and self._depth <= self._namespaces[-1]:
                    self._namespaces.pop()
                if self._depth <= self._kernel_depth:
                    self._close_kernel(token.end)
            elif token.text == "<<<":
                line = self._line(token.start)
                raise KernelFault("compile", f"line {line}: {CANNOT}: launches by a kernel")
            elif handler := handlers.get(token.text):
                position = handler(k)
            k += 1
        for directive in self._directives:
            self._directive(directive)
        self.edits.sort(key=lambda edit: edit[:2])
        self.headers |= self._asm_statements.headers

    def rewritten(self) -> str:
        """Return the text with the edits made and as many lines as before."""
        return replace_spans(self.source, self.edits)

    @property
    def refusals(self) -> Sequence[str]:
        """The reasons why calls that must not be compiled are refused, by number."""
        return self._asm_statements.refusals

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

    def _directive(self, token: CudaToken) -> None:
        self.in_macros |= "__global__" in token.text
        include = _INCLUDE.match(token.text)
        if include is None:
            self.edits += self._asm_statements.in_macro(token)
            if token.text.lstrip("# \t").startswith("define"):
                for m in _SHARED_IN_MACRO.finditer(self.source, token.start, token.end):
                    text = rf"{m[1]} * const {m[2]} = ({m[1]} *){_DYNAMIC}"
                    self.edits.append((m.start(), m.end(), text))
                    self.shared_alignment = _MAX_ALIGNMENT
            return
        header = include[1] or include[2]
        text = ""
        if header in EMULATED:
            self.headers.add(EMULATED[header])
        elif header not in SUPPORTED:
            text = f"#error {CANNOT}: #include <{header}>"
        self.edits.append((token.start, token.end, text))

    def _is_template(self, k: int) -> bool:
        """Return whether ``template<...>`` precedes the declaration that begins at a token."""
        return k > 0 and self._tokens[k - 1].text in (">", ">>")

    def _declarator(self, k: int) -> list[CudaToken]:
        """Return the tokens from ``k`` to the first ``;``, ``{`` or ``=`` outside brackets."""
        tokens: list[CudaToken] = []
        for token, depth in with_depth(self._tokens[k:]):
            if token.text in (";", "{", "=") and depth == 0:
                break
            tokens.append(token)
        return tokens

    def _kernel_header(self, k: int) -> int:
        """Note the name, the launch bounds and the cluster size of a kernel."""
        start = self._tokens[k].start
        declarator = self._declarator(k + 1)
        after = k + 1 + len(declarator)
        if after == len(self._tokens):
            return 0
        name, previous, attribute, begin = "", "", "", 0
        arguments: dict[str, str] = {}
        for token, depth in with_depth(declarator):
            if token.text == "(" and depth == 1:
                attribute, begin = previous, token.end
                name = name if previous in ATTRIBUTES else name or previous
            elif token.text == ")" and depth == 0:
                text = " ".join(self.source[begin : token.start].split())
                arguments.setdefault(attribute, text)
            if token.kind == "name":
                previous = token.text
        self.kernels.add(name)
        for token in declarator:
            if reason := _REFUSED_ATTRIBUTES.get(token.text):
                self.unsupported[name] = f"line {self._line(token.start)}: {CANNOT}: {reason}"
        defined = self._tokens[after].text == "{"
        self._named = name if defined else ""
        self._bound = arguments.get(LAUNCH_BOUNDS, "") if defined else ""
        if self._is_template(k) and not self._bound.isdecimal():
            self._bound = ""
        cluster = arguments.get(CLUSTER_DIMS, "")
        self._cluster = cluster if defined else ""
        plain = _PLAIN_SIZES.fullmatch(cluster) or not self._is_template(k)
        if cluster and not (defined and plain):
            reason = f"{CLUSTER_DIMS} that depends on a template, or is not at the definition"
            self.unsupported[name] = f"line {self._line(start)}: {CANNOT}: {reason}"
        return 0

    def _extern(self, k: int) -> int:
        """Remove ``extern "C"``, rewrite ``extern __shared__``, and note other ``extern`` names.

        An ``extern "C"`` function that is declared before its definition would be visible outside
        the text, which is compiled twice.
        """
        start = self._tokens[k].start
        following = self._tokens[k + 1 : k + 3]
        if following and following[0].text in _LINKAGE:
            block = [token.text for token in following[1:]] == ["{"]
            self.edits.append((start, following[0].end, "namespace" if block else ""))
            return following[0].end
        declarator = self._declarator(k + 1)
        if any(token.text == "__shared__" for token in declarator):
            return self._dynamic_shared(start, declarator)
        declared = _declared_variables(self._tokens[k + 1 :])
        if declared is None:
            return 0
        self._extern_names.update(token.text for token in declared.names)
        return declared.end

    def _dynamic_shared(self, start: int, declarator: Sequence[CudaToken]) -> int:
        """Turn ``extern __shared__ T name[];`` into a pointer to the dynamic shared memory.

        Further dimensions stay, as in ``extern __shared__ float tile[][32];``.
        """
        texts = [token.text for token in without_attributes(declarator)]
        texts = [text for text in texts if text != "__shared__"]
        opening = texts.index("[") if "[" in texts else 0
        if opening < 2 or "]" not in texts[opening:]:
            raise KernelFault(
                "compile",
                f"line {self._line(start)}: extern __shared__ must declare an array without "
                "bounds on the emulated GPU, such as extern __shared__ float name[];",
            )
        element, name = " ".join(texts[: opening - 1]), texts[opening - 1]
        dimensions = "".join(texts[texts.index("]", opening) + 1 :])
        declared = self.source[start : declarator[-1].end]
        if aligned := _ALIGNED.search(declared):
            alignment = int(aligned[1]) if aligned[1].isdecimal() else _MAX_ALIGNMENT
        else:
            alignment = _MIN_ALIGNMENT if _PLAIN_TYPE.fullmatch(element) else _MAX_ALIGNMENT
        self.shared_alignment = min(max(self.shared_alignment, alignment), _MAX_ALIGNMENT)
        if self._depth and not dimensions:
            text = f"{element} * const {name} = ({element} *){_DYNAMIC}"
        else:
            alias = f"cuhost_element_{name}"
            text = (
                f"typedef {element} {alias}{dimensions}; static {alias} *& "
                f"{name} = ({alias} *&){_DYNAMIC}"
            )
        self.edits.append((start, declarator[-1].end, text))
        return declarator[-1].end

    def _shared_variables(self, k: int) -> int:
        """Register ``__shared__`` variables with the runtime."""
        word = self._tokens[k]
        declared = _declared_variables(self._tokens[k + 1 :])
        if declared is None:
            raise KernelFault(
                "compile",
                f"line {self._line(word.start)}: __shared__ must declare variables on the emulated "
                "GPU, such as __shared__ float name[4];",
            )
        self.edits.append((word.start, word.end, ""))
        kernels = self._kernel or self._users(word.start)
        # A lambda that copies would copy the variable to which a local reference refers.
        is_own = self._kernel and not _COPYING_LAMBDA.search(self.source)
        registration = f'{OWN_SHARED if is_own else SHARED}{{}}, "{kernels}", {{}})'
        return self._register(declared, registration, mark=" CUHOST_UNFILLED")

    def _users(self, position: int) -> str:
        """Return the entries that need what is declared there, between spaces; "" for all."""
        line = self._line(position) - 1
        users = [
            name
            for name, entry in self._entries.items()
            if "__shared__" in reachable(self.source, (entry,), is_offered).split("\n")[line]
        ]
        return f" {' '.join(users)} " if 0 < len(users) < len(self._entries) else ""

    def _device_variables(self, k: int) -> int:
        """Register ``__device__`` and ``__constant__`` variables with the runtime.

        Constants keep their names, since the compiler may need their values. Declarations in a
        function, a class or a template and those before a definition are left alone.
        """
        if len(self._namespaces) < self._depth or self._is_template(k):
            return 0
        declared = _declared_variables(self._tokens[k + 1 :])
        if declared is None:
            return 0
        constant = "__constant__" in {*declared.words, self._tokens[k].text}
        counted = " CUHOST_CONSTANT({0}, {1})" if constant else ""
        if not declared.words & (_LEFT_ALONE | self._extern_names):
            return self._register(declared, f"CUHOST_DEVICE({{0}}, {{1}}){counted}")
        if constant and not declared.words & _NO_DEFINITION | self._extern_names & declared.words:
            return self._register(declared, counted, rename=False)
        return 0

    def _register(
        self,
        declared: _DeclaredVariables,
        registration: str,
        *,
        rename: bool = True,
        mark: str = "",
    ) -> int:
        text = ""
        for token in declared.names:
            if rename:
                renamed = f"cuhost_value_{self._variables}{mark}"
                self.edits.append((token.start, token.end, renamed))
            text += " " + registration.format(self._variables, token.text)
            self._variables += 1
        self.edits.append((declared.end, declared.end, text))
        return declared.end

    def _asm(self, k: int) -> int:
        """Replace inline assembler, or refuse it where the compiler finds it reachable."""
        word = self._tokens[k]
        stop, text = self._asm_statements.replaced(word.end)
        if not self._depth:
            reason = self._asm_statements.refusal(word.end)
            raise KernelFault("compile", f"line {self._line(word.start)}: {reason}")
        self.edits.append((word.start, stop, text))
        return stop

    def _line(self, position: int) -> int:
        return self.source.count("\n", 0, position) + 1
