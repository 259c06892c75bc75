"""A tuner's process without a tuner: trials of a real search of case7, with invented times.

As ``stock_search.py`` it writes MetaSchedule's database and ``trials.jsonl`` into ``--out``; as
``gpuenergy tune``, which has ``--objective``, also a record file, and it prints the outcome.
FAKE_TUNER in the environment makes it ``die`` or ``hang`` after two trials, or do so in the search
that it names, such as ``die:energy``.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import signal
import sys
from pathlib import Path

RECORDS, WORKLOADS = "database_tuning_record.json", "database_workload.json"
DATA = Path(__file__).parents[1] / "data" / "case7_raw"
BEFORE_TROUBLE = 2


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--objective")
    arguments, _ = parser.parse_known_args()
    raw = arguments.out / arguments.case / "raw" if arguments.objective else arguments.out
    raw.mkdir(parents=True, exist_ok=True)
    trouble, _, where = os.environ.get("FAKE_TUNER", "").partition(":")
    if where and where != arguments.objective:
        trouble = ""
    write_trials(raw, arguments.trials, trouble)
    if arguments.objective:
        write_records(raw, arguments.out, arguments.objective)
        sys.stdout.write(json.dumps([{"best_ms": 0.2, "kept": 1}]))
    return 0


def write_trials(raw: Path, trials: int, trouble: str) -> None:
    with lzma.open(DATA / f"{RECORDS}.xz", "rt") as source:
        lines = source.readlines()[:trials]
    with lzma.open(DATA / f"{WORKLOADS}.xz", "rt") as source:
        (raw / WORKLOADS).write_text(source.read())
    with (
        (raw / RECORDS).open("w", buffering=1) as records,
        (raw / "trials.jsonl").open("w", buffering=1) as journal,
    ):
        for index, line in enumerate(lines):
            if trouble and index == BEFORE_TROUBLE:
                get_into(trouble)
            records.write(line)
            seconds = json.loads(line)[1][1][0]
            trial = {"index": index, "outcome": "compile", "message": "It does not compile."}
            if seconds < 1e9:
                trial = {"index": index, "outcome": "timed", "time_ms": 1e3 * seconds}
            journal.write(json.dumps(trial) + "\n")


def get_into(trouble: str) -> None:
    if trouble == "hang":
        signal.pause()
    sys.stderr.write("Segmentation fault\n")
    os.kill(os.getpid(), signal.SIGKILL)


def write_records(raw: Path, folder: Path, objective: str) -> None:
    """The record of the fastest kernel, for the objective time; of another one for the others."""
    # Here, as the other trials need none of it and begin at once.
    from pytest_gpuenergy.record import Metric
    from pytest_gpuenergy.tuners import FORMS, load_database
    from pytest_gpuenergy.tuning import Record, RecordFile, dump_records, file_name
    from pytest_gpuenergy.workloads import CASES

    valid = sorted(load_database(raw).valid, key=lambda record: record.time_ms)
    best = valid[0 if objective == "time" else 1]
    dump_records(
        RecordFile(
            workload=CASES["case7"],
            tuner=FORMS["tvm"].tuner,
            gpu="Test GPU",
            driver="580.0",
            toolchain={"tvm": "0.27.0.post1", "target": json.loads(best.text)[2]},
            date="2026-11-21",
            trials_total=len(valid),
            trials_valid=len(valid),
            records=(Record(1, "fastest" if objective == "time" else "best", best.text),),
            objective=Metric(objective),
        ),
        folder / file_name(CASES["case7"]),
    )


if __name__ == "__main__":
    sys.exit(main())
