"""Parses the fleet that ``--gpuenergy-fleet`` of pytest and ``--fleet`` of ``gpuenergy tune`` name.

A fleet is the hosts over which a run is spread, with what is started on them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from pytest_gpuenergy.support import InputError, shortened

FLEET_OPTION = "--gpuenergy-fleet"
MAX_WORKERS = 4096
RAY_WAIT_S, SSH_WAIT_S, SLURM_WAIT_S = 120.0, 60.0, 600.0
"""The default of ``wait=``, the longest time that a worker may take to start.

Ray and Slurm may first have to find a place for it."""

SILENCE_S = 60.0
"""The default of ``silence=``, the time without a sign of its controller after which a worker
ends."""

_MAX_SECONDS = 604_800.0
_RAY = re.compile(r"ray(?:://(?P<address>[A-Za-z0-9_.-]+:[0-9]{1,5}))?")
_HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_][A-Za-z0-9_.-]*")
_COUNT = re.compile(r"x([0-9]{1,9})")
_SECONDS = re.compile(r"[0-9]{1,7}(?:\.[0-9]{1,6})?")
_SETTINGS = ("python", "dir", "wait", "silence")
_FORMS = (
    'give ray, ray://HEAD:10001, ssh:HOST,HOST2 or slurm:"OPTIONS OF SRUN" xN, followed by '
    "python=PATH, dir=PATH, wait=SECONDS or silence=SECONDS if needed"
)


@dataclass(frozen=True)
class FleetSettings:
    """The settings that all hosts of a fleet share.

    Attributes:
        python: The path of the interpreter on the hosts; None for the path of this one or, with
            Ray, for the node's own.
        directory: The path of the project on the hosts; None for the path here or, with Ray, for a
            copy that Ray sends.
        wait_s: The longest time that a worker may take to start; None for the default of this kind
            of fleet.
        silence_s: The time after which a worker without a sign of its controller ends.
    """

    python: str | None = None
    directory: str | None = None
    wait_s: float | None = None
    silence_s: float = SILENCE_S

    def __str__(self) -> str:
        silence_s = None if self.silence_s == SILENCE_S else self.silence_s
        times = (
            None if seconds is None else f"{seconds:.6f}".rstrip("0").rstrip(".")
            for seconds in (self.wait_s, silence_s)
        )
        values = zip(_SETTINGS, (self.python, self.directory, *times), strict=True)
        return "".join(f" {name}={shlex.quote(value)}" for name, value in values if value)


@dataclass(frozen=True)
class RayFleet:
    """The GPUs of a Ray cluster.

    ``address`` is that of Ray's client server, such as ``HEAD:10001``; None: the cluster to which
    this machine belongs.
    """

    settings: FleetSettings = FleetSettings()
    address: str | None = None

    def __str__(self) -> str:
        return f"ray{f'://{self.address}' if self.address else ''}{self.settings}"

    @property
    def wait_s(self) -> float:
        """The longest time that a worker may take to start."""
        return self.settings.wait_s or RAY_WAIT_S


@dataclass(frozen=True)
class SshHost:
    """A host as ssh knows it, and the project's path there if it has one of its own."""

    name: str
    directory: str | None = None


@dataclass(frozen=True)
class SshFleet:
    """Hosts that ssh reaches without asking for anything."""

    hosts: tuple[SshHost, ...]
    settings: FleetSettings = FleetSettings()

    def __str__(self) -> str:
        hosts = ",".join(
            host.name if host.directory is None else f"{host.name}:{host.directory}"
            for host in self.hosts
        )
        return f"{shlex.quote(f'ssh:{hosts}')}{self.settings}"

    @property
    def wait_s(self) -> float:
        """The longest time that a worker may take to start."""
        return self.settings.wait_s or SSH_WAIT_S


@dataclass(frozen=True)
class SlurmFleet:
    """``count`` tasks that ``srun`` starts, with these options, each with a GPU."""

    options: tuple[str, ...]
    count: int = 1
    settings: FleetSettings = FleetSettings()

    def __str__(self) -> str:
        options = shlex.quote(shlex.join(self.options)) if self.options else ""
        return f"slurm:{options} x{self.count}{self.settings}"

    @property
    def wait_s(self) -> float:
        """The longest time that a worker may take to start."""
        return self.settings.wait_s or SLURM_WAIT_S


Fleet = RayFleet | SshFleet | SlurmFleet


