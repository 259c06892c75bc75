"""TVM's own tuner on one workload, with TVM's defaults, recording when each trial ended.

    python studies/tuning/stock_search.py --case case5 --trials 64 --out stock-case5

`against_stock.py` runs this in its own process. The folder receives MetaSchedule's database, and
``trials.jsonl`` in the format of ``gpuenergy tune``. A trial is a candidate that TVM measures, or
tries to. Those that fail to build are recorded when their batch ends, the others as they end.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pytest_gpuenergy.devices import gpu_lock
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.support import GpuEnergyError, InputError, encode
from pytest_gpuenergy.tuners import cuda_target, import_tvm, tvm_operator
from pytest_gpuenergy.tuning import TRIALS_FILE, Trial
from pytest_gpuenergy.workloads import find_workload

LOCK_WAIT_S = 10.0
NEEDED = ("cloudpickle", "psutil")
"""Modules that TVM's builder and runner import but its wheel does not require."""
MESSAGE_CHARACTERS = 300
BUILD_LIMIT_S = 120.0
"""TVM's default is 30 s, in which a builder that has just started must also load TVM. On slow cores
most do not manage this and are killed, and the next ones start from scratch."""


class Journal:
    """``trials.jsonl``: a line for each trial, written as soon as it has ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = 0

    def note(self, stage: str, run_secs: Any, error: Any) -> None:
        """Record a trial that ended in ``stage``: ``compile`` or ``runtime``."""
        if error is None:
            seconds = [float(value) for value in run_secs]
            time_ms = 1e3 * sum(seconds) / len(seconds)
            trial = Trial(index=self._count, outcome="timed", time_ms=time_ms)
        else:
            text = " ".join(str(error).split())
            outcome: Any = "timeout" if "Timeout, killed" in text else stage
            # The last line of a backtrace says what went wrong.
            message = text[-MESSAGE_CHARACTERS:]
            trial = Trial(index=self._count, outcome=outcome, message=message)
        self._count += 1
        with self._path.open("ab") as stream:
            stream.write(encode(trial) + b"\n")


def search(module: Any, target: Any, trials: int, threads: int, seed: int, folder: Path) -> None:
    """``ms.tune_tir`` with its defaults: xgb, its own space, local builder and local runner.

    Only the time limit of a build differs, see `BUILD_LIMIT_S`.

    Args:
        module: what to tune, an IRModule with one function.
        target: TVM's target.
        trials: candidates to build and run.
        threads: CPU cores for the search and the builder.
        seed: of the search.
        folder: TVM's working folder.
    """
    import_tvm()
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    journal = Journal(folder / TRIALS_FILE)

    @derived_object
    class NotingRunner(ms.runner.PyRunner):
        """TVM's local runner, given one candidate at a time, in order to record each."""

        def __init__(self) -> None:
            super().__init__()
            self.local = ms.runner.LocalRunner()

        def run(self, runner_inputs: Any) -> Any:
            futures = []
            for one in runner_inputs:
                futures += self.local.run([one])
                result = futures[-1].result()
                journal.note("runtime", result.run_secs, result.error_msg)
            return futures

    @derived_object
    class NoteBuilds(ms.measure_callback.PyMeasureCallback):
        """Records candidates that fail to build, which never reach the runner."""

        def apply(
            self,
            _task_scheduler: Any,
            _task_id: int,
            _measure_candidates: Any,
            builder_results: Any,
            _runner_results: Any,
        ) -> None:
            for result in builder_results:
                if result.error_msg is not None:
                    journal.note("compile", None, result.error_msg)

    ms.tune_tir(
        module,
        target,
        str(folder),
        trials,
        builder=ms.builder.LocalBuilder(
            max_workers=threads,  # otherwise one for each core
            timeout_sec=BUILD_LIMIT_S,
        ),
        runner=NotingRunner(),
        num_tuning_cores=threads,
        seed=seed,
        measure_callbacks=[*ms.measure_callback.MeasureCallback.create("default"), NoteBuilds()],
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the search; exit code 2 if there is no NVIDIA GPU, or TVM or a dependency is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", required=True, metavar="NAME", help="The workload")
    parser.add_argument("--trials", type=int, required=True, metavar="N")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--gpu-device", default="auto", metavar="DEVICE")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    arguments = parser.parse_args(argv)
    try:
        workload = find_workload(arguments.case, Path.cwd())
        with open_device(arguments.gpu_device) as device:
            if device.emulated:
                raise InputError(
                    "TVM's own tuner runs its candidates through CUDA and needs an NVIDIA GPU: "
                    "the emulated one cannot be used."
                )
            if missing := [name for name in NEEDED if find_spec(name) is None]:
                raise InputError(
                    f"TVM's builder needs {' and '.join(missing)}: pip install {' '.join(missing)}"
                )
            os.environ["CUDA_VISIBLE_DEVICES"] = device.uuid  # of TVM's workers
            with gpu_lock(device, wait_s=LOCK_WAIT_S):
                arguments.out.mkdir(parents=True, exist_ok=True)
                search(
                    tvm_operator(workload).module(workload),
                    cuda_target(device.architecture),
                    arguments.trials,
                    arguments.threads,
                    arguments.seed,
                    arguments.out,
                )
    except GpuEnergyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
