"""`gpuenergy kernels sample`: Ansor's logs and MetaSchedule's databases."""

from __future__ import annotations

import gzip
import json
import lzma
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from command_outcomes import Outcome, ended, outcome_of
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_gpuenergy.tuning import BANDS

ROOT = Path(__file__).parent.parent.parent
RAW = ROOT / "tests/data/case7_raw"
SIZES = (1, 272, 272, 64, 32, 3, 3, 1, 1)
SHAPE = ",".join(map(str, SIZES))
FLOPS = 2 * 64 * 272 * 272 * 32 * 3 * 3
NAME = (
    "cuda_resnet_testCase_3_conv2d_N_1_H_272_W_272_CO_64_CI_32_KH_3_KW_3_strides_1_padding_1.json"
)
PAIRS = NAME.replace("strides_1_padding_1", "strides_(1, 1)_padding_(1, 1)")
each_example = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def sample(*words: object) -> Outcome:
    return outcome_of("kernels", "sample", *words)


def trial(
    *costs: float,
    step: int = 0,
    error_no: int = 0,
    key: object = ("conv2d", *SIZES),
) -> str:
    """A line of a log; equal ``step``: equal schedules."""
    task = [json.dumps(key), "cuda -keys=cuda,gpu -arch=sm_80", [-1, 16, 64, 49152], "", 1, []]
    state = [[], [["CHW", 2, "local"], ["SP", 2, 0, 512, [1, step, 8], 1], ["AN", 2, 9, 2]]]
    result = [list(costs), error_no, 0.9, 1626295478]
    return json.dumps({"i": [task, state], "r": result, "v": "v0.6"})


