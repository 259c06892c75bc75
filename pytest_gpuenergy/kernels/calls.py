"""A call of a library function, as data; the worker process makes the call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_gpuenergy.kernels.kernel import AnyKernel
from pytest_gpuenergy.support import InputError

Option = bool | int | float | str


@dataclass(frozen=True)
class LibraryEntry:
    """The signature of a library function.

    Attributes:
        parameters: names of its tensor parameters.
        options: default values of its options, which also give their types.
        modules: Python modules that it needs.
    """

    parameters: tuple[str, ...]
    options: Mapping[str, Option]
    modules: tuple[str, ...]


LIBRARY_ENTRIES: Mapping[str, LibraryEntry] = {
    "torch.matmul": LibraryEntry(("input", "other", "out"), {"allow_tf32": False}, ("torch",)),
    # C = A B, all stored by rows: A as M rows or transposed, B as K rows that may be longer than N
    # elements, C densely. `algorithm` is a cublasLtMatmulAlgo_t in hexadecimal, of that version of
    # cuBLASLt; without one, the first that its heuristics offer is taken.
    "cublasLt.matmul": LibraryEntry(
        ("a", "b", "c", "workspace"),
        {"compute": "32F", "a_transposed": False, "algorithm": "", "version": 0},
        ("nvmath",),
    ),
}
"""By the name used in a `LibraryCall`."""


@dataclass(frozen=True)
class LibraryCall(AnyKernel):
    """A call of one of `LIBRARY_ENTRIES` with a job's tensors.

    Attributes:
        entry: name of the function, such as ``torch.matmul``.
        tensors: name of the tensor for each parameter.
        options: other arguments; those left out have the entry's defaults.

    Raises:
        InputError: the entry is unknown, or does not take these arguments.
    """

    kind = "library"
    entry: str
    tensors: Mapping[str, str] = field(hash=False)
    options: Mapping[str, Option] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        known = LIBRARY_ENTRIES.get(self.entry)
        if known is None:
            raise InputError(
                f"There is no library entry {self.entry!r}: give one of "
                f"{', '.join(LIBRARY_ENTRIES)}."
            )
        if set(self.tensors) != set(known.parameters):
            raise InputError(
                f"{self.entry} takes the tensors {', '.join(known.parameters)}, not "
                f"{', '.join(self.tensors) or 'none'}."
            )
        for name, value in self.options.items():
            if type(value) is not type(known.options.get(name)):
                raise InputError(
                    f"{self.entry} does not take {name}={value!r}: its options are "
                    f"{', '.join(f'{n}={v!r}' for n, v in known.options.items())}."
                )

    @property
    def label(self) -> str:
        return self.entry

    @property
    def all_options(self) -> Mapping[str, Option]:
        """The options, including defaults."""
        return {**LIBRARY_ENTRIES[self.entry].options, **self.options}

    @property
    def content(self) -> Mapping[str, object]:
        return {
            "kind": self.kind,
            "entry": self.entry,
            "tensors": dict(self.tensors),
            "options": dict(self.all_options),
        }

    @property
    def taken(self) -> Mapping[str, tuple[str, ...]]:
        return {self.entry: tuple(self.tensors.values())}

    @property
    def modules(self) -> tuple[str, ...]:
        return LIBRARY_ENTRIES[self.entry].modules
