"""The translation of CUDA C++ text into C++ for the host compiler, with the same line numbers."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from pytest_gpuenergy.emulator.translation.marks import marked
from pytest_gpuenergy.emulator.translation.outline import Outline, cluster_constant
from pytest_gpuenergy.emulator.translation.ptx.assembler import with_keywords
from pytest_gpuenergy.emulator.translation.spin_loops import with_turns
from pytest_gpuenergy.emulator.translation.uninitialized import with_values
from pytest_gpuenergy.kernels import function_name
from pytest_gpuenergy.support import KernelFault

# Functions of CUDA and C that a text may overload for its own types, which hides the originals.
_OVERLOADED = re.compile(
    r"(?<![\w.:>~])(?:"
    r"(?P<cuda>make_(?:u?(?:char|short|int|long|longlong)|float|double)[1-4]|min|max|rsqrtf?"
    r"|atomic(?:Add|Max|Min|CAS|Exch)|__ldg|__shfl(?:_up|_down|_xor)?_sync)"
    r"|(?P<c>abs|(?:ceil|copysign|cos|exp|exp2|fabs|floor|fma|fmax|fmin|fmod|log|log2|pow|round|sin"
    r"|sqrt|tan|tanh|trunc)f?))"
    r"\s*\([^(){};]*\)\s*\{"
)


class KernelText:
    """CUDA C++ text and its translations.

    Args:
        source: the CUDA C++ text.
        entries: the kernel functions that are launched, see `translate`.

    Raises:
        KernelFault: ``compile`` when the text is malformed.
    """

    def __init__(self, source: str, entries: Sequence[str]) -> None:
        self.source = source
        self.marked = translate(source, entries)
        self._entries = entries

    @functools.cached_property
    def unmarked(self) -> str:
        """The translation without marks."""
        return translate(self.source, self._entries, marks=False)


def translate(source: str, entries: Sequence[str], *, marks: bool = True) -> str:
    """Return text for the host compiler, complete except for the precompiled ``kernel.h``.

    Args:
        source: the CUDA C++ text.
        entries: the kernel functions that are launched, such as ``scale<4>``.
        marks: whether to mark arithmetic, so that it gives the results of a GPU.

    Raises:
        KernelFault: ``compile`` when the text is malformed.
    """
    text = with_turns(with_keywords(source))
    outline = Outline(marked(with_values(text)) if marks else text, entries)
    outline.walk()
    for entry in entries:
        name = function_name(entry)
        if name in outline.unsupported:
            raise KernelFault("compile", outline.unsupported[name])
        declared = name in outline.kernels or outline.in_macros
        if not declared and re.search(rf"\b{name}\s*\(", source):
            raise KernelFault(
                "compile", f"the launch does not fit the text: {entry} is not a __global__ function"
            )
    refused = "".join(
        f'void cuhost_refused_{k}() __attribute__((error("{reason}")));\n'
        for k, reason in enumerate(outline.refusals)
    )
    functions = "".join(_entry(outline, entry) for entry in entries)
    used = {
        f"using ::cuda_device::{found['cuda']};" if found["cuda"] else f"using ::{found['c']};"
        for found in _OVERLOADED.finditer(outline.source)
    }
    overloaded = " ".join(sorted(used))
    included = "".join(f'#include "{header}"\n' for header in sorted(outline.headers))
    return (
        f"{included}{refused}"
        # Internal linkage keeps the text's names apart from the host's libraries.
        f"namespace cuda_device {{ namespace {{ {overloaded}\n"
        f'#line 1 "kernel.cu"\n{outline.rewritten()}\n'
        f'#line 1 "launch"\n'
        f"const ::cuhost::cuhost_Entry cuhost_entries[] = {{\n{functions}}};\n"
        f"}} }}\n"
        f'extern "C" const ::cuhost::cuhost_Table CUHOST_TABLE;\n'
        f"const ::cuhost::cuhost_Table CUHOST_TABLE = {{::cuda_device::cuhost_entries}};\n"
    )


def _entry(outline: Outline, entry: str) -> str:
    """Return the row of an entry: its largest block and its cluster, 0 if unknown, and so on."""
    name, scope = function_name(entry), "".join(entry.partition("<")[0].rpartition("::")[:2])
    numbers = outline.bounds.get(name, [])
    largest = f"{scope}cuhost_bound_{numbers[0]}" if len(numbers) == 1 else "0"
    cluster = f"{scope}{cluster_constant(name)}" if name in outline.clusters else "0"
    return (
        f'  ::cuhost::cuhost_caller<&{entry}>::cuhost_entry("{name}", {largest}, {cluster}, '
        f"{outline.shared_alignment}),\n"
    )
