"""What compute-sanitizer reported for each kernel, in a file to which later sessions add."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from pytest_gpuenergy.support import InputError, write_atomically

KIND = "gpuenergy-sanitizer"
VERSION = 1

Tool = Literal["memcheck", "racecheck"]
TOOLS: tuple[Tool, ...] = get_args(Tool)
Outcome = Literal["clean", "found", "not finished", "failed"]


@dataclass(frozen=True)
class Check:
    """One tool's run on one kernel.

    Attributes:
        outcome: ``found`` if the tool reported something, ``not finished`` if it was killed at its
            time limit, ``failed`` if it did not run or did not reach the kernel.
        blocks: number of thread blocks launched.
        of: number of blocks the kernel has.
        gpu: the model's name.
        seconds: wall time; None if unknown.
        printed: the end of the output, unless the kernel is clean.
    """

    outcome: Outcome
    blocks: int
    of: int
    gpu: str
    seconds: float | None = None
    printed: str = ""

    def covers(self, blocks: int, gpu: str) -> bool:
        """Whether at least this many blocks were found clean on this model."""
        return self.outcome == "clean" and self.gpu == gpu and self.blocks >= blocks


@dataclass(frozen=True)
class Checked:
    """A kernel, named after its case and rank, and its latest check by each tool."""

    name: str
    checks: Mapping[Tool, Check] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """All checked kernels, by digest."""

    kernels: Mapping[str, Checked] = field(default_factory=dict)

    def check(self, digest: str, tool: Tool) -> Check | None:
        """The latest check of a kernel by ``tool``, if any."""
        kernel = self.kernels.get(digest)
        return kernel.checks.get(tool) if kernel else None

    def with_check(self, digest: str, name: str, tool: Tool, check: Check) -> Results:
        """The results with one more check, which replaces the same tool's earlier one."""
        former = self.kernels[digest].checks if digest in self.kernels else {}
        kernel = Checked(name, {**former, tool: check})
        return replace(self, kernels={**self.kernels, digest: kernel})

    def summary(self) -> Iterator[str]:
        """Lines such as ``case5 racecheck: 24 clean, 1 not finished``."""
        counts: dict[tuple[str, Tool], Counter[Outcome]] = {}
        for kernel in sorted(self.kernels.values(), key=lambda one: one.name):
            for tool, check in kernel.checks.items():
                key = (kernel.name.rpartition("-")[0], tool)
                counts.setdefault(key, Counter())[check.outcome] += 1
        for (case, tool), outcomes in sorted(counts.items()):
            told = (f"{outcomes[one]} {one}" for one in get_args(Outcome) if outcomes[one])
            yield f"{case} {tool}: {', '.join(told)}"

    def write(self, path: Path) -> None:
        """Write the file atomically.

        Raises:
            InputError: it cannot be written.
        """
        content = {"kind": KIND, "version": VERSION, **asdict(self)}
        try:
            write_atomically(path, json.dumps(content, indent=1) + "\n")
        except OSError as error:
            raise InputError(f"{path} cannot be written ({error.strerror}).") from None


def read_results(path: Path) -> Results:
    """Read what `Results.write` has written.

    Raises:
        InputError: the file cannot be read or is something else.
    """
    try:
        data = json.loads(path.read_text())
        if data["kind"] != KIND or data["version"] != VERSION:
            raise ValueError
        kernels = {}
        for digest, kernel in data["kernels"].items():
            checks = {tool: Check(**check) for tool, check in kernel["checks"].items()}
            if not set(checks) <= set(TOOLS):
                raise ValueError
            if any(check.outcome not in get_args(Outcome) for check in checks.values()):
                raise ValueError
            kernels[digest] = Checked(kernel["name"], checks)
        return Results(kernels)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(
            f"{path} was not written by studies/sanitize.py: give --out another name."
        ) from None
