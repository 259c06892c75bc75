"""Connects to a Ray cluster, and declares the options that name one."""

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
"""The environment variable with the name of the project that Ray sends to its nodes."""

_EXCLUDED = (".git", ".gpuenergy", ".venv", "venv", "**/__pycache__", ".tox", ".hypothesis")
"""The files that are not sent to the nodes, besides those that ``.gitignore`` names."""

_NO_CLUSTER = re.compile("could not find any running ray instance|No such file", re.IGNORECASE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that `commands.ray_words` returns."""
    project = parser.add_mutually_exclusive_group(required=True)
    project.add_argument("--project", help="Path of the project here, which Ray sends to the nodes")
    project.add_argument("--remote-dir", help="Path of the project on the nodes")
    parser.add_argument(
        "--address", help="Address of the Ray client server (default: the local cluster)"
    )
    parser.add_argument("--python", help="Path of the interpreter on the nodes")
    parser.add_argument("--device", required=True, help="GPU to use, in the syntax of --gpu-device")


@contextmanager
def connected(address: str | None, project: str | None) -> Iterator[Any]:
    """Connect to a cluster, and yield the module `ray`.

    Args:
        address: The address of Ray's client server; None for the cluster of this machine.
        project: The path of the project that is sent to the nodes; None to send none.

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
            "excludes": list(_EXCLUDED),
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
        if address is None and _NO_CLUSTER.search(str(error)):
            raise DeviceError(
                "No Ray cluster is running here: start one with ray start --head, set RAY_ADDRESS, "
                "or name one with ray://HEAD:10001."
            ) from None
        where = f"ray://{address}" if address else "of this machine"
        reason = shortened(printable(" ".join(str(error).split())), 400)
        raise DeviceError(f"The Ray cluster {where} cannot be used: {reason}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def last_sentence(error: BaseException) -> str:
    """Return the last line of an error of Ray's as a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = shortened(printable(lines[-1] if lines else type(error).__name__), 300)
    return reason if reason.endswith(".") else f"{reason}."