def parse_fleet(text: str, option: str = FLEET_OPTION) -> Fleet:
    """Return the fleet that ``text`` names; parsing its ``str`` returns an equal one.

    Words are separated by blanks and quoted as for a shell.

    Args:
        text: The value of the option.
        option: The name of the option, for messages.

    Raises:
        InputError: The text is not understood.
    """
    try:
        return _parse_clause(text)
    except InputError as error:
        raise InputError(f"{option} {_short(text)}: {error}.") from None


def _parse_clause(text: str) -> Fleet:
    """Return what `parse_fleet` does; an error has only the clause with the reason."""
    try:
        first, *words = shlex.split(text)
    except ValueError:
        raise InputError(f"it is empty, or a quotation is not closed: {_FORMS}") from None
    if unprintable := next((c for c in text if not c.isprintable()), None):
        raise InputError(f"it contains {unprintable!r}, which no name has: {_FORMS}")
    kind, colon, rest = first.partition(":")
    if kind == "ray":
        match = _RAY.fullmatch(first)
        if match is None:
            raise InputError(
                "give ray for the cluster to which this machine belongs, or ray://HEAD:10001"
            )
        address = match["address"]
        if address is not None and not 0 < int(address.rpartition(":")[2]) < 1 << 16:
            raise InputError("a port is a number from 1 to 65535")
        return RayFleet(_settings(words), address)
    if kind == "ssh" and colon:
        return _ssh(rest, words)
    if kind == "slurm":
        return _slurm(rest, words)
    raise InputError(_FORMS)


def _ssh(rest: str, words: Sequence[str]) -> SshFleet:
    hosts = []
    for word in rest.split(","):
        name, colon, directory = word.partition(":")
        if not _HOST.fullmatch(name):
            raise InputError(
                f"{_short(name)} is not the name of a host: give ssh:HOST,HOST2, each as "
                "[USER@]HOST or [USER@]HOST:/PATH, and ports and keys in ~/.ssh/config"
            )
        hosts.append(SshHost(name, _path(directory) if colon else None))
    names = [host.name for host in hosts]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{_short(twice)} is named twice: name each host once")
    return SshFleet(tuple(hosts), _settings(words))


def _slurm(rest: str, words: Sequence[str]) -> SlurmFleet:
    try:
        options = shlex.split(rest)
    except ValueError:
        raise InputError("a quotation among the options of srun is not closed") from None
    rest_of_words = list(words)
    settings = []
    count = None
    while rest_of_words:
        word = rest_of_words[-1]
        if word.partition("=")[0] in _SETTINGS and "=" in word:
            settings.append(word)
        elif count is None and (match := _COUNT.fullmatch(word)):
            count = int(match[1])
        else:
            break
        rest_of_words.pop()
    options += rest_of_words  # srun's options without their quotes, as from an ini file
    if options and not options[0].startswith("-"):
        raise InputError(
            f"{_short(options[0])} is not an option of srun: give "
            'slurm:"--partition gpu --gpus-per-task 1" x8'
        )
    count = 1 if count is None else count
    if not 1 <= count <= MAX_WORKERS:
        raise InputError(f"x{count} asks for {count} workers: choose x1 to x{MAX_WORKERS}")
    return SlurmFleet(tuple(options), count, _settings(settings))


def _settings(words: Sequence[str]) -> FleetSettings:
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in _SETTINGS or not equals:
            raise InputError(f"{_short(word)} is not understood: {_FORMS}")
        if name in values:
            raise InputError(f"{name}= is given twice: give it once")
        values[name] = value
    python = values.get("python")
    if python is not None and (
        not python or python.startswith("-") or any(c.isspace() for c in python)
    ):
        raise InputError(
            f"python={_short(python)} is not an interpreter: give its path, such as "
            "/opt/venv/bin/python"
        )
    return FleetSettings(
        python,
        _path(values["dir"]) if "dir" in values else None,
        _seconds("wait", values["wait"]) if "wait" in values else None,
        _seconds("silence", values["silence"]) if "silence" in values else SILENCE_S,
    )


def _path(value: str) -> str:
    if not PurePosixPath(value).is_absolute():
        raise InputError(
            f"{_short(value)} is not a path that begins with /: give the project's path there"
        )
    return value


def _seconds(name: str, value: str) -> float:
    seconds = float(value) if _SECONDS.fullmatch(value) else 0.0
    if not 0 < seconds <= _MAX_SECONDS:
        raise InputError(
            f"{name}={_short(value)} is not a number of seconds above 0, up to {_MAX_SECONDS:g}"
        )
    return seconds


def _short(word: str) -> str:
    return repr(shortened(word, 60))
