"""A connection to a Ray cluster; everything that Ray prints or raises becomes one sentence."""

from __future__ import annotations

import argparse
import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_gpuenergy.support import DeviceError, needs, printable, shortened

PROJECT_VARIABLE = "GPUENERGY_FLEET_PROJECT"
"""Name of the project that Ray sends to its nodes."""

_LEFT_HERE = (".git", ".gpuenergy", ".venv", "venv", "**/__pycache__", ".tox", ".hypothesis")
"""What the nodes do not need, besides what ``.gitignore`` names."""

_NO_CLUSTER = re.compile("could not find any running ray instance|No such file", re.IGNORECASE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `commands.ray_words` gives."""
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--project", help="Path of the project here, which Ray sends to the nodes")
    place.add_argument("--there", help="Path of the project on the nodes")
    parser.add_argument("--address", help="Of Ray's client server; default: this machine's cluster")
    parser.add_argument("--python", help="Path of the interpreter on the nodes")
    parser.add_argument("--device", required=True, help="As --gpu-device")


@contextmanager
def connected(address: str | None, project: str | None) -> Iterator[Any]:
    """The module `ray`, connected to a cluster; ``project`` is sent to the nodes.

    Raises:
        DeviceError: Ray is not installed, or there is no such cluster.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    warnings.simplefilter("ignore")
    try:
        import ray
    except ImportError as error:
        advice = "pip install 'pytest-gpuenergy[ray]', in the version that the cluster has"
        raise DeviceError(needs("A cluster of Ray's", "ray", advice, error)) from None
    runtime: dict[str, Any] = {}
    if project is not None:
        runtime = {
            "working_dir": project,
            "excludes": list(_LEFT_HERE),
            "env_vars": {PROJECT_VARIABLE: Path(project).name},
        }
    try:
        ray.init(
            address=f"ray://{address}" if address else "auto",
            namespace="gpuenergy",
            runtime_env=runtime,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:  # of many kinds, as Ray's documentation says of its client
        raise DeviceError(_no_cluster(address, error)) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def last_sentence(error: BaseException) -> str:
    """What an error of Ray's says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = shortened(printable(lines[-1] if lines else type(error).__name__), 300)
    return said if said.endswith(".") else f"{said}."


def _no_cluster(address: str | None, error: Exception) -> str:
    if address is None and _NO_CLUSTER.search(str(error)):
        return (
            "No Ray cluster is running here: start one with ray start --head, set RAY_ADDRESS, or "
            "name one with ray://HEAD:10001."
        )
    what = f"The Ray cluster ray://{address}" if address else "The Ray cluster of this machine"
    return f"{what} cannot be used: {shortened(printable(' '.join(str(error).split())), 400)}"
