"""MetaSchedule's own databases: plain, compressed, truncated and foreign."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import RECORD_FILE, WORKLOAD_FILE, load_database
from pytest_gpuenergy.tuners.tvm import database

RAW = Path(__file__).parents[2] / "data/case7_raw"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A folder with the sample, not compressed."""
    for name in (RECORD_FILE, WORKLOAD_FILE):
        (tmp_path / name).write_bytes(lzma.decompress((RAW / f"{name}.xz").read_bytes()))
    return tmp_path


def test_failed_trials_are_told_from_valid_ones(database):
    assert [record.line for record in database.records if record.failed] == [3]
    assert len(database.valid) == 7


def test_times_are_in_milliseconds(database):
    assert database.records[0].time_ms == pytest.approx(0.24283, rel=1e-4)


def test_compressed_and_plain_databases_are_equal(plain, database):
    assert load_database(plain).records == database.records
    assert load_database(plain).workloads == database.workloads


def test_gzip_is_read_too(plain, database):
    path = plain / RECORD_FILE
    (plain / f"{RECORD_FILE}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert load_database(plain).records == database.records


def test_a_file_may_be_named_with_other_words(plain, database):
    (plain / RECORD_FILE).rename(plain / "case7_tuning_record.json")
    (plain / WORKLOAD_FILE).rename(plain / "case7_workload.json")
    found = load_database(plain / "case7_tuning_record.json")
    assert (found.records, found.workloads) == (database.records, database.workloads)


def test_records_are_readable_without_their_workloads(plain):
    (plain / WORKLOAD_FILE).unlink()
    assert load_database(plain).workloads == ()


def test_equal_schedules_have_equal_traces(database):
    assert len({record.trace_text for record in database.records}) == 8


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match=f"no {RECORD_FILE}"):
        load_database(tmp_path)


def test_a_truncated_line_is_named(plain):
    path = plain / RECORD_FILE
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(InputError, match=r"Line 8 of the database .* not complete JSON"):
        load_database(plain)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_damaged_archive_is_refused(plain, suffix):
    path = plain / RECORD_FILE
    compress = gzip.compress if suffix == ".gz" else lzma.compress
    (plain / f"{RECORD_FILE}{suffix}").write_bytes(compress(path.read_bytes())[:-20])
    path.unlink()
    with pytest.raises(InputError, match="cannot be decompressed"):
        load_database(plain)


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "_MAX_BYTES", 8 << 20)
    path = tmp_path / f"{RECORD_FILE}.xz"
    with lzma.open(path, "wb", preset=0) as stream:
        for _ in range(9):
            stream.write(bytes(1 << 20))
    with pytest.raises(InputError, match="larger than 8 MiB once decompressed"):
        load_database(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}", "instead of a list"),
        ("[1]", "the line does not have 2 values"),
        ('["0", []]', "[0] is a string instead of an integer"),
        ("[1, []]", "of workload 1, and there are 1"),
        ("[-1, []]", "[0] is less than 0"),
        ("[0, [[[], []], [NaN], {}, []]]", "not complete JSON"),
        ('[0, [[[], []], ["a"], {}, []]]', "a run time is 'a'"),
    ],
)
def test_a_foreign_line_is_named(plain, line, message):
    with (plain / RECORD_FILE).open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(InputError, match=r"^Line 9 of the database") as error:
        load_database(plain)
    assert message in str(error.value)


def test_a_foreign_workload_line_is_refused(plain):
    (plain / WORKLOAD_FILE).write_text(json.dumps({"hash": 1}))
    with pytest.raises(InputError, match=r"Line 1 .* the line is an object instead of a list"):
        load_database(plain)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path, content):
    (tmp_path / RECORD_FILE).write_bytes(content)
    try:
        assert load_database(tmp_path).records == ()
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 -- either is right


def test_a_list_of_records_may_have_any_name(plain, database):
    path = (plain / RECORD_FILE).rename(plain / "case7.json")
    assert [record.text for record in load_database(path).records] == [
        record.text for record in database.records
    ]
