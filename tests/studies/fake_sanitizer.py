"""Stands in for compute-sanitizer: what it does to a kernel is told by the kernel's rank."""

from __future__ import annotations

import os
import sys
from pathlib import Path

TOOL = sys.argv[2]
RANK = sys.argv[sys.argv.index("--rank") + 1]
BLOCKS = sys.argv[sys.argv.index("--blocks") + 1]
SUMMARIES = {
    "memcheck": "========= ERROR SUMMARY: {} errors",
    "racecheck": "========= RACECHECK SUMMARY: {0} hazards displayed ({0} errors, 0 warnings)",
}


def main() -> None:
    with Path(os.environ["FAKE_SANITIZER_LOG"]).open("a") as log:
        log.write(f"{TOOL} {RANK} {BLOCKS}\n")
    does = os.environ.get(f"FAKE_SANITIZER_{RANK}", "clean")
    if does == "dies":
        sys.exit(
            "========= Error: Target application terminated before first instrumented API call"
        )
    sys.stdout.write(f"kernel under test: case1-k{int(RANK):02d}\n")
    sys.stdout.flush()
    sys.stdout.write(SUMMARIES[TOOL].format(3 if does == "finds" else 0) + "\n")


if __name__ == "__main__":
    main()
