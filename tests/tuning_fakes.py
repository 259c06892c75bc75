# ruff: noqa: ARG002 -- a device is told more than this one needs
"""A device without hardware, whose kernels take a time by their text; a search space of words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from pytest_gpuenergy.devices import Arena, Device, KernelRepeater, Loaded, Timeline
from pytest_gpuenergy.engine import Sustained
from pytest_gpuenergy.kernels import Job, Kernel, Launch
from pytest_gpuenergy.support import DeviceError, FormError, KernelFault
from pytest_gpuenergy.tuning import Candidate, Feedback
from pytest_gpuenergy.workloads import Workload

SLOWDOWN = 1.5
"""By how much the power limit of a `FakeDevice` makes kernels longer."""


def time_ms(kernel: Kernel) -> float:
    """The time of a kernel by the length of its text, unless the text is what happens to it."""
    if kernel.source == "hang":
        raise KernelFault("timeout", "It hangs.")
    if kernel.source == "gone":
        raise DeviceError("The GPU is lost.")
    return float(len(kernel.source))


def sustained_at(
    time_ms: Callable[[Kernel], float], power_w: Callable[[str], float | None]
) -> Callable[..., Sustained | None]:
    """A `measure_sustained` of kernels with these times and, by their text, powers."""

    def measure(_: Device, job: Job, __: Mapping[str, Arena]) -> Sustained | None:
        assert isinstance(job.kernel, Kernel)
        if (drawn_w := power_w(job.kernel.source)) is None:
            return None
        sustained_ms = SLOWDOWN * time_ms(job.kernel)
        return Sustained(sustained_ms, drawn_w, drawn_w * sustained_ms)

    return measure


class VirtualClock:
    def __init__(self) -> None:
        self.now = 100.0

    def now_s(self) -> float:
        return self.now

    def sleep_s(self, duration_s: float) -> None:
        self.now += duration_s


class FakeNvml:
    """A card that does not tell its energy, and tells its limit if it is given one."""

    def __init__(self, limit_w: float | None = None) -> None:
        self.limit_w = limit_w

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: object) -> int:  # noqa: N802
        if self.limit_w is None:
            raise self.NVMLError
        return round(1e3 * self.limit_w)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> int:  # noqa: N802
        raise self.NVMLError


class FakeDevice(Device):
    name = "NVIDIA H200"
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    architecture = "sm_90"
    emulated = True
    nvml = FakeNvml()
    handle = None

    def __init__(self, time_ms: Callable[[Kernel], float]) -> None:
        self.clock = VirtualClock()
        self.time_ms = time_ms
        self.prepared: list[str] = []
        self.timed: list[str] = []

    def prepare(self, kernels: Sequence[Kernel]) -> None:
        self.prepared += [kernel.digest for kernel in kernels]

    def compile(self, kernel: Kernel) -> None:
        raise AssertionError("the search compiles ahead")

    def load(self, job: Job, arenas: Mapping[str, Arena]) -> AbstractContextManager[Loaded]:
        raise AssertionError("the search must not verify")

    @contextmanager
    def repeat(self, job: Job, arenas: Mapping[str, Arena]) -> Iterator[KernelRepeater]:
        kernel = job.kernel
        self.timed.append(kernel.digest)
        assert {n for launch in kernel.launches for n in launch.arguments} <= set(arenas)
        yield FakeRepeater(self.clock, self.time_ms(kernel) / 1e3)

    def describe(self) -> dict[str, str]:
        return {"driver": "580.0"}

    def close(self) -> None:
        pass


class FakeRepeater:
    def __init__(self, clock: VirtualClock, launch_s: float) -> None:
        self._clock = clock
        self._launch_s = launch_s
        self._began_s = 0.0

    def start(self) -> None:
        self._began_s = self._clock.now_s()

    def stop(self) -> Timeline:
        count = max(1, round((self._clock.now_s() - self._began_s) / self._launch_s / 4))
        launches = count * np.arange(5.0)
        busy_s = launches * self._launch_s
        return Timeline(self._began_s + busy_s, launches, busy_s)


def time_by_digest(kernel: Kernel) -> float:
    """From 0.1 to 1.1 ms, evenly by the kernel's hash."""
    return 0.1 + int(kernel.digest[:8], 16) / 2**32


@dataclass(frozen=True)
class WordForm:
    """Recipes are words, kept with the time of their trial; a word is the text of its kernel."""

    tuner: str = "words"
    file_name: str = "words.txt"
    variant: str = ""

    def identity(self, recipe: str) -> str:
        return str(json.loads(recipe)["word"])

    def with_time(self, recipe: str, time_ms: float | None) -> str:
        return json.dumps({**json.loads(recipe), "ms": time_ms})

    def time_ms(self, recipe: str) -> float:
        return float(json.loads(recipe)["ms"])

    def line(self, recipe: str) -> str:
        return recipe

    def read(self, path: Path) -> list[str]:
        return path.read_text().splitlines()

    def check_stored(self, recipe: str, *, ran: bool) -> None:
        if ran and "();" in recipe:
            raise FormError("the word is a program")

    def check(self, value: object, workload: Workload) -> str:
        if not isinstance(value, dict) or "word" not in value:
            raise FormError("the record has no word")
        return json.dumps(value)

    def check_toolchain(self, header: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"language": header["language"]}


WORDS = WordForm()


def recipe_of(word: str) -> str:
    return json.dumps({"word": word})


@dataclass
class WordProposer:
    """Gives batches of words; writes down in which order it was asked and told."""

    batches: list[Sequence[str]]
    make: Callable[[str], Kernel]
    events: list[str] = field(default_factory=list)
    learned: list[Feedback] = field(default_factory=list)
    closed: bool = False
    processes: int = 1

    def take(self, wanted: int, stop: Event) -> list[Candidate]:
        if stop.is_set():
            return []
        words = self.batches.pop(0) if self.batches else []
        self.events.append(f"take {' '.join(words)}".strip())
        return [self._candidate(word) for word in words]

    def learn(self, feedback: Sequence[Feedback]) -> None:
        self.events.append(f"learn {len(feedback)}")
        self.learned += feedback

    def close(self) -> None:
        self.closed = True

    def _candidate(self, word: str) -> Candidate:
        try:
            return Candidate(recipe_of(word), self.make(word))
        except KernelFault as fault:
            return Candidate(recipe_of(word), fault)


def word_kernel(word: str) -> Kernel:
    """The kernel of a word, which is its text; ``bad`` has none."""
    if word == "bad":
        raise KernelFault("compile", "It cannot be lowered.")
    return Kernel(word, (Launch("k", (1, 1, 1), (1, 1, 1), ("data", "weight", "output")),))


@dataclass
class WordSpace:
    """The words of one workload, in batches."""

    workload: Workload
    batches: list[Sequence[str]]
    proposers: list[WordProposer] = field(default_factory=list)
    known: list[Sequence[Feedback]] = field(default_factory=list)
    form: WordForm = WORDS
    effort: str = "words"

    def propose(self, folder: Path, known: Callable[[], Sequence[Feedback]]) -> WordProposer:
        self.known.append(known())
        self.proposers.append(WordProposer(self.batches, word_kernel))
        return self.proposers[-1]

    def kernel(self, recipe: str) -> Kernel:
        return word_kernel(self.form.identity(recipe))

    def toolchain(self, recipe: str) -> Mapping[str, Any]:
        return {"language": "English"}
