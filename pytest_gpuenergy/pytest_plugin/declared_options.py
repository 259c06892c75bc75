"""Declares what pytest and other plugins see: options, fixtures, markers, a hook.

Every pytest run imports this module, even in projects that never measure anything, so it needs only
the standard library and pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_gpuenergy.pytest_plugin._compat import ini_value

if TYPE_CHECKING:
    from pytest_gpuenergy.record import Measurement

DEVICE_FIXTURE = "_gpuenergy_device"
POWERCAP_FIXTURE = "_gpuenergy_powercap"
"""Fixtures beneath ours: a project's own ``gpu`` or ``powercap`` is never mistaken for ours."""

RUN = "gpuenergy-run"
"""Name of the plugin that measures in a pytest process, a `RunPlugin`, once it is loaded."""

EDP_MARKER, ENERGY_MARKER = BUDGET_MARKERS = ("edp_budget", "energy_budget")

FIGURES = "gpuenergy"
"""The JUnit property with an item's figures as text."""

GROUP, BENCH = "gpuenergy", "bench"
"""Groups of options: those of this plugin, and those of this repository's benches."""

MAX_SEED = (1 << 32) - 1
"""The largest ``--gpuenergy-seed``, which NumPy's generators take as 32 bits."""

AUTO = "auto"
_TIMEOUT_S, _LOCK_WAIT_S, _ANCHOR_S = 60.0, 10.0, 300.0
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_TEXTS = ("PATH", "DIR", "BASELINE", "FLEET")
"""Placeholders of options whose value cannot be a number."""
_ONLY_SHOW = (
    *("collectonly", "help", "version", "markers"),
    *("showfixtures", "show_fixtures_per_test", "cacheshow"),
)
"""Options of pytest's with which it runs no items."""


class Hooks:
    """The hook that a project's ``conftest.py`` may implement."""

    @pytest.hookspec  # which has no body, whatever it returns
    def pytest_gpuenergy_deselected(self, config: pytest.Config, measurement: Measurement) -> bool:  # type: ignore[empty-body]
        """Report whether an option of the project leaves out a kernel that the baseline has.

        It is called for kernels of the baseline that the run did not collect, such as those that an
        option ``--kernels`` left out of the parameters of a test. Without it, they are missing.
        """


class PytestOption(NamedTuple):
    """A command-line option and the ini option of the same name.

    Attributes:
        name: the option with its two dashes.
        help: text for ``--help``; starts with a capital letter and ends without a period.
        metavar: placeholder for its value.
        default: default of the ini option.
        flag: whether it takes no value.
        append: whether it may be repeated.
    """

    name: str
    help: str
    metavar: str | None = None
    default: str = ""
    flag: bool = False
    append: bool = False

    @property
    def key(self) -> str:
        """The option's name in pytest's configuration and in the ini file."""
        return self.name.lstrip("-").replace("-", "_")

    def given(self, config: pytest.Config) -> Any:
        """Return the value on the command line, or None."""
        return config.getoption(self.key)

    def value(self, config: pytest.Config) -> Any:
        """Return the value on the command line, or else that in the ini file.

        Both this and the methods below raise `pytest.UsageError` if the ini option has another
        type.
        """
        given = self.given(config)
        return self.stated(config) if given is None else given

    def text(self, config: pytest.Config) -> str | None:
        """Return the value as text, or None if neither command line nor ini file sets it.

        Raises:
            pytest.UsageError: the ini option is of a type that the option does not take.
        """
        given = self.given(config)
        return (str(self.stated(config)) or None) if given is None else str(given)

    def is_set(self, config: pytest.Config) -> bool:
        """Return whether the command line or the ini file sets it."""
        return self.given(config) is not None or self.stated(config) != self._ini_default

    def stated(self, config: pytest.Config) -> str | bool:
        """Return the ini option's value: a number as its text, a list joined by commas."""
        value = ini_value(config, self.key)
        if value is None:
            return self._ini_default
        if self.flag:
            text = str(value).strip().lower()
            if not isinstance(value, list) and text in (*_TRUE, *_FALSE):
                return text in _TRUE
            advice = "true or false"
        else:
            may_be_list = self.append or self.metavar == "LIST"
            parts = value if isinstance(value, list) and may_be_list else [value]
            types = (str,) if self.metavar in _TEXTS else (str, int, float)
            if all(isinstance(part, types) and not isinstance(part, bool) for part in parts):
                text = ",".join(map(str, parts))
                return ",".join(text.split("\n")).strip(",") if "\n" in text else text
            advice = "a string" if self.metavar in _TEXTS else "a string or a number"
            if may_be_list:
                advice += ", or a list of these"
        raise pytest.UsageError(f"{self.key} in {config.inipath} is {value!r:.80}: give {advice}.")

    def add(self, parser: pytest.Parser, group: pytest.OptionGroup) -> None:
        """Register it with pytest."""
        keywords: dict[str, Any] = {} if self.metavar is None else {"metavar": self.metavar}
        if self.flag or self.append:
            keywords["action"] = "store_true" if self.flag else "append"
        group.addoption(self.name, default=None, help=self.help.replace("%", "%%"), **keywords)
        kind: Any = "bool" if self.flag else "string"
        parser.addini(self.key, self.help, type=kind, default=self._ini_default)

    @property
    def _ini_default(self) -> str | bool:
        return False if self.flag else self.default


