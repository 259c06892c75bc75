"""The journal of a search: what is on disk, and what is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_gpuenergy.errors import InputError
from pytest_gpuenergy.tuning.journal import JOURNAL_FILE, Journal


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / JOURNAL_FILE).read_text().splitlines()]


def test_a_trial_is_on_disk_as_soon_as_it_has_ended(tmp_path: Path) -> None:
    with Journal(tmp_path, "case7", 2, print) as journal:
        journal.add("timed", time_ms=0.5, digest="abc")
        journal.add("compile", message="no such type")
        first, second = lines(tmp_path)  # while the search goes on
    assert first["time_ms"] == 0.5
    assert (first["index"], first["outcome"], first["digest"]) == (0, "timed", "abc")
    assert (second["outcome"], second["message"]) == ("compile", "no such type")
    assert second["time_ms"] is None


def test_a_continued_search_goes_on_counting(tmp_path: Path) -> None:
    for _ in range(2):
        with Journal(tmp_path, "case7", 1, print) as journal:
            journal.add("timed", time_ms=1.0)
            assert journal.tried == 1
    assert [line["index"] for line in lines(tmp_path)] == [0, 1]


def test_the_progress_tells_trials_best_time_and_failures(tmp_path: Path) -> None:
    told: list[str] = []
    with Journal(tmp_path, "case7", 9, told.append) as journal:
        journal.tell()
        for time_ms in (0.5, 0.25, 0.75):
            journal.add("timed", time_ms=time_ms)
        for outcome in ("timeout", "compile", "timeout"):
            journal.add(outcome, message="it failed")  # type: ignore[arg-type]
        journal.tell()
    assert told[0].startswith("case7: 0 of 9 trials, best none, failed: none,")
    assert told[-1].startswith("case7: 6 of 9 trials, best 0.25 ms, failed: 1 compile, 2 timeout,")
    assert told[-1].endswith("trials/min")


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        Journal(tmp_path / "none", "case7", 1, print)
