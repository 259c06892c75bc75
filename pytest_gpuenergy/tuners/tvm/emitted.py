"""Checks that the text TVM has emitted has kernels that compute, and nothing else.

This is the last line of defence against a record that is a program. The text is not parsed as C++.
Instead, it must name and call nothing but what it declares and what CUDA provides. Without strings,
lambdas, function types and preprocessor lines, only arithmetic on its arguments remains.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator

from pytest_gpuenergy.support import FormError, shown
from pytest_gpuenergy.tuners.tvm.tvm_requirements import import_tvm

_HEADER = "tirx.intrinsics.cuda.header_generator"
_HEADER_TAGS = tuple(
    (*numbers, *others)
    for numbers in ((), ("fp16",), ("bf16",))
    for others in ((), ("warp_shuffle",), ("math_constants",), ("warp_shuffle", "math_constants"))
)
_MAX_CHARACTERS = 16 << 20
"""The longest text that is checked; the longest one of a search has had 600,000 characters."""

_NUMBERS = ("char", "short", "int", "long", "longlong", "float", "double")
_VECTORS = "|".join(f"u?{name}[1-4]" for name in _NUMBERS)
_TYPE = (
    r"\b(?:(?:unsigned |signed )?(?:char|short|int|long long|long)|unsigned|bool|float|double"
    rf"|u?int(?:8|16|32|64)_t|uint|uchar|ushort|(?:half|nv_bfloat16)[24]?|{_VECTORS})\b"
)
_ALLOWED_WORD = re.compile(
    rf"{_TYPE}|signed|const|volatile|extern|__shared__|alignas|__restrict__"
    r"|if|else|for|while|break|continue|return|true|false"
    r"|threadIdx|blockIdx|blockDim|gridDim|CUDART_(?:INF|NAN)(?:_F)?",
    re.ASCII,
)
# Other words that have a meaning in C++ or are reserved for compilers. TVM names things __1, __2.
_RESERVED_WORD = re.compile(
    r"__(?!\d+$).*|and|and_eq|asm|auto|bitand|bitor|case|catch|class|compl|concept|consteval"
    r"|constexpr|constinit|const_cast|decltype|default|delete|do|dynamic_cast|enum|explicit|export"
    r"|friend|goto|inline|mutable|namespace|new|noexcept|not|not_eq|operator|or|or_eq|private"
    r"|protected|public|register|reinterpret_cast|requires|sizeof|static|static_assert|static_cast"
    r"|struct|switch|template|this|thread_local|throw|try|typedef|typeid|typename|union|using"
    r"|virtual|void|wchar_t|xor|xor_eq"
)
_STATEMENTS = "if for while alignas"
_INTRINSICS = """
    __syncthreads __syncwarp __activemask __threadfence
    __shfl_sync __shfl_up_sync __shfl_down_sync __shfl_xor_sync
    __expf __exp10f __logf __log2f __log10f __powf __sinf __cosf __tanf
    __popc __popcll __clz __clzll min max abs isnan
    __float2half_rn __float2bfloat16_rn
"""
_MATH = """
    exp exp2 exp10 log log2 log10 log1p pow sqrt rsqrt tanh tan atan atan2 cos acos sin asin cosh
    sinh acosh asinh atanh erf floor ceil trunc round nearbyint fabs fmod hypot fma fmax fmin
    copysign
