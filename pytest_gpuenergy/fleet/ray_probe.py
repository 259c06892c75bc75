"""Probes the nodes of a Ray cluster that have GPUs, with a task on each node.

``python -m pytest_gpuenergy.fleet.ray_probe OPTIONS`` prints a line for each node, see `probe`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from pytest_gpuenergy.fleet.commands import remote_environment
from pytest_gpuenergy.fleet.probe import MARK, ProbedGpu, ProbedHost
from pytest_gpuenergy.fleet.ray_cluster import add_arguments, connected, last_sentence
from pytest_gpuenergy.support import FormError, GpuEnergyError, decode, encode

_NODE_WAIT_S = 90.0
_TAKEN = "another job of the cluster has it."


def main(arguments: list[str]) -> int:
    """Print what each node offers."""
    parser = argparse.ArgumentParser(prog="ray_probe")
    add_arguments(parser)
    options = parser.parse_args(arguments)
    try:
        with connected(options.address, options.project) as ray:
            hosts = _ask(ray, options)
            free = int(ray.available_resources().get("GPU", 0))
    except GpuEnergyError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if not hosts:
        sys.stderr.write(
            "no node of the Ray cluster has a GPU: start nodes with ray start --num-gpus=N, also "
            "for emulated ones\n"
        )
        return 1
    for host in without_taken(hosts, free):
        sys.stdout.write(f"{MARK}{encode(host).decode()}\n")
    return 0


def without_taken(hosts: Sequence[ProbedHost], free: int) -> list[ProbedHost]:
    """Mark the usable GPUs beyond the number of free ones as taken.

    Ray reports only how many GPUs are free, not which.
    """
    left = free

    def judged(gpu: ProbedGpu) -> ProbedGpu:
        nonlocal left
        left -= gpu.no_measuring is None
        return replace(gpu, no_measuring=gpu.no_measuring or (_TAKEN if left < 0 else None))

    return [replace(host, gpus=tuple(map(judged, host.gpus))) for host in hosts]


def _ask(ray: Any, options: argparse.Namespace) -> list[ProbedHost]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(_print_probe)
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU", 0) >= 1]
    asked = [
        task.options(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        ).remote(options.python, options.device, options.remote_dir, remote_environment())
        for node in nodes
    ]
    return [_probe_node(ray, node, answer) for node, answer in zip(nodes, asked, strict=True)]


def _probe_node(ray: Any, node: dict[str, Any], answer: Any) -> ProbedHost:
    """Return what a node offers, or why that is unknown; Ray may have fewer GPUs than the host."""
    name = node["NodeManagerHostname"]
    try:
        output, errors = ray.get(answer, timeout=_NODE_WAIT_S)
    except Exception as error:
        return ProbedHost(name, problem=last_sentence(error), node=node["NodeID"])
    lines = [line.partition(MARK)[2] for line in output.splitlines() if MARK in line]
    try:
        host = decode(lines[-1], ProbedHost) if lines else None
    except FormError:
        host = None
    if host is None:
        last = (errors.strip().splitlines() or ["its probe printed nothing."])[-1]
        return ProbedHost(name, problem=last, node=node["NodeID"])
    count = int(node["Resources"]["GPU"])
    return replace(host, gpus=host.gpus[:count], node=node["NodeID"])


def _print_probe(
    python: str | None, device: str, remote_dir: str | None, variables: dict[str, str]
) -> tuple[str, str]:
    """Run `probe` on a node, in a process that sees all of the node's GPUs.

    This function uses only the standard library, because the node may have nothing else.
    """
    # Ray hides the GPUs from a task that reserves none.
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(
        [python or sys.executable, "-m", "pytest_gpuenergy.fleet.probe", device],
        cwd=remote_dir,
        env={**environment, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )
    return done.stdout, done.stderr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
