"""Builds the commands that start an interpreter on a host, and explains why one has failed.

execnet splits the ``python=`` of a specification as a shell does, and starts these words, followed
by ``-c`` and a line of Python, which reads from its input what to run.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence

from pytest_gpuenergy.devices import WRITES_VARIABLE
from pytest_gpuenergy.fleet.spec import RayFleet, SlurmFleet, SshFleet, SshHost
from pytest_gpuenergy.support import FLEET_GPU, printable, shortened

BOOTSTRAP = "import sys;exec(eval(sys.stdin.readline()))"
"""The line that an interpreter runs: it reads a line of Python, as a literal, and executes it."""

_SSH_OPTIONS = (
    *("-o", "BatchMode=yes"),  # never asks for a password
    *("-o", "ConnectTimeout=20"),
    *("-o", "ServerAliveInterval=15"),
    *("-o", "ServerAliveCountMax=4"),
)
_SECOND_SLASH = re.compile("/(?=/)")


def tx_spec(command: Sequence[str]) -> str:
    """Return the value of ``--tx`` for an interpreter that ``command`` starts.

    Quotes separate double slashes, because execnet ends a key's value at two slashes.
    """
    line = _SECOND_SLASH.sub("/''", shlex.join(command))
    return f"popen//python={line}"


def ssh_probe(fleet: SshFleet, host: SshHost, device: str, project: str) -> list[str]:
    """Return the command that probes a host."""
    python = fleet.settings.python or sys.executable
    return _ssh(fleet, host, project, [*_environment(), python, *_probe(device)])


def ssh_worker(fleet: SshFleet, host: SshHost, gpu: int, project: str) -> list[str]:
    """Return the command that starts an interpreter for a GPU of a host.

    ssh passes all its words to a shell of that host as a single line, unquoted. So that line
    already has the interpreter's arguments, and turns what execnet appends into a comment.
    """
    python = fleet.settings.python or sys.executable
    return _ssh(fleet, host, project, [*_environment(gpu), python], f'-u -c "{BOOTSTRAP}"')


def srun_probe(fleet: SlurmFleet, device: str, project: str) -> list[str]:
    """Return the command that probes the hosts of all tasks."""
    python = fleet.settings.python or sys.executable
    return [*_srun(fleet, fleet.count, project), *_environment(), python, *_probe(device)]


def srun_worker(fleet: SlurmFleet, project: str) -> list[str]:
    """Return the command that starts an interpreter in a task of its own, which has one GPU."""
    python = fleet.settings.python or sys.executable
    # Otherwise srun holds output back until a line ends, and execnet writes no lines.
    command = [*_srun(fleet, 1, project), "--unbuffered"]
    return [*command, *_environment(0), python]


def ray_worker(
    fleet: RayFleet, device: str, project: str, node: str, avoid: Sequence[str] = ()
) -> list[str]:
    """Return the command that has Ray place an actor with an interpreter.

    Args:
        fleet: The cluster.
        device: The value of ``--gpu-device``.
        project: The path of the project here.
        node: The node to place it on, if possible.
        avoid: The GPUs that cannot be used, each as ``NODE:NUMBER``.
    """
    words = [sys.executable, "-m", "pytest_gpuenergy.fleet.ray_gateway", *ray_words(fleet, project)]
    words += ["--device", device, "--node", node]
    words += ["--avoid", ",".join(avoid)] if avoid else []
    return [*words, "--"]


def ray_probe(fleet: RayFleet, device: str, project: str) -> list[str]:
    """Return the command that probes all nodes of a Ray cluster."""
    words = [sys.executable, "-m", "pytest_gpuenergy.fleet.ray_probe", *ray_words(fleet, project)]
    return [*words, "--device", device]


def ray_words(fleet: RayFleet, project: str) -> list[str]:
    """Return the arguments with the cluster, and the project here or its path on the nodes."""
    remote_dir = fleet.settings.directory
    words = ["--remote-dir", remote_dir] if remote_dir else ["--project", project]
    words += ["--address", fleet.address] if fleet.address else []
    return words + (["--python", fleet.settings.python] if fleet.settings.python else [])


def local_worker(gpu: int) -> list[str]:
    """Return the command that starts an interpreter for a GPU of this host."""
    return [*_environment(gpu), sys.executable]


def package_environment() -> dict[str, str]:
    """Return an environment for interpreters of this host in which this package can be imported."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if package not in paths:
        paths.append(package)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def remote_project(fleet: SshFleet | SlurmFleet, host: SshHost | None, project: str) -> str:
    """Return the project's path on a host."""
    own = host.directory if host else None
    return own or fleet.settings.directory or project


