"""How kernels are linked with their runtime.

Most of what a linker does for a kernel of a few lines is the same for each: it looks through the
C++ library, and puts together the runtime with those parts of it that the runtime needs. That is
done once, by a partial link. What else a kernel may need of the C++ library is found only in the
slower way, by which a kernel is linked if the quicker one fails.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_gpuenergy.support import is_file

CHECKED_RUNTIME = (
    *("accesses", "interruptions", "order", "races", "shadow", "tentative", "views", "visibility"),
    "warps",
)
"""Units of ``cuda/host`` that only checked builds need."""

RUNTIME = (
    *("bulk_copies", "copies", "grid", "guards", "heap", "lanes", "main", "matrices", "memory"),
    *("named_barriers", "outcomes", "phases", "products", "report", "resident", "scheduler"),
    *("shared", "stacks", "teams", "undefined", "warpgroups"),
)
"""Units that all builds need."""

TRACED = "runtime"
"""The runtime alone, as a program whose loader can list its libraries."""

Compiler = Callable[..., subprocess.CompletedProcess[str]]
"""Runs the compiler with the arguments that it is given."""

# To link parts of the C++ library takes a third of the time of looking through all of it, and gold,
# which not every system has, takes half of the usual linker's. The first that works is taken.
_STATIC = ("-static-libstdc++", "-static-libgcc")
_GOLD = "-fuse-ld=gold"
_WAYS_TO_LINK = (
    (_GOLD, "-fno-use-linker-plugin", *_STATIC),  # there is nothing to optimize at link time
    (_GOLD, *_STATIC),
    _STATIC,
    (),
)
# So that it loads what kernels may need: it tells which files they may read.
_WITH_MATH = ("-Wl,--no-as-needed", "-lm")
_OPTIONS = "link-options"  # a file of the prepared folder
_PARTS_OF_LIBRARIES = ("-Wl,-Bstatic", "-lstdc++", "-lgcc_eh", "-lgcc")
_OTHER_LIBRARIES = ("-nodefaultlibs", "-lm", "-lgcc", "-lc")


def build_runtime(run: Compiler, folder: Path) -> subprocess.CompletedProcess[str]:
    """Link the runtime, alone and for kernels, in the quickest way that the compiler has.

    Args:
        run: runs the compiler.
        folder: the prepared folder, with the objects of the runtime.

    Returns:
        What the compiler said; it failed if there is no way.
    """
    command = [*_objects(folder, RUNTIME), *_WITH_MATH, "-o", str(folder / TRACED)]
    for options in _WAYS_TO_LINK:
        done = run("-no-pie", *options, *command)
        if not done.returncode:
            break
    (folder / _OPTIONS).write_text(" ".join(options))
    if set(_STATIC) <= set(options):
        for checked in (False, True):
            _link_partly(run, folder, options, checked=checked)
    return done


def link(
    run: Compiler, folder: Path, objects: Sequence[str], program: Path, *, checked: bool
) -> subprocess.CompletedProcess[str]:
    """Link the objects of a kernel to ``program``.

    Args:
        run: runs the compiler.
        folder: the prepared folder.
        objects: paths.
        program: path of the result.
        checked: whether the program checks its accesses.

    Returns:
        What the compiler said.
    """
    options = (folder / _OPTIONS).read_text().split()
    if is_file(runtime := _partly_linked(folder, checked=checked)):
        done = _link_quickly(run, options, [*objects, str(runtime)], program)
        if not done.returncode:
            return done
    units = RUNTIME + (CHECKED_RUNTIME if checked else ())
    return run("-no-pie", *options, *objects, *_objects(folder, units), "-o", str(program))


def _link_quickly(
    run: Compiler, options: Sequence[str], objects: Sequence[str], program: Path
) -> subprocess.CompletedProcess[str]:
    return run("-no-pie", *options, *objects, *_OTHER_LIBRARIES, "-o", str(program))


def _link_partly(run: Compiler, folder: Path, options: Sequence[str], *, checked: bool) -> None:
    """Put together the runtime and what it needs of the C++ library, if the linker can."""
    runtime = _partly_linked(folder, checked=checked)
    objects = _objects(folder, RUNTIME + (CHECKED_RUNTIME if checked else ()))
    linker = [option for option in options if option not in _STATIC]
    together = [*linker, "-r", "-nostdlib", *objects, *_PARTS_OF_LIBRARIES, "-o", str(runtime)]
    trial = folder / "trial"
    done = run("-no-pie", *together)
    if done.returncode or _link_quickly(run, options, [str(runtime)], trial).returncode:
        runtime.unlink(missing_ok=True)
    trial.unlink(missing_ok=True)


def _partly_linked(folder: Path, *, checked: bool) -> Path:
    return folder / f"{'checked' if checked else 'plain'}-runtime.o"


def _objects(folder: Path, units: Sequence[str]) -> list[str]:
    return [f"{folder / unit}.o" for unit in units]
