"""Starts and joins the ranks that share a model: a process for each GPU, as torchrun has them."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from tempfile import TemporaryFile
from typing import Any, TypeVar

from pytest_gpuenergy import opening
from pytest_gpuenergy.support import DeviceError, InputError, run_together

T = TypeVar("T")

EXCHANGES = "gpuenergy"
"""The namespace of the operators by which ranks exchange data; see `sharding`."""

_RANK, _COUNT = "RANK", "WORLD_SIZE"
_HOST = "127.0.0.1"
_LOST = 75
"""The exit code of a rank that ends because another has ended."""


@dataclass(frozen=True)
class Ranks:
    """This process among its ranks.

    Attributes:
        rank: The number of this process.
        count: The number of ranks.
        group: PyTorch's group of the ranks' processes on the host; None for a single rank.
    """

    rank: int = 0
    count: int = 1
    group: Any = None

    def gathered(self, value: T) -> list[T]:
        """Wait for all ranks, and return the value that each has given."""
        if self.count == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.count
        with _ending_quietly():
            dist.all_gather_object(values, value, group=self.group)
        return values

    def most(self, value: float) -> float:
        """Wait for all ranks, and return the largest of their values."""
        if self.count == 1:
            return value
        import torch
        import torch.distributed as dist

        found = torch.tensor([value], dtype=torch.float64)
        with _ending_quietly():
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return float(found.item())


ALONE = Ranks()


def is_rank() -> bool:
    """Return whether this process was started as a rank, by `run_ranks` or by torchrun."""
    return _RANK in os.environ and _COUNT in os.environ


def rank_of_process(count: int) -> int:
    """Return the number of this process among ``count`` ranks of its host."""
    return int(os.environ.get("LOCAL_RANK", "0")) if count > 1 else 0


@contextmanager
def joined(count: int, device: str) -> Iterator[Ranks]:
    """Join the other ranks, by gloo and, for GPUs, by NCCL.

    Raises:
        InputError: There are more or fewer ranks.
        DeviceError: The others cannot be reached.
    """
    started = os.environ.get(_COUNT, "1")
    if started != str(count):
        raise InputError(
            f"{started} processes were started for {count} ranks: give torchrun --nproc-per-node "
            f"{count}, or leave torchrun out."
        )
    import torch
    import torch.distributed as dist

    on_gpu = device.startswith("cuda")
    try:
        if on_gpu:
            torch.cuda.set_device(device)
            dist.init_process_group("nccl", device_id=torch.device(device))
        else:
            dist.init_process_group("gloo")
        group = dist.new_group(backend="gloo") if on_gpu else dist.group.WORLD
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise DeviceError(
            f"The {count} ranks cannot reach one another ({reason}): check that NCCL works here, "
            "with NCCL_DEBUG=INFO."
        ) from None
    try:
        yield Ranks(dist.get_rank(), count, group)
    finally:
        dist.destroy_process_group()


def run_ranks(words: Sequence[str], count: int, folder: Path) -> int:
    """Run this command again as ``count`` ranks on this host; only the first one prints.

    Args:
        words: The arguments of the command.
        count: The number of ranks.
        folder: The folder that the command writes to, for messages.

    Returns:
        The exit code of the rank that failed, whose message is printed; 0 if none failed.

    Raises:
        DeviceError: A rank was killed, or the ranks have lost one another.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(TemporaryFile("w+")) for _ in range(1, count)]
        command = [sys.executable, "-m", "pytest_gpuenergy.cli", *words]
        codes = run_together(command, Path.cwd(), rank_environments(count), [None, *files])
        failed = [(rank, code) for rank, code in enumerate(codes) if code and code != _LOST]
        if not any(codes):
            return 0
        if not failed:
            raise DeviceError(
                f"The {count} ranks have lost one another: begin again, a replay with --resume."
            )
        rank, code = min(failed, key=lambda failure: (failure[1] > 0, failure))
        if rank:
            files[rank - 1].seek(0)
            sys.stderr.write(files[rank - 1].read())
    if code < 0:
        raise DeviceError(
            f"Rank {rank} of {count} was ended by {Signals(-code).name}: what had been written to "
            f"{folder} is still there; begin again, a replay with --resume."
        )
    return code


def rank_environments(count: int) -> list[dict[str, str]]:
    """Return the environment of the process of each rank, as torchrun sets it."""
    with socket.socket() as free:
        free.bind((_HOST, 0))
        port = free.getsockname()[1]
    shared = {
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",  # all are on this host
        **os.environ,
        _COUNT: str(count),
        "MASTER_ADDR": _HOST,
        "MASTER_PORT": str(port),
    }
    return [{**shared, _RANK: str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


@contextmanager
def _ending_quietly() -> Iterator[None]:
    """End this process quietly if another rank has ended, which itself prints why."""
    try:
        yield
    except RuntimeError:
        raise SystemExit(_LOST) from None


def device_word(spec: str, rank: int, count: int) -> tuple[str, int]:
    """Return the arguments ``spec`` and ``index`` of `open_device` for the GPU of a rank.

    Args:
        spec: ``auto``, or a list with an entry for each rank, separated by commas.
        rank: The number of the rank.
        count: The number of ranks.

    Raises:
        InputError: There are fewer GPUs than ranks.
    """
    if count == 1:
        return spec, 0
    words = [word.strip() for word in spec.split(",")]
    if len(words) == count:
        return words[rank], 0
    if len(words) > 1 or opening.count_gpus(spec) < count:
        have = len(words) if len(words) > 1 else opening.count_gpus(spec)
        raise InputError(
            f"{count} ranks need {count} GPUs, and --gpu-device {spec} names {have}: give a list "
            f"such as {','.join(map(str, range(count)))}."
        )
    return spec, rank
