"""What the host compiler's errors say about a kernel's text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_gpuenergy.emulator.ptx.refusals import CANNOT

_ERROR = re.compile(r"^(?P<file>[^\s:]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)$")
_PLACE = re.compile(r"^\S*kernel\.cu:(\d+):")
_REQUIRED = re.compile(r"^\S*kernel\.cu:(\d+):(?:\d+:)?\s+required from")
_REFUSED = re.compile(
    rf"(?:attribute error|'error' attribute): (.*)$|(?:#error|assertion failed:?) \"?({CANNOT}.*)$"
)
# A name that only CUDA defines and the host's headers do not; in GCC's words, then in clang's.
_CUDA_NAME = r"'(__\w+|clock(?:64)?|half2?)'"
_UNKNOWN = re.compile(rf"{_CUDA_NAME} was not declared|undeclared identifier {_CUDA_NAME}")
# In CUDA's own namespaces.
_NAMESPACE = r"'(?:cuda_device::)?(?:\{anonymous\}::)?(cuda|cooperative_groups|cg)'"
_NO_MEMBER = re.compile(
    rf"'(\w+)' is not a member of {_NAMESPACE}"
    rf"|no (?:\w+ named|template named) '(\w+)' in namespace {_NAMESPACE}"
    r"|'(cuda::\w+)' has not been declared"
)


def first_error(stderr: str) -> str:
    """The first error in a compiler's output, with its line in the kernel's text if it has one."""
    lines = stderr.splitlines()
    for number, line in enumerate(lines):
        if match := _ERROR.match(line):
            return _located(match, lines[:number], lines[number + 1 :])
    for words in (["out of memory"], ["undefined reference", "error"]):
        for line in lines:
            if any(word in line for word in words):
                return line.strip()
    return lines[-1] if lines else "the compiler died without a message"


def _located(error: re.Match[str], before: Sequence[str], following: Sequence[str]) -> str:
    text = _in_words(error["text"])
    if error["file"] == "launch":
        return f"the launch does not fit the text: {text}"
    if error["file"].endswith("kernel.cu"):
        return f"line {error['line']}: {text}"
    # The error is in our headers: name the first line of the kernel's text that led there.
    places = [*map(_REQUIRED.match, reversed(before)), *map(_PLACE.match, following)]
    place = next((found for found in places if found), None)
    return f"line {place[1]}: {text}" if place else text


def _in_words(error: str) -> str:
    refused = _REFUSED.search(error)
    text = (refused[1] or refused[2]).rstrip('"') if refused else error
    if "cuhost_shared_in_a_macro" in text:  # see refused.h
        return f"{CANNOT}: __shared__ in a macro; write it in the kernel"
    if "inline_ptx_cannot_run" in text:  # inline assembler from a macro, see kernel.h
        return f"{CANNOT}: inline PTX"
    if unknown := _UNKNOWN.search(text):
        return f"{CANNOT}: {unknown[1] or unknown[2]}"
    if missing := _NO_MEMBER.search(text):
        name = f"{missing[2] or missing[4]}::{missing[1] or missing[3]}"
        return f"{CANNOT}: {missing[5] or name}"
    return text
