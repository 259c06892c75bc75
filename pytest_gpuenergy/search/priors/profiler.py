"""Profiles variants of a search with Nsight Compute, where it works."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from pytest_gpuenergy.search.move import Region
from pytest_gpuenergy.search.priors.counters import metrics, read_counters
from pytest_gpuenergy.search.priors.profiled import LAUNCHES
from pytest_gpuenergy.support import (
    AS_MEASURED,
    FORBIDDEN,
    INSTALL,
    FormError,
    InputError,
    decode,
    dump,
    forbidden,
    is_there,
    read_bytes,
    write_atomically,
)
from pytest_gpuenergy.tuning import writing

PROFILE, _LOG = "profile.json", "profile.log"
_TIMEOUT_S = 120.0
_LARGEST_BYTES = 1 << 20


class Profile(Struct, frozen=True, forbid_unknown_fields=True):
    """What a profiler has found.

    Attributes:
        used: shares of the time for which units are busy; empty if there is no profile.
        message: why there is none.
    """

    used: dict[Region, float] = {}
    message: str = ""


@dataclass
class Profiler:
    """Profiles every so many visits, and keeps what it finds with the variants.

    Once ncu has failed it is not run again, and one sentence says why.

    Attributes:
        every: how many visits there are from one profile to the next; 0 for no profiles.
        gpu: UUID of the GPU, which the caller has claimed.
        gpu_name: its name.
        entry: name of the kernel.
        tell: called with that sentence.
        timeout_s: for one profile.
    """

    every: int
    gpu: str
    gpu_name: str
    entry: str
    tell: Callable[[str], None]
    timeout_s: float = _TIMEOUT_S

    def __post_init__(self) -> None:
        self._visits = 0
        self._trouble = ""

    def visit(self, place: Path) -> Mapping[Region, float]:
        """The profile of the variant in a folder, if it is its turn; otherwise nothing.

        Raises:
            InputError: a profile that is there is damaged.
            OutputError: it cannot be written.
        """
        due = self.every > 0 and self._visits % self.every == 0
        self._visits += 1
        if not due:
            return {}
        path = place / PROFILE
        if is_there(path):
            return _read(path).used
        profile = Profile(message=self._trouble) if self._trouble else self._profile(place)
        with writing(path):
            write_atomically(path, dump(profile), durable=True)
        return profile.used

    def _profile(self, place: Path) -> Profile:
        try:
            return Profile(read_counters(self._run(place)))
        except (InputError, FormError, OSError) as error:
            self._trouble = str(error)
        except subprocess.TimeoutExpired:
            self._trouble = f"ncu has not finished within {self.timeout_s:g} s"
        self.tell(
            f"Variants are not profiled, and their bottlenecks are estimated instead: "
            f"{self._trouble.rstrip('.')}."
        )
        return Profile(message=self._trouble)

    def _run(self, place: Path) -> str:
        """What ncu prints of a variant.

        Raises:
            InputError: it is not installed, may not be used, or fails.
        """
        from pytest_gpuenergy.support import run_child

        ncu = shutil.which("ncu")
        if ncu is None:
            raise InputError(f"ncu is not on the PATH: {INSTALL}")
        options: dict[str, object] = {
            **AS_MEASURED,
            "--page": "raw",
            "--metrics": ",".join(metrics()),
            "--target-processes": "all",
            "--kernel-name": self.entry.partition("<")[0].split("::")[-1],
            "--launch-skip": LAUNCHES - 1,
            "--launch-count": 1,
        }
        words = [str(word) for option in options.items() for word in option]
        child = [sys.executable, "-m", "pytest_gpuenergy.search.priors.profiled"]
        command = [ncu, "--csv", *words, *child, str(place.absolute() / "control.json"), self.gpu]
        done = run_child(command, place, timeout_s=self.timeout_s)
        with writing(place / _LOG):
            write_atomically(place / _LOG, done.stdout)
        if FORBIDDEN in done.stdout:
            raise InputError(forbidden(self.gpu_name))
        if done.returncode:
            raise InputError(
                f"ncu failed with exit code {done.returncode}: {place / _LOG} says why"
            )
        return done.stdout


def _read(path: Path) -> Profile:
    try:
        found = decode(read_bytes(path, "profile", _LARGEST_BYTES), Profile)
    except FormError as error:
        raise InputError(
            f"The profile {path} cannot be used, because {error}: delete it to have it made again."
        ) from None
    return found