def remote_environment(gpu: int | None = None) -> dict[str, str]:
    """Return the variables of an interpreter elsewhere; a ban on writes here also holds there."""
    variables = {} if gpu is None else {FLEET_GPU: str(gpu)}
    denied = os.environ.get(WRITES_VARIABLE)
    return {**variables, **({WRITES_VARIABLE: denied} if denied else {})}


def _environment(gpu: int | None = None) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in remote_environment(gpu).items())]


def _probe(device: str) -> list[str]:
    return ["-m", "pytest_gpuenergy.fleet.probe", device]


def _ssh(
    fleet: SshFleet, host: SshHost, project: str, command: Sequence[str], rest: str = ""
) -> list[str]:
    folder = remote_project(fleet, host, project)
    python = fleet.settings.python or sys.executable
    checks = (
        (
            f"cd {shlex.quote(folder)}",
            f"{folder} cannot be entered: copy the project there, or give dir=PATH",
        ),
        (f"command -v {shlex.quote(python)} > /dev/null", f"there is no interpreter {python}"),
    )
    steps = [f"{do} || {{ echo {shlex.quote(why)} >&2; exit 1; }}" for do, why in checks]
    # In sh, because a user's login shell may be any.
    script = "; ".join([*steps, f"exec {shlex.join(command)} {rest}".rstrip()])
    return ["ssh", *_SSH_OPTIONS, host.name, f"exec sh -c {shlex.quote(script)}{' #' * bool(rest)}"]


def _srun(fleet: SlurmFleet, tasks: int, project: str) -> list[str]:
    folder = remote_project(fleet, None, project)
    return ["srun", *fleet.options, f"--ntasks={tasks}", f"--chdir={folder}"]


_LATER = re.compile(
    r"srun: (Job step aborted|forcing job|got SIG|interrupt)|Connection closed|"
    r"kex_exchange_identification"
)
"""The lines that only follow from an error."""

_ERROR = re.compile("error|fail|denied|refused|not found|cannot|no such", re.IGNORECASE)

_ADVICE = (
    (
        "Host key verification failed",
        "connect once with ssh and compare the key it shows, or correct ~/.ssh/known_hosts",
    ),
    (
        r"Permission denied \(",
        "it must be reached without a password: give it a key, such as with ssh-copy-id",
    ),
    (
        "No module named '?pytest_gpuenergy",
        "install pytest-gpuenergy there, or give python=PATH of an interpreter that has it",
    ),
    (
        r"\benv: .*(No such file|Permission denied)|there is no interpreter",
        "give python=PATH of the interpreter there",
    ),
    (
        "unrecognized arguments",
        "the project there has another conftest.py than here: copy it, or give dir=PATH",
    ),
    ("Invalid partition|Requested node configuration", "see sinfo"),
)


def failure_reason(text: str) -> str:
    """Return why a program failed, as a sentence, from what it printed; empty without any output.

    The reason is the last line, or the error before lines that only follow from it. Advice is added
    where there is some.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    last = lines[-1]
    if _LATER.match(last):
        errors = (
            line for line in reversed(lines) if _ERROR.search(line) and not _LATER.match(line)
        )
        last = next(errors, last)
    reason = shortened(printable(last), 300)
    advice = next((what for pattern, what in _ADVICE if re.search(pattern, last)), None)
    if advice is not None:
        return f"{reason.rstrip('.')}: {advice}."
    return reason if reason.endswith((".", "!", "?")) else f"{reason}."


def usage_problem(text: str) -> str:
    """Return a usage error of pytest as a sentence, without its lines about usage and files."""
    lines = [line.partition(": error: ")[2] for line in text.splitlines() if ": error: " in line]
    return failure_reason(lines[0] if lines else text.partition("\n")[0])
