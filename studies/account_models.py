"""Profiles and replays models of published configurations in one process, in pieces.

    python studies/account_models.py FOLDER qwen2-0.5b llama-3.2-1b --keep results/

Weights are random. Each model is profiled; then the decode step is replayed, then the rest, with ``--changes``
also what changes would save. A line of ``exits.txt`` has the exit status and the seconds of
each command. Results are copied after each command, as flat files.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from argparse import ArgumentParser
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from threading import Event, Thread

from model_configs import CONFIGS

from pytest_gpuenergy.cli import main as gpuenergy

KEPT = (
    "operator_calls.jsonl",
    "profile.json",
    "results/measurements.jsonl",
    "results/gpu_energy_report.json",
)


def main() -> int:
    """Run the commands of each model."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="+", choices=sorted(CONFIGS))
    parser.add_argument("--keep", type=Path, required=True, metavar="DIR")
    parser.add_argument("--prefix", default="")
    parser.add_argument("--prompt-tokens", default="1024")
    parser.add_argument("--gpu-device", default="auto")
    parser.add_argument("--changes", action="store_true")
    parser.add_argument("--full", action="store_true", help="Without --brief")
    options = parser.parse_args()
    worst = 0
    for name in options.models:
        model, run = options.folder / name, options.folder / f"{name}.run"
        model.mkdir(parents=True, exist_ok=True)
        (model / "config.json").write_text(json.dumps(CONFIGS[name]))
        sizes = ("--prompt-tokens", options.prompt_tokens, "--new-tokens", "2")
        device = ("--gpu-device", options.gpu_device)
        length = () if options.full else ("--brief",)
        commands = [("profile", str(model), *sizes, "--out", str(run), *device)]
        replay = ("replay", str(run), *length, *device)
        more = ("--changes",) if options.changes else ()
        commands += [(*replay, "--kernels", "decode"), (*replay, "--resume", *more)]
        stop = Event()
        keeper = Thread(target=keep_often, args=(run, name, options, stop), daemon=True)
        keeper.start()
        for number, words in enumerate(commands):
            began_s = time.monotonic()
            if "decode" in words:
                words = [
                    ",".join(decode_calls(run)) if word == "decode" else word for word in words
                ]
            text = options.keep / f"{options.prefix}{name}-{number}-{words[0]}.txt"
            with text.open("w") as file, redirect_stdout(file), redirect_stderr(file):
                status = gpuenergy(list(words))
            worst = max(worst, status)
            line = f"{name} {words[0]} {number}: exit {status}, {time.monotonic() - began_s:.1f} s"
            print(line, flush=True)
            with (options.keep / f"{options.prefix}exits.txt").open("a") as file:
                file.write(line + "\n")
            if status:
                break
        stop.set()
        keeper.join()
    return worst


def decode_calls(run: Path) -> list[str]:
    """Return the ids of the calls that the first decode step makes as a graph or from the host."""
    calls = map(json.loads, (run / "operator_calls.jsonl").read_text().splitlines())
    return [
        one["id"]
        for one in calls
        if "1" in one["steps"] or "1" in ((one.get("graph") or {}).get("steps") or {})
    ]


def keep_often(run: Path, name: str, options: object, stop: Event) -> None:
    """Copy results now and then, and at the end."""
    while True:
        done = stop.wait(4.0)
        for kept in KEPT:
            if (path := run / kept).is_file():
                target = f"{options.prefix}{name}-{path.name}.gz"  # type: ignore[attr-defined]
                content = gzip.compress(path.read_bytes(), 4)
                (options.keep / target).write_bytes(content)  # type: ignore[attr-defined]
        if done:
            return


if __name__ == "__main__":
    sys.exit(main())
