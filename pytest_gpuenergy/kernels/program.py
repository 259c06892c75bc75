"""A host program in CUDA C++ that launches kernels of its own, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from pytest_gpuenergy.kernels.kernel import AnyKernel, check_source
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import whole_sizes


@dataclass(frozen=True)
class Headers:
    """A folder of header files that a program includes.

    Attributes:
        name: of the library, with its version, such as ``CUTLASS 4.2.0``.
        sha256: of the files, in hexadecimal.
        folder: where they are on this machine.
    """

    name: str
    sha256: str
    folder: str = field(compare=False)


@dataclass(frozen=True)
class CudaProgram(AnyKernel):
    """CUDA C++ text that is compiled with nvcc to a shared object, which a worker process calls.

    The text defines four functions with C linkage, as ``cuda/cutlass/program.cu`` does. All return
    null or, as a string that stays valid, what is wrong: ``program_open(tensors, numbers, &program,
    &workspace_bytes)`` with the device pointers of the tensors in the order of ``arguments``,
    ``program_initialize(program, workspace, stream)``, ``program_launch(program, stream)``, which
    only enqueues work on the stream, so that a CUDA graph can capture it, and
    ``program_close(program)``, which returns nothing. It is arbitrary code: only use texts that you
    would run yourself.

    Attributes:
        source: the text.
        name: of what it launches, for people.
        arguments: names of tensors and workspaces.
        numbers: 32-bit integers that it gets besides, such as sizes. One compiled text serves all.
        headers: that it includes; None if it needs only those of CUDA.

    Raises:
        InputError: the text is empty or binary, or a number is out of range.
    """

    kind = "program"
    source: str
    name: str
    arguments: tuple[str, ...]
    numbers: tuple[int, ...] = ()
    headers: Headers | None = None

    def __post_init__(self) -> None:
        check_source(self.source)
        object.__setattr__(self, "numbers", whole_sizes(self.numbers))
        for number in self.numbers:
            if type(number) is not int or not -(1 << 31) <= number < 1 << 31:
                raise InputError(
                    f"{self.name} takes integers of 32 bits, which {number!r:.40} is not."
                )

    @property
    def label(self) -> str:
        return self.name

    @property
    def content(self) -> Mapping[str, object]:
        return {
            "kind": self.kind,
            "name": self.name,
            "arguments": list(self.arguments),
            "numbers": list(self.numbers),
            **self.compiled,
        }

    @property
    def compiled(self) -> Mapping[str, object]:
        """What the machine code depends on, as JSON values: the text and the headers' content."""
        known = None if self.headers is None else asdict(self.headers)
        if known is not None:
            del known["folder"]
        return {"source": self.source, "headers": known}

    @property
    def taken(self) -> Mapping[str, tuple[str, ...]]:
        return {self.name: self.arguments}