def write(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def failures(step: int) -> str:
    return trial(1e10, step=step, error_no=6)


def hundred() -> list[str]:
    """101 different trials of 1, 2, .. 101 ms, the slowest first."""
    return [trial(place * 1e-3, step=place) for place in range(101, 0, -1)]


def test_the_sample_is_the_fastest_and_those_around_each_percentile(tmp_path):
    log = write(tmp_path / NAME, [failures(0), *hundred(), failures(1)])
    document = sample(log, "--json").document
    assert document["trials"] == {"total": 103, "failed": 2}
    times_ms = {
        band: [
            round(pick["time_ms"]) for pick in document["representatives"] if pick["band"] == band
        ]
        for band in BANDS
    }
    assert times_ms == {
        "fastest": [1, 2, 3, 4, 5],
        "p10": [9, 10, 11, 12, 13],
        "p25": [24, 25, 26, 27, 28],
        "p50": [49, 50, 51, 52, 53],
        "p75": [74, 75, 76, 77, 78],
    }
    assert document["representatives"][0]["line"] == 102


def test_a_table_says_how_many_failed(tmp_path):
    log = write(tmp_path / NAME, [*hundred(), failures(0)])
    header, fastest, *_, told = sample(log, "--keep", "5").out.splitlines()
    assert header.split() == ["line", "band", "time", "GFLOP/s"]
    assert fastest.split() == ["101", "fastest", "1.00", "ms", f"{FLOPS / 1e6:.0f}"]
    assert told == "5 of 101 trials that ran; 1 of 102 failed"


def test_fewer_than_asked_for_is_said(tmp_path):
    log = write(tmp_path / NAME, hundred()[:7])
    assert "fewer than the 25 requested" in sample(log).out
    assert "fewer" not in sample(log, "--keep", "7").out


def test_equal_schedules_count_once(tmp_path):
    log = write(tmp_path / NAME, [trial(2e-3), trial(1e-3), trial(3e-3, step=1)])
    assert [pick["line"] for pick in sample(log, "--json").document["representatives"]] == [2, 3]


def test_the_time_is_the_mean_of_the_costs(tmp_path):
    log = write(tmp_path / NAME, [trial(1e-3, 3e-3)])
    (pick,) = sample(log, "--json").document["representatives"]
    assert pick["time_ms"] == pytest.approx(2.0)
    assert pick["gflops"] == pytest.approx(FLOPS / 2e-3 / 1e9)


@pytest.mark.parametrize("failed", [trial(1e10), trial(1e9), trial(1e-3, error_no=4)])
def test_a_failed_trial_is_never_chosen(tmp_path, failed):
    log = write(tmp_path / NAME, [failed, trial(5e-3, step=1)])
    document = sample(log, "--json").document
    assert document["trials"] == {"total": 2, "failed": 1}
    assert [pick["line"] for pick in document["representatives"]] == [2]


@pytest.mark.parametrize("suffix", ["", ".xz"])
@pytest.mark.parametrize("outcome", ["correctness", "timeout", "runtime"])
def test_a_trial_that_turned_out_wrong_is_never_chosen(tmp_path, outcome, suffix):
    for path in RAW.glob("*.xz"):
        shutil.copy(path, tmp_path)
    fastest = sample(RAW, "--json").document["representatives"][0]["line"]
    events = [{"index": index, "outcome": "timed", "time_ms": 1.0} for index in range(8)]
    events.append({"index": fastest - 1, "outcome": outcome, "message": "It is wrong."})
    for name, lines in (("search.json", [{}]), ("trials.jsonl", events)):
        text = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        (tmp_path / f"{name}{suffix}").write_bytes(lzma.compress(text) if suffix else text)
    document = sample(tmp_path, "--json").document
    assert fastest not in {pick["line"] for pick in document["representatives"]}
    assert document["trials"] == {"total": 8, "failed": 2}


def test_a_journal_of_another_tuner_is_not_looked_at(tmp_path):
    for path in RAW.glob("*.xz"):
        shutil.copy(path, tmp_path)
    write(tmp_path / "trials.jsonl", ['{"index": 0, "outcome": "compile"}'])
    assert sample(tmp_path, "--json").document["trials"] == {"total": 8, "failed": 1}


def test_comments_are_passed_over_as_tvm_does(tmp_path):
    log = write(tmp_path / NAME, ["# of June", " indented", "", trial(1e-3)])
    assert sample(log, "--json").document["representatives"][0]["line"] == 4


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (NAME, "d7b65649a4dd54becea0a52aabbc5af5"),
        (NAME.replace(".json", "_json"), ["d7b65649a4dd54becea0a52aabbc5af5"]),
        (PAIRS, ["mine", 1, 2, 3]),
        ("log.json", ["conv2d", *SIZES]),
        ("log.json", ["conv2d_layer", *SIZES[:7], [1, 1], [1, 1]]),
        (NAME, ["conv2d", *SIZES]),
    ],
)
def test_the_name_or_the_workload_key_tell_the_flops(tmp_path, name, key):
    assert (
        sample(write(tmp_path / name, [trial(1e-3, key=key)]), "--json").document["flops"] == FLOPS
    )


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("log.json", ["d7b65649a4dd54becea0a52aabbc5af5", *SIZES]),
        ("log.json", ["conv2d_transpose", *SIZES]),
        ("log.json", ["conv2d", *SIZES, 1]),
        ("log.json", ["conv2d", *SIZES[:7], [1, 2], [1, 1]]),
        ("log.json", ["conv2d", *SIZES[:8], 10**400]),
        ("log.json", ["conv2d", 0, *SIZES[1:]]),
        ("log.json", []),
        (PAIRS.replace("(1, 1)_p", "(1, 2)_p"), []),
        (NAME.replace("272", "27200000000"), []),
    ],
)
def test_sizes_that_are_not_told_are_not_guessed(tmp_path, name, key):
    log = write(tmp_path / name, [trial(1e-3, key=key)])
    assert sample(log, "--json").document["flops"] is None
    assert "give them with --shape" in sample(log).out
    given_shape = sample(log, "--json", "--shape", SHAPE).document
    assert given_shape["flops"] == FLOPS


