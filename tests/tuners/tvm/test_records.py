"""Record files: written, read back, found, and refused when they are not what they should be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import load_records, records_of
from pytest_gpuenergy.tuning import (
    Measured,
    Record,
    RecordFile,
    dump_records,
    file_name,
    find_records,
)
from pytest_gpuenergy.workloads import CASES, Conv2d, find_workload

SHIPPED = Path(__file__).parents[3] / "bench" / "records" / "nvidia-h200"
RESNET09 = find_workload("resnet09")  # of the shape of case7
FIGURES = Measured(time_ms=0.02, power_w=410.0, energy_mj=8.2, power_limit_w=700.0)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@pytest.fixture
def path(tmp_path: Path, record_file: RecordFile) -> Path:
    path = tmp_path / file_name(record_file.workload)
    dump_records(record_file, path)
    return path


def damaged(path: Path, change: Callable[[dict[str, Any]], object]) -> str:
    """The message about the file once ``change`` has been at its document."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as error:
        load_records(path)
    message = str(error.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_what_is_written_is_found_and_read_back(path, record_file):
    assert find_records(path.parent, record_file.workload) == path
    assert load_records(path) == record_file


def test_a_file_from_before_there_were_kinds_is_read(path, record_file):
    document = json.loads(path.read_text())
    for key in ("kind", "layout", "dtype"):
        del document["workload"][key]
    path.write_text(json.dumps(document))
    assert load_records(path) == record_file


def test_the_file_is_named_after_workload_and_shape():
    assert file_name(CASES["case1"]) == (
        "case1_conv2d_N_1_H_272_W_272_CO_64_CI_32_KH_3_KW_3_strides_1_padding_1.json"
    )


def test_every_record_is_one_line_of_the_file(path, record_file):
    lines = path.read_text().splitlines()
    assert sum('"band"' in line for line in lines) == len(record_file.records)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", sorted(SHIPPED.glob("*_conv2d_*.json")), ids=lambda path: path.name[:5]
)
def test_bundled_files_are_written_as_they_are(path, tmp_path):
    dump_records(load_records(path), tmp_path / path.name)
    is_same = (tmp_path / path.name).read_bytes() == path.read_bytes()
    assert is_same  # comparing megabytes in detail takes minutes


def with_sizes(file: RecordFile, *sizes: int) -> RecordFile:
    """Records without a schedule, of another workload."""
    workload = Conv2d.of("mine", *sizes)
    tensors = [["TENSOR", tensor.dtype, list(tensor.shape)] for tensor in workload.tensors]
    text = json.dumps([[[], []], [1e-3], {}, tensors], separators=(",", ":"))
    return replace(file, workload=workload, records=(Record(1, "fastest", text),))


@pytest.mark.parametrize(
    ("more", "said"),
    [((2,), {"dilation": 2}), ((1, 4), {"groups": 4}), ((2, 2), {"dilation": 2, "groups": 2})],
)
def test_dilation_and_groups_are_kept(tmp_path, record_file, more, said):
    file = with_sizes(record_file, 1, 9, 9, 4, 4, 3, 3, 1, 1, *more)
    path = tmp_path / file_name(file.workload)
    dump_records(file, path)
    assert load_records(path) == file
    assert path.name.endswith("".join(f"_{name}_{value}" for name, value in said.items()) + ".json")
    written = json.loads(path.read_text())["workload"]
    assert {name: written[name] for name in ("dilation", "groups") if name in written} == said


def test_records_serve_another_workload_of_their_shape(path):
    file = records_of(path.parent, RESNET09)
    assert file == replace(load_records(path), workload=RESNET09)
    with pytest.raises(InputError, match="resnet09 has no kernel of rank 9"):
        file.record(9)


def test_a_workloads_own_records_come_first(path, record_file):
    own = replace(record_file, workload=RESNET09, gpu="Own GPU")
    dump_records(own, path.parent / file_name(RESNET09))
    assert records_of(path.parent, RESNET09) == own
    assert records_of(path.parent, CASES["case7"]) == record_file
    third = replace(RESNET09, name="third")
    assert records_of(path.parent, third) == replace(record_file, workload=third)


