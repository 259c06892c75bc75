"""``--gpuenergy-fleet``: what is understood, and what is refused in a sentence."""

from __future__ import annotations

import shlex

import execnet
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.fleet import (
    MAX_WORKERS,
    FleetSettings,
    RayFleet,
    SlurmFleet,
    SshFleet,
    SshHost,
    failure_reason,
    parse_fleet,
    tx_spec,
    usage_problem,
)
from pytest_gpuenergy.support import InputError

# Characters that mean something to a shell, to execnet or here; the tables of all take seconds.
PRINTABLE = st.text("ab/.-_'\"\\=:#$~@*x1é", max_size=9)
SPACED = st.text("a /'\"\\=:#", max_size=9).map(lambda text: f"/{text}")
PATHS = PRINTABLE.map(lambda text: f"/{text}")
NAMES = st.builds("{}{}".format, st.sampled_from("aZ0_"), st.text("aZ0_.-", max_size=6))
SETTINGS = st.builds(
    FleetSettings,
    python=st.none() | PATHS,
    directory=st.none() | SPACED,
    wait_s=st.none() | st.integers(1, 604_800).map(float) | st.sampled_from([0.5, 1.25]),
    silence_s=st.sampled_from([60.0, 0.5, 600.0]),
)
HOSTS = st.lists(
    st.builds(SshHost, NAMES | st.builds("{}@{}".format, NAMES, NAMES), st.none() | SPACED),
    min_size=1,
    max_size=4,
    unique_by=lambda host: host.name,
).map(tuple)
OPTIONS = st.lists(PRINTABLE, max_size=3).map(
    lambda words: tuple(f"--{word}" if not i else word for i, word in enumerate(words))
)
FLEETS = st.one_of(
    st.builds(
        RayFleet, SETTINGS, st.none() | st.builds("{}:{}".format, NAMES, st.integers(1, 65535))
    ),
    st.builds(SshFleet, HOSTS, SETTINGS),
    st.builds(SlurmFleet, OPTIONS, st.integers(1, MAX_WORKERS), SETTINGS),
)


@given(FLEETS)
def test_a_fleet_is_read_from_what_it_is_written_as(fleet):
    assert parse_fleet(str(fleet)) == fleet


@given(st.sampled_from(["", "ray", "ssh:", "ssh:a ", "slurm:"]), PRINTABLE | st.text(max_size=9))
def test_any_other_text_is_refused_in_a_sentence(begin, rest):
    try:
        fleet = parse_fleet(begin + rest)
    except InputError as error:
        said = str(error)
    else:
        said = f"--gpuenergy-fleet {fleet}."
        assert parse_fleet(str(fleet)) == fleet
    assert said.startswith("--gpuenergy-fleet ")
    assert said.endswith(".")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("text", "fleet"),
    [
        ("ray", RayFleet()),
        ("ray://HEAD:10001", RayFleet(address="HEAD:10001")),
        ("ssh:HOST,me@HOST2:/p", SshFleet((SshHost("HOST"), SshHost("me@HOST2", "/p")))),
        (
            'slurm:"--partition gpu --gpus-per-task 1" x8',
            SlurmFleet(("--partition", "gpu", "--gpus-per-task", "1"), 8),
        ),
        (
            "slurm:--partition gpu x2 wait=9",
            SlurmFleet(("--partition", "gpu"), 2, FleetSettings(wait_s=9)),
        ),
        ("slurm", SlurmFleet(())),
    ],
)
def test_the_forms_of_the_documentation_are_understood(text, fleet):
    assert parse_fleet(text) == fleet


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("ray:HEAD", "ray://HEAD:10001"),
        ("ray://HEAD:99999", "65535"),
        ("ssh:-oProxyCommand=x", "not the name of a host"),
        ("ssh:a,b,a", "named twice"),
        ("ssh:a:relative", "begins with /"),
        ("ssh:a python=", "not an interpreter"),
        ("ssh:a pyton=/x", "'pyton=/x' is not understood"),
        ("ssh:a wait=0", "seconds"),
        ("ssh:a silence=never", "silence='never' is not a number of seconds"),
        ("ssh:a dir=/x dir=/y", "given twice"),
        ("slurm:gpu", "not an option of srun"),
        ("slurm:-p x0", "x0"),
        ("slurm:'-p", "not closed"),
        ("k8s:pods", "give ray, "),
    ],
)
def test_a_mistake_is_named(text, said):
    with pytest.raises(InputError, match="--gpuenergy-fleet") as refused:
        parse_fleet(text)
    assert said in str(refused.value)