def test_performance_is_one_integer_a_line_in_the_order_of_the_sample(tmp_path):
    log = write(tmp_path / NAME, hundred())
    target = tmp_path / "performance" / NAME
    picks = sample(log, "--json", "--performance", target).document["representatives"]
    lines = target.read_text().splitlines()
    assert len(lines) == 25
    assert [int(line) for line in lines] == [round(pick["gflops"]) for pick in picks]
    assert [path.name for path in target.parent.iterdir()] == [NAME]  # no drafts are left


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_a_log_may_be_compressed(tmp_path, suffix, compress):
    log = tmp_path / (NAME + suffix)
    log.write_bytes(compress("\n".join(hundred()).encode()))
    assert sample(log, "--json").document["trials"] == {"total": 101, "failed": 0}


def test_a_metaschedule_database_is_sampled_by_the_same_rule():
    document = sample(RAW, "--json").document
    assert (document["tuner"], document["flops"]) == ("metaschedule", 2 * 256 * 14 * 14 * 256 * 9)
    assert document["trials"] == {"total": 8, "failed": 1}
    times_ms = [pick["time_ms"] for pick in document["representatives"]]
    assert len(times_ms) == 7
    assert times_ms == sorted(times_ms)
    assert sample(RAW / "database_tuning_record.json.xz", "--json").document == document


@pytest.mark.slow
def test_the_sample_that_the_documentation_shows_is_what_is_printed(monkeypatch):
    page = (ROOT / "docs/how-to/older-tools.md").read_text(encoding="utf-8")
    command, shown = re.findall(r"\$ gpuenergy kernels sample (.*)\n(line (?:.*\n)*?)```", page)[0]
    monkeypatch.chdir(ROOT)
    printed = sample(*command.split()).out
    begin, _, end = shown.partition("...\n")
    assert printed.startswith(begin)
    assert printed.endswith(f"\n{end}")


OTHER = trial(1e-3, key=["conv2d", *SIZES[:8], 0])
REFUSED: dict[str, tuple[list[str], list[str], str]] = {
    "sizes that contradict the name": ([OTHER], [], "give different sizes"),
    "no sizes for a performance": (
        [trial(1e-3, key=["hash"])],
        ["--performance", "{folder}/p.json"],
        "give them with --shape",
    ),
    "a folder as performance": ([trial(1e-3)], ["--performance", "{folder}"], "cannot be written"),
    "several workloads": ([trial(1e-3), trial(1e-3, key=["other"])], [], "trials of 2 workloads"),
    "no line": ([], [], "None of the 0 trials"),
    "a comment": (["# nothing"], [], "Line 1 of the database"),
    "failures": ([failures(0), failures(1)], [], "None of the 2 trials"),
    "too short a time": ([trial(5e-324)], [], "too short a time"),
    "the log itself": (
        hundred(),
        ["--filtered", "{folder}"],
        "is the log itself: choose another folder for --filtered",
    ),
    "a file as folder": (hundred(), ["--filtered", "{folder}/file"], "cannot be written"),
    "few sizes": (hundred(), ["--shape", "1,2,3"], "is not understood"),
    "a size of another form": (hundred(), ["--shape", "1,2,3,4,5,6,7,8,x"], "is not understood"),
    "no ASCII digit": (hundred(), ["--shape", "²,1,1,1,1,1,1,1,1"], "is not understood"),
    "none to keep": (hundred(), ["--keep", "0"], "'0' is not a whole number from 1 to"),
    "fewer than none": (hundred(), ["--keep", "-1"], "'-1' is not a whole number from 1 to"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_sampled_is_refused(tmp_path, case):
    lines, words, message = REFUSED[case]
    name = NAME if "no sizes" not in case else "log.json"
    log = write(tmp_path / name, lines)
    (tmp_path / "file").write_text("mine")
    before = log.read_text()
    outcome = sample(log, *(word.replace("{folder}", str(tmp_path)) for word in words))
    assert (outcome.code, outcome.out) == (2, "")
    last = outcome.err.splitlines()[-1]
    assert last.startswith("gpuenergy")
    assert message in last
    assert log.read_text() == before
    assert not (tmp_path / "p.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no/such/log.json"], "cannot be read"),
        ([RAW.parent.parent], "no logs in"),
        ([], "required: LOG"),
        ([RAW, "--shape", SHAPE], "Omit --shape"),
        ([RAW.parent, "--shape", SHAPE], "--shape is for one log"),
    ],
)
def test_what_is_no_log_is_refused(words, message):
    outcome = sample(*words)
    assert outcome.code == 2
    assert message in outcome.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"i": 1}', "i is an integer instead of a list"),
        ('{"i": [["k"], []]}', "r is missing"),
        ('{"i": [[], []], "r": [[1], 0, 0, 0]}', "its task has no workload key"),
        ('{"i": [["k", "t"], {}], "r": [[1], 0, 0, 0]}', "i[1] is an object instead of a list"),
        ('{"i": [["k", "t"], []], "r": [[], 0, 0, 0]}', "no costs"),
        ('{"i": [["k", "t"], []], "r": [[-1], 0, 0, 0]}', "r[0][0] is not greater than 0"),
        ('{"i": [["k", "t"], []], "r": [[NaN], 0, 0, 0]}', "not complete JSON"),
        (
            '{"i": [["k", "t"], []], "r": [[1], true, 0, 0]}',
            "r[1] is a boolean instead of an integer",
        ),
        ("[" * 100_000, "nested too deeply"),
        ("[0, [1]]", "the line is a list instead of an object"),
    ],
)
def test_a_foreign_line_is_named(tmp_path, line, message):
    outcome = sample(write(tmp_path / NAME, [trial(1e-3), line]))
    assert outcome.code == 2
    assert outcome.err.startswith("gpuenergy: error: Line 2 of the log ")
    assert message in outcome.err


