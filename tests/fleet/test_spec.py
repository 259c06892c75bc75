"""``--gpuenergy-fleet``: what is understood, and what is refused in a sentence."""

from __future__ import annotations

import shlex

import execnet
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.fleet import (
    MOST_WORKERS,
    Fleet,
    FleetSettings,
    RayFleet,
    SlurmFleet,
    SshFleet,
    SshHost,
    parse_fleet,
    tx_spec,
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
    st.builds(SlurmFleet, OPTIONS, st.integers(1, MOST_WORKERS), SETTINGS),
)


@given(FLEETS)
def test_a_fleet_is_read_from_what_it_is_written_as(fleet: Fleet) -> None:
    assert parse_fleet(str(fleet)) == fleet


@given(st.sampled_from(["", "ray", "ssh:", "ssh:a ", "slurm:"]), PRINTABLE | st.text(max_size=9))
def test_any_other_text_is_refused_in_a_sentence(begin: str, rest: str) -> None:
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
def test_the_forms_of_the_documentation_are_understood(text: str, fleet: Fleet) -> None:
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
def test_a_mistake_is_named(text: str, said: str) -> None:
    with pytest.raises(InputError, match="--gpuenergy-fleet") as refused:
        parse_fleet(text)
    assert said in str(refused.value)


@given(st.lists(PRINTABLE | SPACED, min_size=1))
def test_execnet_starts_the_words_that_a_specification_was_made_of(words: list[str]) -> None:
    spec = execnet.XSpec(tx_spec(words))
    assert spec.popen
    assert shlex.split(spec.python) == words