@given(st.lists(PRINTABLE | SPACED, min_size=1))
def test_execnet_starts_the_words_that_a_specification_was_made_of(words):
    spec = execnet.XSpec(tx_spec(words))
    assert spec.popen
    assert shlex.split(spec.python) == words


OWN = ("-p", "xdist", "--gpuenergy-fleet")


@pytest.fixture
def passing(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile("def test_of_somebody_else():\n    pass")
    return pytester


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("k8s:x",), "give ray, *"),
        (("ssh:a", "-n", "2"), "leave out -n and --tx"),
        (("ssh:a", "--tx", "popen"), "leave out -n and --tx"),
        (("ssh:a", "--pdb"), "--pdb"),
        (("ssh:a", "-p", "no:xdist"), "pip install pytest-xdist"),
        (("ssh:a", "--gpu-device", "0"), "--gpu-device 0 names a GPU of one host"),
        (("ssh:a", "--powercap", ""), "names no power cap"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[1:]) or "text",
)
def test_a_contradiction_is_wrong_usage(passing, arguments, said):
    result = passing.runpytest_inprocess(*OWN, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{said}*"])


@pytest.mark.usefixtures("no_ssh")
def test_a_fleet_without_a_usable_gpu_is_refused_with_the_reasons(passing):
    result = passing.runpytest_inprocess(*OWN, "ssh:a,b")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: *ssh:a,b: no GPU of this fleet can be used. a: no route. b: no route."]
    )


def test_an_empty_option_switches_the_ini_file_off(passing):
    passing.makeini("[pytest]\ngpuenergy_fleet = ssh:a,b")
    passing.runpytest_inprocess(*OWN, "").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("option", "shown"),
    [("--collect-only", "*test_of_somebody_else*"), ("--markers", "*energy_budget*")],
)
def test_what_only_shows_something_needs_no_fleet(passing, option, shown):
    result = passing.runpytest_inprocess(*OWN, "ssh:a,b", option)
    assert result.ret == 0
    result.stdout.fnmatch_lines([shown])


def test_a_run_outside_the_project_is_refused(passing):
    inner = passing.mkdir("project")
    (inner / "pytest.ini").write_text("[pytest]\n")
    (inner / "test_it.py").write_text("def test_it():\n    pass\n")
    result = passing.runpytest_inprocess(*OWN, "ssh:a", "project/test_it.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *inside the project: change to {inner}."])


@given(st.text(max_size=400))
def test_anything_becomes_one_printable_line(text):
    reason = failure_reason(text)
    assert bool(reason) == bool(text.strip())
    assert not reason or (reason.isprintable() and reason.endswith((".", "!", "?")))


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("Warning: slow.\nssh: connect to host a port 22: Connection refused\n", "ssh: connect to"),
        ("No ED25519 key is known\nHost key verification failed.\n", "compare the key it shows"),
        ("me@a: Permission denied (publickey,password).\n", "ssh-copy-id"),
        ("ModuleNotFoundError: No module named 'pytest_gpuenergy'\n", "install pytest-gpuenergy"),
        ("/usr/bin/env: \u2018/x\u2019: No such file or directory\n", "give python=PATH"),
        (
            "srun: error: Node failure on node2\nsrun: Job step aborted: Waiting up to 32 seconds "
            "for job step to finish.\n",
            "srun: error: Node failure on node2.",
        ),
        ("Connection closed by 10.0.0.1 port 22\n", "Connection closed by 10.0.0.1 port 22."),
    ],
)
def test_the_reason_is_found_among_what_is_printed(printed, reason):
    assert reason in failure_reason(printed)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "usage: -c [options] [file_or_dir]\n-c: error: unrecognized arguments: --kernels\n"
            "  inifile: /p/pyproject.toml\n  rootdir: /p",
            "unrecognized arguments: --kernels: the project there has another conftest.py than "
            "here: copy it, or give dir=PATH.",
        ),
        ("--gpuenergy-seed: x is no number.\nMore.", "--gpuenergy-seed: x is no number."),
    ],
)
def test_a_usage_error_is_told_without_its_usage(said, reason):
    assert usage_problem(said) == reason
