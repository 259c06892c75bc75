"""Reports and runs that are damaged, on disk or on purpose."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from record_strategies import REPORTS

from pytest_gpuenergy.record import FIGURES
from pytest_gpuenergy.report import (
    Report,
    RunFolder,
    check_writable,
    json_document,
    load_report,
    write_json,
)
from pytest_gpuenergy.support import ReportError, ReportInputError

Make = Callable[..., Any]
Load = Callable[..., Report]
TRIAL = {"seconds": 0.1, "joules": 30.0, "launches": 200.0, "busy_seconds": 0.1}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
PLAIN = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture
def document(report: Make, measured: Make, failed: Make) -> dict[str, Any]:
    """A valid report of two measurements as plain values."""
    loaded: dict[str, Any] = json.loads(json_document(report(measured(1), failed(2))))
    return loaded


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Reads a report from plain values or text."""

    def read(document: object) -> Report:
        path = tmp_path / "report.json"
        text = document if isinstance(document, str) else json.dumps(document)
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        return load_report(path)

    return read


@pytest.fixture
def refused(load: Load) -> Callable[..., str]:
    """The message for an unusable report, one sentence, without the file's name."""

    def read(document: object) -> str:
        with pytest.raises(ReportInputError) as raised:
            load(document)
        path, _, said = str(raised.value).partition("report.json: ")
        assert path
        assert said.endswith(".")
        assert "\n" not in said
        return said

    return read


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths to all parts of a JSON value."""
    yield path
    inner: Any = ()
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in inner:
        yield from places(item, (*path, key))


def changed(document: Any, path: tuple[str | int, ...], *values: Any) -> Any:
    """The document with one value replaced or removed."""
    if not path:
        return values[0]
    copied = copy.deepcopy(document)
    parent = copied
    for key in path[:-1]:
        parent = parent[key]
    if values:
        parent[path[-1]] = values[0]
    else:
        del parent[path[-1]]
    return copied


@pytest.mark.slow
@PLAIN
@given(REPORTS)
def test_any_report_survives_its_file(tmp_path, report):
    write_json(report, tmp_path / "report.json")
    assert load_report(tmp_path / "report.json") == report


def read(path: Path, document: object) -> Report | str:
    """A report, or the message that refuses it."""
    path.write_text(json.dumps(document))
    try:
        return load_report(path)
    except ReportInputError as error:
        return str(error)


@PLAIN
@given(st.data())
def test_any_change_of_a_report_is_refused_or_stable(tmp_path, document, data):
    path = data.draw(st.sampled_from([*places(document)]))
    found = read(tmp_path / "report.json", changed(document, path, data.draw(JSON)))
    if isinstance(found, str):
        assert "\n" not in found
        assert len(found) < len(str(tmp_path)) + 300
        return
    write_json(found, tmp_path / "again.json")
    again = load_report(tmp_path / "again.json")
    assert again == found
    assert json_document(again) == json_document(found)


@PLAIN
@given(st.data())
def test_any_missing_member_is_named_or_has_a_default(tmp_path, document, data):
    keys = [path for path in places(document) if path and isinstance(path[-1], str)]
    path = data.draw(st.sampled_from(keys))
    found = read(tmp_path / "report.json", changed(document, path))
    if isinstance(found, str):
        assert f"{path[-1]} is missing" in found or "is not a report" in found


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("node_id", 3, "node_id is an integer instead of a string"),
        ("outcome", "excellent", "outcome is 'excellent', which is not allowed"),
        ("outcome", [], "outcome is a list instead of a string"),
        ("cap_index", 1.5, "cap_index is a number instead of an integer or null"),
        ("cap_index", True, "cap_index is a boolean instead of an integer or null"),
        ("time_ms", "fast", "time_ms is a string instead of a number or null"),
        ("time_ms", True, "time_ms is a boolean instead of a number or null"),
        ("time_ms", 10**400, "time_ms is a number that is too large"),
        ("energy_mj", -(10**400), "energy_mj is a number that is too large"),
        ("time_ms", -1, "time_ms is less than 0"),
        ("power_w", -300, "power_w is less than 0"),
        ("enforced_power_limit_w", -1, "enforced_power_limit_w is less than 0"),
        ("time_ms_ci95", [1, 2], "time_ms_ci95 is a list instead of an object or null"),
        ("trials", {"0": 1}, "trials is an object instead of a list"),
        ("trials", [None], "trials[0] is null instead of an object"),
        ("trials", [TRIAL, TRIAL | {"seconds": "s"}], "trials[1].seconds is a string"),
        ("trials", [TRIAL | {"seconds": 0}], "trials[0].seconds is not greater than 0"),
        ("trials", [TRIAL | {"launches": 0}], "trials[0].launches is not greater than 0"),
        ("trials", [TRIAL | {"joules": -1}], "trials[0].joules is less than 0"),
        ("trials", [TRIAL | {"busy_seconds": -1}], "trials[0].busy_seconds is less than 0"),
        ("trials", [{"seconds": 1}], "trials[0].joules is missing"),
        ("validity", "thermal", "validity is a string instead of a list"),
        ("validity", [1], "validity[0] is an integer instead of a string"),
        ("cap_binding", 1, "cap_binding is an integer instead of a boolean or null"),
        ("workload", None, "workload is null instead of an object"),
        ("kernel", {"label": "k01"}, "kernel.digest is missing"),
        ("phases_s", {"heat": "x"}, "a value of measurements[0].phases_s is a string"),
    ],
    ids=str,
)
def test_a_value_that_does_not_belong_is_named(document, refused, name, value, said):
    document["measurements"][0][name] = value
    place = "" if said.startswith("a value") else "measurements[0]."
    assert refused(document).startswith(f"{place}{said}")


@pytest.mark.parametrize("name", ["cap_index", "time_ms"])
def test_a_number_of_ten_thousand_digits_is_too_large(document, refused, name):
    document["measurements"][0][name] = "here"
    text = json.dumps(document).replace('"here"', "9" * 10_000)
    assert refused(text) == f"measurements[0].{name} is a number that is too large."


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e400", "1_000"])
def test_a_number_that_json_does_not_have_is_refused(document, load, number):
    document["measurements"][0]["time_ms"] = "here"
    with pytest.raises(ReportInputError):
        load(json.dumps(document).replace('"here"', number))


@pytest.mark.parametrize("name", ["time_ms", "energy_mj", "edp_mj_ms"])
@pytest.mark.parametrize(("low", "high"), [(1e200, 0.0), (1e308, -1e308), (0.0, 1e-9)])
def test_an_interval_that_does_not_hold_its_figure_is_refused(document, refused, name, low, high):
    document["measurements"][0][f"{name}_ci95"] = {"low": low, "high": high}
    said = refused(document)
    assert said.startswith(f"measurements[0].{name}_ci95 is {low} to {high}, which does not")


@pytest.mark.parametrize("missing", FIGURES)
def test_figures_come_together(document, refused, missing):
    document["measurements"][0][missing] = None
    assert refused(document).startswith(f"measurements[0].{missing} is missing, although ")


def test_numbers_without_a_fraction_are_read_as_floats(document, load):
    document["measurements"][0]["power_limit_w"] = 450
    assert type(load(document).measurements[0].power_limit_w) is float


@pytest.mark.parametrize("value", [1, "x", [[]], {"deep": [None]}], ids=str)
def test_fields_of_later_releases_are_left_out(document, load, value):
    expected = load(document)
    for record in (document, document["run"], document["measurements"][1]):
        record["later"] = value
    assert load(document) == expected


def test_fields_with_a_default_may_be_missing(document, load):
    expected = load(document)
    for name in ("validity", "trials", "wall_s", "warm_trials", "phases_s"):
        del document["measurements"][1][name]
    del document["anchors"]
    assert load(document) == expected


@pytest.mark.parametrize("place", ["error", "later"])
def test_a_deeply_nested_value_is_refused(document, load, place):
    document["measurements"][0][place] = "here"
    bomb = "[" * 1_000_000 + "]" * 1_000_000
    with pytest.raises(ReportInputError, match=r"nested too deeply|a list instead of a string"):
        load(json.dumps(document).replace('"here"', bomb))


def test_a_long_value_is_cut_short_in_the_message(document, refused):
    document["measurements"][0]["outcome"] = "x" * 10_000
    assert len(refused(document)) < 200


def test_half_a_surrogate_pair_is_read_as_a_question_mark(document, load):
    document["measurements"][0]["node_id"] = "a\ud800b\udc80 \U0001f600 \\ud800"
    assert load(document).measurements[0].node_id == "a?b? \U0001f600 \\ud800"


@pytest.mark.parametrize(
    ("where", "name"), [("workload", "flops"), ("kernel", "rank"), ("parameters", "n")]
)
def test_a_whole_number_that_is_no_amount_is_named(document, refused, where, name):
    document["measurements"][0][where][name] = 10**400
    assert refused(document).removeprefix("a value of ").startswith(f"measurements[0].{where}")


@pytest.fixture
def folder(tmp_path: Path, measured: Make, run_info: Make) -> RunFolder:
    """A run of three measurements."""
    folder = RunFolder.create(tmp_path, run_info())
    for rank in (1, 2, 3):
        folder.append(measured(rank))
    return folder


@pytest.mark.parametrize("damage", [b"\xff", b"\x80\x81", b"\xed\xa0\x80", b"\0", b"\r"])
def test_a_bad_byte_costs_its_line(folder, damage):
    path = folder.path / "measurements.jsonl"
    first, second, third, _ = path.read_bytes().split(b"\n")
    middle = len(second) // 2
    second = second[:5] + damage + second[5:middle] + damage + second[middle:]
    path.write_bytes(b"\n".join([first, second, third, b""]))
    assert [m.kernel.rank for m in folder.load().measurements] == [1, 3]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_in_a_line_cost_at_most_that_line(folder, data):
    path = folder.path / "measurements.jsonl"
    content = path.read_bytes()
    lines = content.split(b"\n")
    lines[1] = data.draw(st.binary(max_size=20).filter(lambda b: b"\n" not in b))
    path.write_bytes(b"\n".join(lines))
    found = "line 2"
    try:
        ranks = [m.kernel.rank for m in folder.load().measurements]
    except ReportInputError as error:  # JSON that is no measurement
        ranks, found = [1, 3], str(error)
    assert (ranks, "line 2" in found) == ([1, 3], True)
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_a_log_behind_a_descriptor_is_not_replaced(tmp_path, name):
    log = tmp_path / "log"
    program = (
        "import sys; from pathlib import Path\n"
        "from pytest_gpuenergy.report import write_view\n"
        "from pytest_gpuenergy.support.errors import ReportError\n"
        "print('before', flush=True)\n"
        "try:\n"
        f"    write_view(Path({name!r}), 'replaced')\n"
        "except ReportError as error:\n"
        "    print(error)\n"
    )
    with log.open("w") as stream:
        before = os.fstat(stream.fileno()).st_ino
        subprocess.run([sys.executable, "-c", program], stdout=stream, check=True)
    assert log.stat().st_ino == before
    assert log.read_text() == (
        f"before\n{name} cannot be written (it is not a regular file): choose a writable path.\n"
    )


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/null", "/proc/self/fd/1"])
def test_what_is_no_regular_file_is_refused_before_anything_is_measured(name):
    with pytest.raises(ReportError, match="it is not a regular file"):
        check_writable(Path(name), folder=False)


def test_a_regular_file_in_memory_is_written(report, measured):
    place = Path("/dev/shm")
    if not os.access(place, os.W_OK):
        pytest.skip("there is no /dev/shm")
    path = place / f"gpuenergy-test-{os.getpid()}.json"
    try:
        write_json(report(measured(1)), path)
        assert path.stat().st_size
    finally:
        path.unlink(missing_ok=True)