@pytest.mark.parametrize(
    "words",
    [["list"], ["show", "case1", "1"], ["export", "--out", "exported"]],
)
@pytest.mark.parametrize("folder", [False, True])
def test_commands_that_need_kernels_say_that_ansor_has_none(tmp_path, words, folder):
    log = write(tmp_path / NAME, hundred())
    said = ended(2, "kernels", *words, "--records", str(tmp_path if folder else log)).err
    assert f"{NAME} is a log of TVM's auto-scheduler (Ansor), which TVM has dropped" in said
    assert said.count("\n") == 1


costs = st.lists(st.floats(min_value=1e-9, max_value=1e8), min_size=1, max_size=3)
outcomes = st.one_of(st.tuples(costs, st.just(0)), st.tuples(st.just([1e10]), st.integers(0, 8)))


@each_example
@given(st.lists(outcomes, min_size=1, max_size=30))
def test_every_trial_that_ran_is_found_again(tmp_path, trials):
    lines = [trial(*costs, step=n, error_no=no) for n, (costs, no) in enumerate(trials)]
    outcome = sample(write(tmp_path / NAME, lines), "--json", "--keep", 1000)
    ran = {n: sum(costs) / len(costs) for n, (costs, no) in enumerate(trials, 1) if costs != [1e10]}
    if not ran:
        assert outcome.code == 2
        return
    found = {pick["line"]: pick["time_ms"] for pick in outcome.document["representatives"]}
    assert found == pytest.approx({line: 1e3 * cost for line, cost in ran.items()})
    failed = outcome.document["trials"]["failed"]
    assert failed == len(trials) - len(ran)


@each_example
@given(st.data())
def test_a_truncated_log_is_read_to_its_last_whole_line_or_refused(tmp_path, data):
    whole = hundred()[:3]
    content = "".join(f"{line}\n" for line in whole)
    cut = content[: data.draw(st.integers(0, len(content)))]
    log = tmp_path / NAME
    log.write_text(cut)
    outcome = sample(log, "--json")
    lines = cut.splitlines()
    if lines and lines[-1] in whole:
        assert outcome.document["trials"]["total"] == len(lines)
    else:
        assert outcome.code == 2
        assert outcome.err.count("\n") == 1


