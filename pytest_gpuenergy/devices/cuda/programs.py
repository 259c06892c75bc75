"""Calls a compiled `CudaProgram` in the worker process."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_gpuenergy.support import KernelFault, Outcome

_POINTER = ctypes.c_void_p
_TEXT = ctypes.c_char_p


class LoadedProgram:
    """Launches a program on the current stream of CuPy when it is called.

    Args:
        cupy: the module.
        path: of the shared object.
        tensors: the bytes of the tensors that the program takes, as CuPy arrays.
        numbers: that it takes besides.

    Raises:
        KernelFault: the program cannot be loaded, or refuses the tensors and numbers.
    """

    def __init__(
        self, cupy: Any, path: Path, tensors: Sequence[Any], numbers: Sequence[int]
    ) -> None:
        self._cupy = cupy
        self._tensors = tensors  # keeps their memory
        try:
            library = ctypes.CDLL(str(path))
            self._launch, initialize, open_ = (
                _function(library, name, *types)
                for name, types in (
                    ("program_launch", (_POINTER, _POINTER)),
                    ("program_initialize", (_POINTER, _POINTER, _POINTER)),
                    ("program_open", (_POINTER, _POINTER, _POINTER, _POINTER)),
                )
            )
            close = _function(library, "program_close", _POINTER)
            close.restype = None
        except (OSError, AttributeError) as error:
            raise KernelFault("compile", f"The program cannot be loaded: {error}.") from None
        pointers = (_POINTER * len(tensors))(*(one.data.ptr for one in tensors))
        program, workspace_bytes = _POINTER(), ctypes.c_size_t()
        integers = (ctypes.c_int * len(numbers))(*numbers)
        _check(
            open_(pointers, integers, ctypes.byref(program), ctypes.byref(workspace_bytes)),
            "constraints",
        )
        self._program = program
        weakref.finalize(self, close, program)
        self._workspace = cupy.empty(max(1, workspace_bytes.value), dtype=cupy.uint8)
        stream = cupy.cuda.get_current_stream()
        _check(initialize(program, self._workspace.data.ptr, stream.ptr), "constraints")
        stream.synchronize()  # the launches come on another stream

    def __call__(self) -> None:
        _check(self._launch(self._program, self._cupy.cuda.get_current_stream().ptr), "runtime")


def _function(library: ctypes.CDLL, name: str, *types: Any) -> Any:
    function = getattr(library, name)
    function.argtypes, function.restype = types, _TEXT
    return function


def _check(said: bytes | None, outcome: Outcome) -> None:
    if said is not None:
        text = said.decode(errors="replace").rstrip(".")
        raise KernelFault(outcome, f"The program reports: {text}.")
