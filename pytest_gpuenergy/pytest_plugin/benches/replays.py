"""The options and fixtures of the bench of language models, `bench_items.test_replay`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path

import pytest

from pytest_gpuenergy import devices, engine, record, replay
from pytest_gpuenergy.pytest_plugin.outputs import collection_error
from pytest_gpuenergy.support import GpuEnergyError, InputError, emulated_mark, is_file, nearest

PROFILES = Path("bench", "profiles")
_PREFILL, _DECODE = "prefill", "decode"


@dataclass(frozen=True, eq=False)
class BenchProfile:
    """A profile of a model, and the calls of its prefill and of the decode step to replay."""

    folder: Path
    profile: replay.ProfileRecord
    calls: tuple[replay.UniqueCall, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True)
class ReplayItem:
    """The part of a model that one item replays.

    Attributes:
        source: the profile of the model.
        key: the key of the call, layer or step in the plan.
        name: the name of the item.
        step: the number of the whole step; None for calls and layers.
    """

    source: BenchProfile
    key: str
    name: str
    step: int | None = None


@dataclass(frozen=True)
class Bound:
    """The most energy that one of a step's tokens may take, in joules."""

    joules: float
    tokens: int
    emulated: bool

    def exceeded_by(self, found: record.Measurement) -> str | None:
        """Return a sentence if the whole interval of the energy is above the bound."""
        ends = found.energy_mj_ci95
        if found.energy_mj is None or ends is None or ends.low / 1e3 / self.tokens <= self.joules:
            return None
        return (
            f"{found.workload.name} takes {found.energy_mj / 1e3 / self.tokens:.4g} J per token"
            f"{emulated_mark(self.emulated)}, more than the {self.joules:g} J of "
            "--joules-per-token."
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the bench."""
    group = parser.getgroup("bench", "this repository's benches")
    group.addoption(
        "--model",
        metavar="LIST",
        help=f"Folders written by gpuenergy profile, or names of such folders in {PROFILES} "
        "(default: all of these)",
    )
    group.addoption(
        "--decode-step",
        metavar="N",
        default="1",
        help="The decode step to replay, besides the prefill (default: 1)",
    )
    group.addoption(
        "--joules-per-token",
        metavar="LIST",
        help="Fail the whole prefill or decode step if it takes more, such as "
        "prefill:0.005,decode:0.4",
    )


@dataclass
class _Unreplayable:
    """Why no item of a profile can be measured, and whether an item has told so."""

    reason: str
    is_told: bool = False


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize ``replayable``."""
    if "replayable" not in metafunc.fixturenames:
        return
    try:
        _bounds(metafunc.config)  # reports a mistake now
        found = [item for profile in profiles(metafunc.config) for item in _replay_items(profile)]
    except GpuEnergyError as error:
        raise collection_error(metafunc.config, error) from None
    names = [item.name for item in found]
    metafunc.parametrize("replayable", found, ids=names, indirect=True)


@pytest.fixture
def joules_per_token(request: pytest.FixtureRequest, gpu: devices.Device) -> Bound | None:
    """The bound on this item's energy, if it is a whole step with a bound."""
    item: ReplayItem = request.node.callspec.params["replayable"]
    most = _bounds(request.config).get(_DECODE if item.step else _PREFILL)
    if item.step is None or most is None:
        return None
    tokens = item.source.profile.tokens(item.step)
    return None if tokens is None else Bound(most, tokens, gpu.emulated)


@pytest.fixture(scope="session")
def replay_plans(gpu: devices.Device) -> object:
    """A function that returns the plan of a profile, or why there is none; it makes each once."""

    @cache
    def plan(source: BenchProfile) -> replay.ReplayPlan | _Unreplayable:
        try:
            return replay.choose_planner(gpu, source.folder, "model")(
                source.profile, source.calls, source.calls, source.steps, lambda: None
            )
        except GpuEnergyError as error:
            return _Unreplayable(str(error))

    return plan


@pytest.fixture
def replayable(request: pytest.FixtureRequest, replay_plans: object) -> engine.Replayable:
    """The call, layer or step that the item measures; skips the item if it cannot be replayed."""
    item: ReplayItem = request.param
    assert callable(replay_plans)
    plan: replay.ReplayPlan | _Unreplayable = replay_plans(item.source)
    if isinstance(plan, _Unreplayable):
        if plan.is_told:  # a hundred items need not say the same
            pytest.skip(f"{item.source.folder} cannot be replayed, as the first item says")
        plan.is_told = True
        pytest.fail(plan.reason, pytrace=False)
    for part in (*plan.steps, *plan.calls):
        if part.key == item.key:
            return part
    pytest.skip(plan.missing.get(item.key, "it is not part of the model now"))


def profiles(config: pytest.Config) -> list[BenchProfile]:
    """Return the profiles of ``--model``, or all bundled ones."""
    text = str(config.getoption("--decode-step"))
    step = int(text) if text.isdecimal() else 0
    if not 0 < step < 1 << 20:
        raise InputError(f"--decode-step {text!r} is not a number above zero.")
    found = []
    for folder in _folders(config):
        profile = replay.read_profile(folder)
        if replay.rank_folders(folder):
            raise InputError(
                f"{folder} is the profile of a model on {profile.ranks} GPUs, which an item cannot "
                f"hold: replay it with gpuenergy replay {folder}."
            )
        steps = profile.steps(step)
        calls = [call for call in replay.read_calls(folder) if call.is_in(steps)]
        found.append(BenchProfile(folder, profile, tuple(calls), steps))
    return found


def _folders(config: pytest.Config) -> list[Path]:
    bundled = nearest(config.rootpath, PROFILES) or config.rootpath / PROFILES
    given = config.getoption("--model")
    if given is None:
        if found := sorted(path.parent for path in bundled.glob("*/profile.json")):
            return found
        raise InputError(
            f"{bundled} has no profile: name a folder that gpuenergy profile has written with "
            "--model."
        )
    found = []
    words = [word.strip() for word in str(given).split(",") if word.strip()]
    if not words:
        raise InputError("--model is empty: name a folder that gpuenergy profile has written.")
    for word in words:
        places = (config.invocation_params.dir / word, bundled / word)
        folders = [place for place in places if is_file(place / "profile.json")]
        if not folders:
            raise InputError(
                f"--model {word}: neither {places[0]} nor {places[1]} is a folder that gpuenergy "
                f"profile has written: gpuenergy profile {word} --out {word} writes one."
            )
        found.append(folders[0])
    return found


def _replay_items(source: BenchProfile) -> list[ReplayItem]:
    name = replay.model_name(source.profile)
    found = []
    for step in source.steps:
        words = replay.step_workload(source.profile, step)
        for level in (replay.GRAPH, replay.EAGER, replay.LAYERS):
            whole = None if level == replay.LAYERS else step
            found.append(
                ReplayItem(source, replay.step_key(step, level), f"{words}-{level}", whole)
            )
    return [*found, *(ReplayItem(source, call.id, f"{name}-{call.id}") for call in source.calls)]


def _bounds(config: pytest.Config) -> dict[str, float]:
    text = config.getoption("--joules-per-token")
    found: dict[str, float] = {}
    for word in str(text).split(",") if text is not None else ():
        phase, _, number = word.strip().partition(":")
        try:
            joules = float(number)
        except ValueError:
            joules = inf
        if phase not in (_PREFILL, _DECODE) or not 0 < joules < inf:
            raise InputError(
                f"--joules-per-token {text!r} is not understood: write joules above zero, such as "
                "prefill:0.005,decode:0.4."
            )
        found[phase] = joules
    return found