def test_dilation_makes_another_shape(path):
    with pytest.raises(InputError, match="no records for dilated"):
        records_of(path.parent, Conv2d.of("dilated", 1, 14, 14, 256, 256, 3, 3, 1, 1, 2))


def test_missing_records_name_the_command_that_makes_them(tmp_path):
    with pytest.raises(InputError, match="gpuenergy tune --case case3"):
        find_records(tmp_path, CASES["case3"])


def test_records_are_found_in_the_folder_of_a_gpu(path, record_file):
    dump_records(record_file, path.parent / "above" / "h200" / path.name)
    assert records_of(path.parent / "above", CASES["case7"]) == record_file


def test_records_for_several_gpus_must_be_told_apart(path, record_file):
    above = path.parent / "above"
    for gpu in ("h200", "l4"):
        dump_records(record_file, above / gpu / path.name)
    with pytest.raises(InputError, match=r"several sets of records for case7 .*\(h200, l4\)"):
        find_records(above, CASES["case7"])


@pytest.mark.parametrize("name", ["../case1", "/etc/passwd", "", ".hidden", "a/b", "a\0b"])
def test_a_workload_name_cannot_leave_the_folder(tmp_path, name):
    workload = Conv2d.of(name, 1, 8, 8, 4, 4, 3, 3, 1, 1)
    with pytest.raises(InputError, match="cannot have a record file"):
        find_records(tmp_path, workload)


@pytest.mark.parametrize("text", ["\x1b[2J", "H200\nbench: passed", "\x9b2J", "\u202e002H"])
@pytest.mark.parametrize("key", ["gpu", "driver", "tvm", "date"])
def test_a_text_that_would_command_a_terminal_is_refused(path, key, text):
    reason = damaged(path, lambda document: document.update({key: text}))
    assert f"'{key}' is {text!r}, which contains unprintable characters" in reason
    assert reason.isprintable()


def test_measured_figures_become_recorded_figures(path, record_file):
    dump_records(record_file.with_measured({2: FIGURES}), path)
    file = load_records(path)
    assert file.recorded(1) == ()
    (figures,) = file.recorded(2)
    assert (figures.gpu, figures.power_w, figures.power_limit_w) == ("Test GPU", 410.0, 700.0)
    assert (figures.time_ms, figures.energy_mj) == (0.02, 8.2)


def test_figures_can_be_taken_back(record_file):
    measured = record_file.with_measured({1: FIGURES})
    assert measured.with_measured({1: None}) == record_file


def test_figures_of_a_rank_that_is_not_there_are_refused(record_file):
    with pytest.raises(InputError, match=r"no kernel of rank 9.*ranks 1 to 5"):
        record_file.with_measured({9: FIGURES})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *((lambda whole, n=n: whole[:n], "is not complete JSON") for n in (0, 1, 100, 5000)),
        (lambda _: b"\x80\x04\x95" + bytes(100), "not UTF-8"),
        (lambda _: b"[" * 100_000, "nested too deeply"),
        *(
            (
                lambda whole, n=n: whole.replace(b'"total": 8', b'"total": ' + n),
                "not complete JSON|is a number that is too large|instead of an integer",
            )
            for n in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 5000)
        ),
    ],
)
def test_a_file_that_is_not_whole_is_refused(path, change, message):
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError, match=message):
        load_records(path)


@pytest.mark.parametrize(("name", "message"), [("", "is not a file"), ("none", "No such file")])
def test_what_is_no_file_is_refused(tmp_path, name, message):
    with pytest.raises(InputError, match=message):
        load_records(tmp_path / name)


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (CASES["case5"], r"case5_.* contains kernels of case7 instead of case5"),
        (
            Conv2d.of("case7", 1, 15, 14, 512, 512, 3, 3, 1, 1),
            r"kernels of conv2d_.*H_14_.* instead of conv2d_.*H_15_",
        ),
    ],
    ids=["name", "sizes"],
)
def test_a_file_of_another_shape_than_its_name_says_is_refused(path, workload, message):
    path.rename(path.with_name(file_name(workload)))
    with pytest.raises(InputError, match=message):
        records_of(path.parent, workload)


