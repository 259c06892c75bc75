"""A bench of tuners on the emulated GPU, with a stand-in for the tuner's process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FAKE = (sys.executable, str(Path(__file__).with_name("fake_tuner.py")))


class TunerBench:
    """The bench with case7 only.

    Args:
        main: of the bench.
        path: of its results.
    """

    def __init__(self, main: Callable[[Sequence[str], Sequence[str]], int], path: Path) -> None:
        self.path = path
        self._main = main

    def run(self, *arguments: str, tuner: tuple[str, ...] = FAKE, trials: int = 8) -> int:
        options = ["--device", "emulated", "--cases", "case7", "--threads", "1"]
        return self._main(
            ["--json", str(self.path), *options, "--trials", str(trials), *arguments], tuner
        )

    @property
    def results(self) -> dict[str, Any]:
        results: dict[str, Any] = json.loads(self.path.read_text())["results"]
        return results