@each_example
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda rest: b"{" + rest)))
def test_any_bytes_are_refused_in_one_sentence(tmp_path, content):
    log = tmp_path / NAME
    log.write_bytes(content)
    outcome = sample(log)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=8,
)


@each_example
@given(json_values, st.sampled_from(["i", "r", "task", "state", "costs", "error_no"]))
def test_any_value_anywhere_is_read_or_refused(tmp_path, value, place):
    entry = json.loads(trial(1e-3))
    if place in entry:
        entry[place] = value
    else:
        key, index = {
            "task": ("i", 0),
            "state": ("i", 1),
            "costs": ("r", 0),
            "error_no": ("r", 1),
        }[place]
        entry[key][index] = value
    outcome = sample(write(tmp_path / NAME, [json.dumps(entry)]))
    assert outcome.code in (0, 2)
    assert outcome.err.count("\n") == (outcome.code == 2)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A folder of two logs, one compressed, and a database."""
    folder = tmp_path / "logs"
    folder.mkdir()
    write(folder / NAME, [failures(0), *hundred()])
    (folder / f"zipped_{NAME}.gz").write_bytes(gzip.compress(f"{trial(2e-3)}\n".encode()))
    shutil.copytree(RAW, folder / "raw")
    return folder


def test_each_log_in_a_folder_is_sampled(logs, tmp_path):
    outcome = sample(logs, "--json", "--performance", tmp_path / "rates")
    assert outcome.code == 0, outcome.err
    assert [len(one["representatives"]) for one in outcome.document] == [25, 7, 1]
    assert {Path(one["log"]).parent.name for one in outcome.document} == {"logs", "raw"}
    rates = {path.name: path.read_text().split() for path in (tmp_path / "rates").iterdir()}
    assert set(rates) == {NAME, f"zipped_{NAME}", "raw.json"}
    assert rates[f"zipped_{NAME}"] == [f"{FLOPS / 2e6:.0f}"]


def test_a_log_that_cannot_be_used_harms_no_other(logs):
    (logs / "broken.json").write_text("{")
    (logs / "notes.md").write_text("mine")
    outcome = sample(logs)
    assert [line for line in outcome.out.splitlines() if line.endswith(":")] == [
        f"{NAME}:",
        "raw:",
        f"zipped_{NAME}.gz:",
    ]
    assert outcome.code == 1
    assert outcome.err.startswith("broken.json: not sampled: Line 1 of the log ")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("content", [{}, {"notes.md": "mine"}, {"a.json": "{", "b.log": ""}])
def test_a_folder_without_usable_logs_is_refused(tmp_path, content):
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    outcome = sample(tmp_path)
    assert (outcome.code, outcome.out) == (2, "")
    assert "logs in" in outcome.err.splitlines()[-1]


def test_a_filtered_log_has_the_chosen_lines_the_fastest_first(tmp_path):
    log = write(tmp_path / NAME, [failures(0), *hundred()])
    outcome = sample(log, "--json", "--filtered", tmp_path / "filtered")
    original = log.read_text().splitlines()
    lines = [original[pick["line"] - 1] for pick in outcome.document["representatives"]]
    filtered = tmp_path / "filtered" / NAME
    assert filtered.read_text().splitlines() == lines
    again = sample(filtered, "--json").document
    assert again["trials"] == {"total": 25, "failed": 0}


def test_filtered_logs_of_a_folder_keep_their_names(logs, tmp_path):
    assert sample(logs, "--filtered", tmp_path / "few", "--keep", "3").code == 0
    assert sorted(path.name for path in (tmp_path / "few").iterdir()) == [
        NAME,
        "raw",
        f"zipped_{NAME}",
    ]
    outcome = sample(tmp_path / "few", "--json")
    assert outcome.code == 0, outcome.err
    assert [one["trials"]["total"] for one in outcome.document] == [3, 3, 1]
