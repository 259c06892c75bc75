"""Run every shipped kernel under compute-sanitizer: memcheck and racecheck. Needs a GPU.

    python bench/sanitize.py --out sanitizer.json

One process per record file and tool runs its kernels one after the other; several of them share
the GPU. Exit code 1 when a tool finds something, 2 when it does not run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from pytest_gpuenergy.devices.cuda_runner import CudaRunner
from pytest_gpuenergy.devices.nvrtc import CompilerPool
from pytest_gpuenergy.devices.select import open_device
from pytest_gpuenergy.kernels.records import load_records
from pytest_gpuenergy.paths import cache_dir
from pytest_gpuenergy.tuning.lowering import KernelStore
from pytest_gpuenergy.verification import arenas_for

RECORDS = Path(__file__).parent / "records" / "nvidia-h200"
TOOLS = ("memcheck", "racecheck")
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
MARK = "kernel under test: "


def record_files(folder: Path, cases: Sequence[str]) -> dict[str, Path]:
    """The record files in ``folder`` by their workload's name: those of ``cases``, or all."""
    files = {load_records(path).workload.name: path for path in sorted(folder.glob("*.json"))}
    if unknown := set(cases) - set(files):
        raise SystemExit(f"{folder} has no records of {', '.join(sorted(unknown))}.")
    return {name: files[name] for name in cases or files}


def run_case(path: Path, architecture: str) -> None:
    """Run every kernel of a record file once in this process, naming each beforehand."""
    file = load_records(path)
    workload = file.workload
    runner, pool = CudaRunner(), CompilerPool(architecture, cache_dir("cubin"), processes=1)
    with KernelStore() as store:
        for rank in file.ranks:
            kernel = store.kernel(file, rank)
            binary = pool.submit(kernel).result()
            print(f"{MARK}{workload.name}-k{rank:02d}", flush=True)
            with arenas_for(workload, seed=0) as arenas:
                runner.run_once(kernel, binary, arenas, {})
    pool.close()


def compile_all(paths: Iterable[Path], architecture: str) -> None:
    """Fill the cache of compiled kernels, on all cores."""
    pool = CompilerPool(architecture, cache_dir("cubin"))
    with KernelStore() as store:
        files = [load_records(path) for path in paths]
        futures = [pool.submit(store.kernel(file, r)) for file in files for r in file.ranks]
        for future in futures:
            future.result()
    pool.close()


def sanitize(case: str, path: Path, tool: str, architecture: str) -> dict[str, object]:
    """Run ``tool`` over a record file; the finding, with what was printed when there is one."""
    command = ["compute-sanitizer", "--tool", tool, sys.executable, __file__]
    answer = subprocess.run(
        [*command, "--child", str(path), "--architecture", architecture],
        capture_output=True,
        text=True,
        check=False,
    )
    printed = answer.stdout + answer.stderr
    counts = [int(next(filter(None, found), 0)) for found in SUMMARY.findall(printed)]
    kernels = printed.count(MARK)
    clean = bool(counts) and not any(counts) and answer.returncode == 0
    detail = "" if clean else printed[-4000:]
    return {"case": case, "tool": tool, "kernels": kernels, "clean": clean, "printed": detail}


def main() -> int:
    """Compile and lower everything first, then check case by case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", default="", help="names with commas (default: all)")
    parser.add_argument("--tool", choices=TOOLS, help="only this one (default: both)")
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=min(7, os.cpu_count() or 1))
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--architecture", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_case(arguments.child, arguments.architecture)
        return 0
    files = record_files(arguments.records, [n for n in arguments.case.split(",") if n])
    with open_device("auto") as device:
        architecture = device.architecture
    compile_all(files.values(), architecture)
    results = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = [
            pool.submit(sanitize, case, path, tool, architecture)
            for tool in ([arguments.tool] if arguments.tool else TOOLS)
            for case, path in files.items()
        ]
        for job in as_completed(jobs):
            results.append(job.result())
            verdict = "clean" if results[-1]["clean"] else f"NOT CLEAN\n{results[-1]['printed']}"
            print("{case} {tool}: {kernels} kernels, ".format(**results[-1]) + verdict, flush=True)
            if arguments.out:
                arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    if any(not result["kernels"] for result in results):
        return 2
    return 0 if all(result["clean"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
