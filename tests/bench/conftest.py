"""The repository's own bench, copied to a folder of its own, with record files made for the test.

Records of every case hold no schedule, so their kernels are listed and never made; those of case7
from `tests/data` are real.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bench_folder import INI, ROOT
from small_project import NOT_NEEDED

from pytest_gpuenergy.tuners import FORMS, load_database
from pytest_gpuenergy.tuning import Record, RecordFile, dump_records, file_name
from pytest_gpuenergy.workloads import CASES, Conv2d


@dataclass(frozen=True)
class Bench:
    """``bench/test_conv2d.py`` beside the root ``conftest.py``."""

    pytester: pytest.Pytester

    @property
    def path(self) -> Path:
        return self.pytester.path

    @property
    def records(self) -> Path:
        return self.path / "bench" / "records" / "nvidia-h200"

    def give_records(
        self, count: int, folder: Path | None = None, *, gpu: str = "Test GPU"
    ) -> None:
        """As many records of every case."""
        for workload in CASES.values():
            file = replace(listed_only(workload, count), gpu=gpu)
            dump_records(file, (folder or self.records) / file_name(workload))

    def give_record(self, workload: Conv2d) -> None:
        """One record of a workload."""
        dump_records(listed_only(workload, 1), self.records / file_name(workload))

    def give_case7(self, folder: str, *, good: int, bad: int = 0) -> None:
        """Records of a real search of case7, with invented times, then some without a schedule."""
        file = case7(good, bad)
        dump_records(file, self.path / folder / file_name(file.workload))

    def run(self, *arguments: str) -> pytest.RunResult:
        return self.pytester.runpytest_inprocess("bench", *arguments)

    def refuses(self, *arguments: str, said: str) -> None:
        """Check that the run ends with one sentence, no traceback, and nothing measured."""
        result = self.run(*arguments)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: {said}".replace("[", "[[]")])
        text = result.stdout.str() + result.stderr.str()
        assert "Traceback" not in text
        assert "conftest.py:" not in text
        assert not (self.path / ".gpuenergy").exists()

    def ids(self, *arguments: str) -> list[str]:
        """Ids of the items, without the test's name."""
        result = self.run("--collect-only", "-q", *arguments)
        assert result.ret == pytest.ExitCode.OK
        lines = [line for line in result.stdout.lines if "::" in line]
        assert all(line.startswith("bench/test_conv2d.py::test_conv2d[") for line in lines)
        return [line.partition("[")[2].removesuffix("]") for line in lines]


def listed_only(workload: Conv2d, count: int) -> RecordFile:
    arguments = [["TENSOR", tensor.dtype, list(tensor.shape)] for tensor in workload.tensors]
    texts = [json.dumps([[[], []], [1e-3 * k], {}, arguments]) for k in range(1, count + 1)]
    return _file(workload, texts, target={})


def case7(good: int, bad: int) -> RecordFile:
    database = load_database(ROOT / "tests" / "data" / "case7_raw")
    ranked = sorted(database.valid, key=lambda record: record.time_ms)[:good]
    texts = [record.text for record in ranked]
    texts += [record.recipe for record in listed_only(CASES["case7"], bad).records]
    target = json.loads(texts[0])[2]
    return _file(CASES["case7"], texts, target)


def _file(workload: Conv2d, texts: list[str], target: dict[str, Any]) -> RecordFile:
    return RecordFile(
        workload=workload,
        tuner=FORMS["tvm"].tuner,
        gpu="Test GPU",
        driver="580.0",
        toolchain={"tvm": "0.27.0.post1", "target": target},
        date="2026-11-21",
        trials_total=len(texts),
        trials_valid=len(texts),
        records=tuple(Record(rank, "fastest", text) for rank, text in enumerate(texts, 1)),
    )


@pytest.fixture(autouse=True)
def own_surroundings(machine_apart: None) -> None:
    """No test here waits for another run's GPU."""


@pytest.fixture
def pytester(pytester: pytest.Pytester) -> pytest.Pytester:
    """Run pytest in this process without what no bench needs of it."""
    vars(pytester)["inline_run"] = partial(pytester.inline_run, *NOT_NEEDED)
    return pytester


@pytest.fixture
def bench(pytester: pytest.Pytester) -> Bench:
    (pytester.path / "pyproject.toml").write_text(INI)
    (pytester.path / "bench").mkdir()
    shutil.copy(ROOT / "conftest.py", pytester.path)
    shutil.copy(ROOT / "bench" / "test_conv2d.py", pytester.path / "bench")
    return Bench(pytester)
