"""The frame of a study's command: a parser with the study's text, and errors in one sentence."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import wraps

from pytest_gpuenergy.support import GpuEnergyError

Main = Callable[[Sequence[str] | None], object]


def study_parser(text: str | None) -> argparse.ArgumentParser:
    """Return a parser that describes itself by the text of a module."""
    return argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def in_one_sentence(main: Main) -> Callable[..., int]:
    """Let a command end with exit code 2 and one sentence where something cannot be used."""

    @wraps(main)
    def guarded(words: Sequence[str] | None = None) -> int:
        try:
            main(words)
        except (GpuEnergyError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        return 0

    return guarded