DEVICE = PytestOption(
    "--gpu-device",
    "Where kernels run: auto (the first NVIDIA GPU, else emulated; the default), an index, a "
    "UUID, or emulated[:PROFILE][xN]. With pytest-xdist, -n auto then gives each GPU a worker",
    metavar="DEVICE",
)
FLEET = PytestOption(
    "--gpuenergy-fleet",
    "Spread the run over the GPUs of many hosts: ray, ray://HEAD:10001, ssh:HOST,HOST2, or "
    'slurm:"OPTIONS OF SRUN" xN',
    metavar="FLEET",
)
POWERCAP = PytestOption(
    "--powercap",
    "Power caps to measure under, comma-separated: 1 to 5 (index into the GPU's table, "
    "1 = lowest), watts such as 300W, all, or current (leave the card as it is). Default: "
    "current on a real GPU, all on the emulated one",
    metavar="LIST",
)
SMCLOCK = PytestOption(
    "--smclock",
    "Clocks to lock the SMs to, each with each power cap, comma-separated: megahertz such as "
    "1500MHz, all (five even steps of what the card supports), or current (leave them as they "
    "are; the default)",
    metavar="LIST",
)
STRICT_POWERCAP = PytestOption(
    "--strict-powercap",
    "Fail items whose power cap or clock cannot be set, instead of skipping them",
    flag=True,
)
JSON = PytestOption("--gpuenergy-json", "Write the report to this file as JSON", metavar="PATH")
CSV = PytestOption("--gpuenergy-csv", "Write the classic CSV tree to this folder", metavar="DIR")
HTML = PytestOption(
    "--gpuenergy-html",
    "Write the report to this file as a self-contained HTML page",
    metavar="PATH",
)
SORT = PytestOption(
    "--gpuenergy-sort",
    "Sort the tables of the summary by rank, name, time, energy, edp, power, gflops or "
    "gflops_per_w, the best first (default: rank)",
    metavar="KEY",
    default="rank",
)
DURATIONS = PytestOption(
    "--gpuenergy-durations",
    "Show where the wall time was spent: compiling, verifying, loading, heating up, measuring",
    flag=True,
)
RESUME = PytestOption(
    "--gpuenergy-resume",
    "Continue the last run: skip items that were measured without a flag",
    flag=True,
)
TIMEOUT = PytestOption(
    "--gpuenergy-timeout",
    f"Seconds after which a kernel counts as hung (default: {_TIMEOUT_S:g})",
    metavar="S",
    default=f"{_TIMEOUT_S:g}",
)
LOCK_WAIT = PytestOption(
    "--gpuenergy-lock-wait",
    "Seconds to wait for a GPU that another run is using, before giving up (default: "
    f"{_LOCK_WAIT_S:g})",
    metavar="S",
    default=f"{_LOCK_WAIT_S:g}",
)
CACHE = PytestOption(
    "--gpuenergy-cache",
    "State of the L2 cache at each launch: hot (launches share their buffers; the default) or "
    "cold (buffers rotate through more than the L2)",
    metavar="STATE",
    default="hot",
)
ORDER = PytestOption(
    "--gpuenergy-order",
    "Order of items with several power caps or kernels: interleaved (spreads the warming of "
    "the card evenly over both; the default) or file (as written)",
    metavar="ORDER",
    default="interleaved",
)
PREHEAT = PytestOption(
    "--gpuenergy-preheat",
    "Most seconds to heat the card up before the first measurement, and again after a pause, "
    "until its temperature has settled; 0 for none (default: auto, which is 5 for each item, "
    "and at most 30)",
    metavar="S",
    default=AUTO,
)
ANCHOR = PytestOption(
    "--gpuenergy-anchor",
    "Seconds between measurements of an anchor kernel, by which long runs detect and flag "
    f"drift; 0 disables them (default: {_ANCHOR_S:g})",
    metavar="S",
    default=f"{_ANCHOR_S:g}",
)
BOARDS = PytestOption(
    "--gpuenergy-boards",
    "Whether each GPU first measures two kernels of ours under each power cap, by which "
    "boards are compared: auto (in runs on several GPUs; the default), always or never",
    metavar="WHEN",
    default=AUTO,
)
SEED = PytestOption(
    "--gpuenergy-seed",
    "Seed of the last inputs on which kernels are verified, to repeat what a record or a "
    "message names (default: one that is drawn on this machine)",
    metavar="N",
)
EXPORT = PytestOption(
    "--gpuenergy-export",
    "Write verified kernels and their inputs to this folder, and measure nothing",
    metavar="DIR",
)
VERIFY_ONLY = PytestOption(
    "--gpuenergy-verify-only",
    "Verify kernels and measure nothing, as on a CI machine without a GPU: an item passes when "
    "its kernel is correct, its budgets and the baseline are not judged, and no power limit is "
    "set",
    flag=True,
)
COMPARE = PytestOption(
    "--gpuenergy-compare",
    "Compare the measurements with this run: a JSON report, a run folder or a run id",
    metavar="BASELINE",
)
FAIL = PytestOption(
    "--gpuenergy-fail",
    "Fail items whose time, energy or edp is worse than the baseline's by more than this, such "
    "as edp:5%; may be repeated (default: judge all three at 5%, fail none)",
    metavar="METRIC:PERCENT",
    append=True,
)
STRICT = PytestOption(
    "--gpuenergy-strict",
    "Also fail items whose verdict is AMBIGUOUS or that are missing from the baseline, and the "
    "run if it lacks what the baseline has and the command line did not deselect",
    flag=True,
)
SESSION_SD = PytestOption(
    "--gpuenergy-session-sd",
    "Standard deviation of a figure between sessions (default, on the same board: "
    "time:0.17%,energy:0.44%,edp:0.54%)",
    metavar="LIST",
)
ALLOW = PytestOption(
    "--gpuenergy-allow",
    "Differences from the baseline to accept, which otherwise put every verdict in doubt: "
    "board, driver; and clocks, to lock those of a card that somebody else seems to have "
    "locked, which are unlocked afterwards",
    metavar="LIST",
)

OPTIONS = tuple(value for value in [*globals().values()] if isinstance(value, PytestOption))

WITH_VALUES = {option.name for option in OPTIONS if not option.flag}
"""The options that take a value, as they are written."""


def add_options(parser: pytest.Parser) -> None:
    """Add the options of group ``gpuenergy``, each with an ini option of the same name."""
    group = parser.getgroup(GROUP, "energy of GPU kernels")
    for option in OPTIONS:
        option.add(parser, group)


def any_option_is_set(config: pytest.Config) -> bool:
    """Return whether the command line or the ini file sets one of our options."""
    return any(option.is_set(config) for option in OPTIONS)


def runs_items(config: pytest.Config) -> bool:
    """Return whether pytest will run items, rather than only show something."""
    return not any(getattr(config.option, name, None) for name in _ONLY_SHOW)