"""
_FUNCTIONS = frozenset(
    (
        *(_STATEMENTS + _INTRINSICS).split(),
        *(name + suffix for name in _MATH.split() for suffix in ("", "f")),
        *(f"make_{sign}{name}{n}" for sign in ("", "u") for name in _NUMBERS for n in "1234"),
        *(f"make_{name}{n}" for name in ("half", "nv_bfloat16") for n in "24"),
    )
)
"""The names allowed before an opening parenthesis."""

# TVM writes helpers that wait for asynchronous copies, even if it copies in another way.
_COPY_HELPER = re.compile(
    r"__forceinline__ __device__ void (tvm_builtin_ptx_cp_async_\w+)\(\) \{\n"
    r'  asm volatile\("cp\.async\.(?:commit_group|wait_group \d+);" :  : (?: : "memory")?\);\n'
    r"\}\n",
    re.ASCII,
)
_SIGNATURE = re.compile(
    r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?([A-Za-z]\w*_kernel(?:_\d+)?)'
    r'\(([^(){};"]*)\)(?:;| (?=\{))\n?',
    re.ASCII,
)
_PARAMETER = re.compile(rf"(?:const )?{_TYPE}\*? (?:__restrict__ )?([A-Za-z_]\w*)", re.ASCII)

_NUMBER_REMARK = re.compile(r"/\*-?\d[\d.]*(?:e[-+]\d+)?\*/", re.ASCII)  # a number as a decimal
_UNROLL = re.compile(r"^ *#pragma unroll(?: \d+)?$", re.MULTILINE | re.ASCII)
_DYNAMIC_SHARED = re.compile(
    rf"\bextern __shared__ (?:__align__\(\d+\) )?({_TYPE} [A-Za-z_]\w*)\[\];"
)
_NUMBER = re.compile(
    r"(?<![\w.])(?:0x[\da-f.]+(?:p[+-]?\d+)?|\d+(?:\.\d*)?(?:e[+-]?\d+)?)[ful]{0,3}(?![\w.])",
    re.ASCII | re.IGNORECASE,
)
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*", re.ASCII)
_DECLARED = re.compile(rf"{_TYPE}\*? ([A-Za-z_]\w*)", re.ASCII)
_CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*\(", re.ASCII)
_FORBIDDEN = re.compile(
    r"[^\w\s()\[\]{};,+\-*/%<>=!&|^~?:.]"  # a character of a string, a directive, another language
    r"|/[/*]|::|->|\?\?|<[:%]|[:%]>|%:"
    r"|(?<!\w)(?!0\b)\d|\.(?![xyzw]\b)"  # what looks like a number; members other than a vector's
    r"|\(\s*\*\s*\)"  # pointers to functions
    r"|[^\w\])\s]\s*\[|\[\s*[\]\[]|\]\s*[\[({]",  # lambdas and attributes
    re.ASCII,
)


@functools.cache
def cuda_headers() -> tuple[str, ...]:
    """Return the headers that TVM may write if it uses only integers and floats of 16 to 64 bits.

    Raises:
        InputError: TVM is missing.
    """
    import_tvm()
    import tvm_ffi

    header = tvm_ffi.get_global_func(_HEADER)
    return tuple(str(header(list(tags))) for tags in _HEADER_TAGS)


def check_emitted(source: str, headers: Iterable[str], entries: Collection[str]) -> None:
    """Check that ``source``, written by TVM, defines the kernels ``entries`` and nothing else.

    Args:
        source: CUDA text.
        headers: the headers with which it may begin, see `cuda_headers`.
        entries: the names of the kernels that are launched.

    Raises:
        FormError: it contains something that no kernel of a search contains.
    """
    if len(source) > _MAX_CHARACTERS:
        raise FormError(f"it has {len(source)} characters")
    lengths = [len(header) for header in headers if source.startswith(header)]
    if not lengths:
        raise FormError("it does not begin as TVM's text for plain numbers does")
    position, helpers = max(lengths), set()
    while match := _COPY_HELPER.match(source, position):
        helpers.add(match[1])
        position = match.end()
    defined = set()
    for name, parameters, body in _kernels(source, position):
        known = set()
        for text in parameters.split(","):
            parameter = _PARAMETER.fullmatch(text.strip())
            if parameter is None:
                raise FormError(f"it has the parameter {shown(text)}")
            known.add(parameter[1])
        if body is not None:
            defined.add(name)
            _check_body(body, known, helpers)
    if unknown := set(entries) - defined:
        raise FormError(f"it does not define {shown(min(unknown))}")


def _kernels(source: str, position: int) -> Iterator[tuple[str, str, str | None]]:
    """Yield the name, parameters and body of each kernel; a declaration has no body."""
    while position < len(source):
        match = _SIGNATURE.match(source, position)
        if match is None:
            raise FormError(f"it has {shown(source[position : position + 200])} outside of kernels")
        position = match.end()
        body = None
        if not match[0].endswith(";\n"):
            body = _braced(source, position)
            position += len(body)
        yield match[1], match[2], body
        while source[position : position + 1] == "\n":
            position += 1


def _braced(source: str, position: int) -> str:
    depth = 0
    for brace in re.compile(r"[{}]").finditer(source, position):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return source[position : brace.end()]
    raise FormError("it has a kernel without an end")


def _check_body(body: str, known: set[str], helpers: Collection[str]) -> None:
    text = _UNROLL.sub("", _NUMBER_REMARK.sub(" ", body))
    text = _NUMBER.sub("0", _DYNAMIC_SHARED.sub(r"\1;", text))
    if match := _FORBIDDEN.search(text):
        raise FormError(f"it has {shown(text[match.start() : match.end() + 40])}")
    for name in set(_CALLED.findall(text)):
        if name not in _FUNCTIONS and name not in helpers:
            raise FormError(f"it calls {shown(name)}")
    known = known.union(_DECLARED.findall(text), helpers, _FUNCTIONS)
    for name in set(_NAME.findall(text)):
        if name in _FUNCTIONS or name in helpers or _ALLOWED_WORD.fullmatch(name):
            continue
        if name not in known or _RESERVED_WORD.fullmatch(name):
            raise FormError(f"it has the name {shown(name)}, which it does not declare")
