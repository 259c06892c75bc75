"""Has Ray place an actor with an interpreter, and connects the pipes of this process to it.

``python -m pytest_gpuenergy.fleet.ray_gateway OPTIONS -- ARGUMENTS`` behaves like an interpreter
with these arguments. It ends when the interpreter, the actor or its node ends.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from typing import Any

from pytest_gpuenergy.fleet.commands import remote_environment
from pytest_gpuenergy.fleet.ray_cluster import add_arguments, connected, last_sentence
from pytest_gpuenergy.support import GpuEnergyError

_READ_WAIT_S = 30.0
_STOP_WAIT_S = 15.0
_PIECE_BYTES = 1 << 16
_TRIES, _PAUSE_S = 5, 3.0
_ACTOR_THREADS = 4
"""The threads of an actor: a read that waits, a write, a stop, and a spare one."""


def main(arguments: list[str]) -> int:
    """Run until the interpreter has ended; if it does not start, print why to stderr."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    own, rest = arguments[:place], arguments[place + 1 :]
    parser = argparse.ArgumentParser(prog="ray_gateway")
    add_arguments(parser)
    parser.add_argument("--node", help="Where to place the actor if that node is there")
    parser.add_argument("--avoid", default="", help="GPUs that cannot be used, as NODE:NUMBER,...")
    options = parser.parse_args(own)
    output = os.dup(1)
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123 -- for its descriptor
        os.dup2(nothing.fileno(), 1)  # because Ray prints there
    # Until there is an interpreter to end gently.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
    try:
        with connected(options.address, options.project) as ray:
            return _serve(ray, options, rest, {1: output, 2: 2})
    except GpuEnergyError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _serve(
    ray: Any, options: argparse.Namespace, arguments: list[str], outputs: dict[int, int]
) -> int:
    try:
        actor, number = _place_actor(ray, options)
        ray.get(
            actor.start.remote(
                options.python, arguments, options.remote_dir, number, remote_environment()
            )
        )
    except (ray.exceptions.RayError, OSError) as error:
        sys.stderr.write(f"Ray could not start the worker: {last_sentence(error)}\n")
        return 1
    signal.signal(
        signal.SIGTERM, lambda *_: threading.Thread(target=_stop, args=(ray, actor)).start()
    )
    threading.Thread(target=_feed, args=(ray, actor), daemon=True).start()
    try:
        _drain(ray, actor, outputs)
    except ray.exceptions.RayError as error:
        sys.stderr.write(f"Ray lost the worker: {last_sentence(error)}\n")
        return 1
    _stop(ray, actor)
    return 0


def _place_actor(ray: Any, options: argparse.Namespace) -> tuple[Any, int]:
    """Place an actor, and return it with the number of its GPU; Ray waits for a free GPU.

    An actor on a GPU that cannot be used keeps it until another GPU is found.
    """
    from pytest_gpuenergy.fleet.ray_interpreter import Interpreter

    kind = ray.remote(num_gpus=1, num_cpus=0, max_concurrency=_ACTOR_THREADS, max_restarts=0)(
        Interpreter
    )
    avoided = set(filter(None, options.avoid.split(",")))
    held = []
    while True:
        actor, node, number = _actor_on_node(ray, kind, options.node)
        if f"{node}:{number}" not in avoided:
            break
        held.append(actor)
    for other in held:
        ray.kill(other)
    emulated = options.device.startswith("emulated")
    # Among real GPUs, the process sees only its own.
    return actor, number if emulated else 0


def _actor_on_node(ray: Any, kind: Any, preferred: str | None) -> tuple[Any, str, int]:
    """Return an actor with its node and GPU; try again while Ray has not noticed a dead node."""
    for node in (preferred, *[None] * _TRIES):
        actor = kind.options(scheduling_strategy=_strategy(node)).remote()
        try:
            return (actor, *ray.get(actor.node_and_gpu.remote()))
        except ray.exceptions.RayActorError as error:
            last = error
            time.sleep(_PAUSE_S)
    raise last


def _strategy(node: str | None) -> Any:
    if node is None:
        return "DEFAULT"
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True)


def _feed(ray: Any, actor: Any) -> None:
    """Pass the input of this process on to the interpreter."""
    while True:
        data = os.read(0, _PIECE_BYTES)
        try:
            if not ray.get(actor.write.remote(data)) or not data:
                return
        except Exception:  # `_drain` then fails too, and reports it
            return


def _drain(ray: Any, actor: Any, outputs: dict[int, int]) -> None:
    """Pass the output of the interpreter on to our descriptors until it has ended."""
    while True:
        for descriptor, data in ray.get(actor.read.remote(_READ_WAIT_S)):
            if descriptor == 1 and not data:
                return
            rest = data
            while rest:
                rest = rest[os.write(outputs[descriptor], rest) :]


def _stop(ray: Any, actor: Any) -> None:
    """End the interpreter gently, then the actor."""
    with contextlib.suppress(Exception):  # it may have ended; it is killed in any case
        ray.get(actor.stop.remote(), timeout=_STOP_WAIT_S)
    ray.kill(actor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
