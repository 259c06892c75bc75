"""Compiles CUDA text with NVRTC, in child processes, and caches the result by content.

NVRTC compiles one program at a time per process, so there is a process per core. It needs no GPU
and creates no CUDA context. The processes do not import CuPy, which takes longer than most kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pytest_gpuenergy.devices.cuda.compilers import Binary, Compilers
from pytest_gpuenergy.kernels import HOST_HEADER, Kernel, reachable
from pytest_gpuenergy.support import (
    KernelFault,
    cuda_dir,
    is_file,
    is_there,
    keep_for_later,
    write_atomically,
    written_to_cache,
)

_OPTIONS = ("-std=c++17", "-default-device", "--device-int128")
_VERSIONS = ("CUDA_VERSION", "CUDART_VERSION")
_FORMAT = 2
_UNDECLARED = re.compile(r"is undefined|has no member|not a class or namespace name")
_NOT_THERE = re.compile(r'cannot open source file "([^"]+)"')
_STANDARD_HEADER = re.compile(r"#\s*include\s*[<\"](cuda/std/[^>\"]+)")


_Compiled = tuple[bytes, dict[str, str], str]
"""The machine code, the symbol of each entry, and the PTX."""


class NvrtcError(Exception):
    """NVRTC refuses a text; the message is its log, or the name of its error."""


class NvrtcLibrary:
    """The functions of NVRTC, called by `ctypes`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("Version", ctypes.byref(major), ctypes.byref(minor))
        self.version = major.value, minor.value

    @classmethod
    def load(cls) -> NvrtcLibrary:
        """Load the library that CuPy uses.

        If it cannot be told from the names of packages which one that is, CuPy is imported.
        """
        import cuda.pathfinder as pathfinder

        with contextlib.suppress(RuntimeError, OSError):  # it is not found, or cannot be loaded
            found = cls(ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path))
            with contextlib.suppress(PackageNotFoundError):
                distribution(f"cupy-cuda{found.version[0]}x")
                return found
        from cupy.cuda import nvrtc

        return cls(ctypes.CDLL(f"libnvrtc.so.{nvrtc.getVersion()[0]}"))

    def compile(self, source: str, entries: Sequence[str], options: Sequence[str]) -> _Compiled:
        """Return the machine code, the symbol of each entry, and the PTX."""
        program = ctypes.c_void_p()
        text = source.encode()
        self._call("CreateProgram", ctypes.byref(program), text, b"kernel.cu", 0, None, None)
        try:
            for entry in entries:
                self._call("AddNameExpression", program, entry.encode())
            words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            self._call("CompileProgram", program, len(options), words)
            symbols = {}
            for entry in entries:
                symbol = ctypes.c_char_p()
                self._call("GetLoweredName", program, entry.encode(), ctypes.byref(symbol))
                symbols[entry] = (symbol.value or b"").decode()
            code, ptx = self._content("CUBIN", program), self._content("PTX", program)
            return code, symbols, ptx.rstrip(b"\0").decode()
        except NvrtcError as error:
            log = self._content("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
            raise NvrtcError(log.strip() or str(error)) from None
        finally:
            self._call("DestroyProgram", ctypes.byref(program))

    def _content(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"Get{what}Size", program, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        self._call(f"Get{what}", program, content)
        return content.raw

    def _call(self, name: str, *arguments: object) -> None:
        if status := getattr(self._library, f"nvrtc{name}")(*arguments):
            raise NvrtcError(self._library.nvrtcGetErrorString(status).decode())


class NvrtcCompiler:
    """Compiles CUDA text with NVRTC in a child process; needs CuPy's headers but no GPU."""

    def __init__(self) -> None:
        import cuda.pathfinder as pathfinder

        self._nvrtc = NvrtcLibrary.load()
        cupy = find_spec("cupy")
        if cupy is None or cupy.origin is None:
            raise ImportError("CuPy is not installed")
        bundled = Path(cupy.origin).parent / "_core/include/cupy/_cccl"
        libraries = [bundled / name for name in ("libcudacxx", "cub", "thrust")]
        toolkit = pathfinder.find_nvidia_header_directory("cudart")
        own = cuda_dir() / "nvrtc" / "driver"
        self._includes = [f"-I{folder}" for folder in (own, *libraries, toolkit) if folder]
        self._small = cuda_dir() / "nvrtc"
        self._host_headers = f"--pre-include={self._small / 'host_headers.h'}"

    def compile(
        self, source: str, entries: Sequence[str], architecture: str
    ) -> tuple[bytes, dict[str, str]]:
        """Return the machine code and the symbol of each entry.

        Raises:
            KernelFault: the text does not compile, or has no such entry.
        """
        return self._with_headers(source, entries, architecture)[:2]

    def ptx(self, source: str, entries: Sequence[str], architecture: str) -> str:
        """Return the PTX.

        Raises:
            KernelFault: as `compile`.
        """
        return self._with_headers(source, entries, architecture)[2]

    def _with_headers(self, source: str, entries: Sequence[str], architecture: str) -> _Compiled:
        absent: frozenset[str] = frozenset()
        faults: list[KernelFault] = []

        def includable(header: str) -> bool:
            return header not in absent and not HOST_HEADER.fullmatch(header)

        while True:
            needed = reachable(source, tuple(entries), includable)
            try:
                return self._compiled_text(needed, entries, architecture)
            except KernelFault as fault:
                faults.append(fault)
            missing = _NOT_THERE.search(str(faults[-1]))
            if missing is None or missing[1] in absent or needed == source:
                break
            absent |= {missing[1]}  # only host code may need this header
        if needed != source:  # too much may have been left out
            with contextlib.suppress(KernelFault):
                return self._compiled_text(source, entries, architecture)
        raise faults[0] from None

    def _compiled_text(self, source: str, entries: Sequence[str], architecture: str) -> _Compiled:
        headers = _STANDARD_HEADER.findall(source)
        if headers and all(is_file(self._small / header) for header in headers):
            try:
                return self._compile(source, entries, architecture, [f"-I{self._small}"])
            except KernelFault:
                pass  # the text may need more than our small headers provide
        try:
            return self._compile(source, entries, architecture, [])
        except KernelFault as fault:
            if not _UNDECLARED.search(str(fault)):
                raise
            # nvcc includes headers that declare INFINITY, uint32_t or std::max; NVRTC has none.
            with contextlib.suppress(KernelFault):
                return self._compile(source, entries, architecture, [self._host_headers])
            raise

    def _compile(
        self, source: str, entries: Sequence[str], architecture: str, first: Sequence[str]
    ) -> _Compiled:
        major, minor = self._nvrtc.version
        # What cuda.h and cuda_runtime_api.h define, on which headers of projects depend.
        versions = (f"-D{name}={1000 * major + 10 * minor}" for name in _VERSIONS)
        options = (f"-arch={architecture}", *_OPTIONS, *versions, *first, *self._includes)
        try:
            return self._nvrtc.compile(source, entries, options)
        except NvrtcError as error:
            log = str(error).splitlines()
            message = next((line for line in log if "error" in line), log[0])
            raise KernelFault("compile", f"NVRTC: {message.strip()}") from None

    def version(self) -> str:
        """NVRTC's version, such as ``13.0``."""
        return ".".join(map(str, self._nvrtc.version))


class NvrtcCompilers(Compilers[Kernel, Binary]):
    """Compiles CUDA text with NVRTC, and caches the result on disk."""

    def __init__(self, architecture: str, cache: Path, processes: int | None = None) -> None:
        super().__init__(f"{__name__}:NvrtcCompiler", processes=processes)
        self._architecture = architecture
        self._cache = cache

    @functools.cached_property
    def version(self) -> str:
        """NVRTC's version, such as ``13.0``."""
        return str(self._call("version"))

    def ptx(self, kernel: Kernel) -> str:
        """Compile a kernel again and return its PTX.

        Raises:
            KernelFault: it does not compile.
        """
        return str(self._call("ptx", kernel.source, _entries(kernel), self._architecture))

    def _key(self, source: Kernel) -> str:
        return source.digest

    def _compile(self, source: Kernel) -> Binary:
        entries = _entries(source)
        key = [_FORMAT, self._architecture, _OPTIONS, self.version, entries, source.source]
        digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
        binary, table = self._cache / f"{digest}.cubin", self._cache / f"{digest}.json"
        if is_there(binary):
            # The table may be missing or damaged.
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                symbols = json.loads(table.read_text())
                return Binary(binary, {entry: str(symbols[entry]) for entry in entries})
        answer: Any = self._call("compile", source.source, entries, self._architecture)
        code, symbols = answer
        with written_to_cache(self._cache):
            write_atomically(binary, code)
        keep_for_later(table, json.dumps(symbols))
        return Binary(binary, symbols)


def _entries(kernel: Kernel) -> list[str]:
    return list(dict.fromkeys(launch.entry for launch in kernel.launches))