@pytest.mark.slow
def test_a_huge_file_is_refused_before_it_is_read(path):
    with path.open("ab") as stream:
        stream.truncate(1 << 40)  # a sparse file of a TiB
    with pytest.raises(InputError, match="larger than 16 MiB"):
        load_records(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="other"), "format is 'other'"),
        (lambda d: d.pop("format"), "format is None"),
        (lambda d: d.update(version=99), "version is 99"),
        (lambda d: d.pop("gpu"), "gpu is missing"),
        (lambda d: d.update(gpu=3), "gpu is an integer instead of a string"),
        (lambda d: d.update(records=[]), "0 records"),
        (lambda d: d.update(records=d["records"] * 6), "30 records"),
        (lambda d: d["trials"].update(valid=2), "5 records, but 2 of 8 trials were valid"),
        (
            lambda d: d["trials"].update(valid=True),
            "trials.valid is a boolean instead of an integer",
        ),
        (lambda d: d["workload"].update(name="../x"), "name '../x'"),
        (lambda d: d["workload"].update(kind="fft"), "no kind of workload 'fft'"),
        (lambda d: d["workload"].update(depth=3), "does not take 'depth'"),
        (lambda d: d["workload"].update(H=-1), "H to be an integer of at least 1"),
        (lambda d: d["workload"].update(H=15), "tensors other than those of case7"),
        (lambda d: d["workload"].update(groups=3), "groups to divide CO and CI"),
        (lambda d: d["workload"].update(groups=2), "tensors other than those of case7"),
        (
            lambda d: d["workload"].update(dilation="2"),
            "dilation to be an integer of at least 1, not '2'",
        ),
        (lambda d: d["records"][1].update(rank=1), "records[1].rank is 1 instead of 2"),
        (
            lambda d: d["records"][0].update(band="p33"),
            "records[0].band is 'p33', which is not allowed",
        ),
        (lambda d: d["records"][4].update(record=[]), "in records[4] the record has 0 parts"),
        (
            lambda d: d["records"][0].update(record="x"),
            "in records[0] the record is 'x' instead of a list",
        ),
        (lambda d: d["records"][0]["record"].__setitem__(1, [1e10]), "failed trial"),
        (lambda d: d["records"][0]["record"].__setitem__(1, []), "run_secs is empty"),
        (lambda d: d["records"][0]["record"].__setitem__(1, [-1]), "a run time is -1"),
        (lambda d: d["records"][0]["record"].__setitem__(1, [10**400]), "a run time is 1000"),
        (lambda d: d["records"][0]["record"].__setitem__(0, [1]), "the trace is"),
        (lambda d: d["records"][0]["record"][0][0].append(7), "instruction"),
        (lambda d: d["records"][0]["record"].__setitem__(2, 5), "the target is 5"),
        (lambda d: d["records"][0]["record"].__setitem__(3, [["x"]]), "an argument is"),
        (
            lambda d: d["records"][0].update(measured={"time_ms": 1.0}),
            "measured.power_w is missing",
        ),
        (
            lambda d: d["records"][0].update(measured={**vars(FIGURES), "power_w": 0}),
            "records[0].measured.power_w is not greater than 0",
        ),
        (
            lambda d: d["records"][0].update(measured={**vars(FIGURES), "power_w": "1"}),
            "records[0].measured.power_w is a string instead of a number",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(path, change, message):
    assert message in damaged(path, change)


def test_inconsistent_records_are_not_written(tmp_path, record_file):
    path = tmp_path / "file.json"
    with pytest.raises(InputError, match="inconsistent"):
        dump_records(replace(record_file, trials_valid=1), path)
    assert not path.exists()


def test_a_file_that_cannot_be_written_is_told(tmp_path, record_file):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        dump_records(record_file, tmp_path / "file" / "x.json")


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(document=JSON)
def test_any_document_is_refused_in_one_sentence(tmp_path, document):
    path = tmp_path / "any.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as error:
        load_records(path)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data(), value=JSON)
def test_any_changed_member_is_read_or_refused(path, data, value):
    document = json.loads(path.read_text())
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(list(keys)))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = value
    changed = path.with_name("changed.json")
    changed.write_text(json.dumps(document))
    try:
        load_records(changed)
    except InputError as error:
        assert str(changed) in str(error)  # noqa: PT017 -- either is right
