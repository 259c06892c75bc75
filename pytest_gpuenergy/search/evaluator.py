"""Where a search has its states evaluated: in this process, or on several GPUs at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from pytest_gpuenergy.search.spec.kernel_spec import State
from pytest_gpuenergy.search.trust.result import Limit, Result
from pytest_gpuenergy.search.trust.state_evaluation import Bench
from pytest_gpuenergy.support import DeviceError


class Evaluator(Protocol):
    """Evaluates states of one spec, for one objective."""

    @property
    def bench(self) -> Bench:
        """Of a GPU that is used, in this process: for all but the evaluation of states."""
        ...

    @property
    def gpus(self) -> tuple[str, ...]:
        """The UUIDs of all GPUs, in the order of ``--gpus``."""
        ...

    @property
    def working(self) -> tuple[str, ...]:
        """Those of `gpus` that are still used."""
        ...

    def start(
        self, turn: int, state: State, ahead: Sequence[State] = (), limit: Limit | None = None
    ) -> Future[Result]:
        """Have a state evaluated.

        The future has the result, or the error with which the search must end; see
        `Bench.evaluate`.

        Args:
            turn: the GPU is that of this number, counted on beyond the last one.
            state: to evaluate.
            ahead: states to compile meanwhile, because they may follow.
            limit: see `Bench.evaluate`.
        """
        ...

    def alone(self) -> AbstractContextManager[None]:
        """Have the GPU of `bench` for this process alone: no other one keeps a context there.

        Waits for the evaluations that were started there before.
        """
        ...

    def leave(self, gpu: str, why: str) -> None:
        """Do not use a GPU any more.

        Args:
            gpu: its UUID.
            why: a clause.

        Raises:
            DeviceError: it is the last one.
        """
        ...


@dataclass(frozen=True)
class OwnProcess:
    """Evaluates states on one GPU, while the search waits.

    Attributes:
        bench: of this GPU.
    """

    bench: Bench

    @property
    def gpus(self) -> tuple[str, ...]:
        """This GPU alone."""
        return (self.bench.device.uuid,)

    @property
    def working(self) -> tuple[str, ...]:
        """As `gpus`."""
        return self.gpus

    def start(
        self,
        turn: int,  # noqa: ARG002 -- there is one GPU
        state: State,
        ahead: Sequence[State] = (),
        limit: Limit | None = None,
    ) -> Future[Result]:
        """Evaluate a state at once; errors are raised here."""
        self.bench.prepare([state, *ahead])
        done: Future[Result] = Future()
        done.set_result(self.bench.evaluate(state, limit))
        return done

    def alone(self) -> AbstractContextManager[None]:
        """Nothing: there is no other process."""
        return nullcontext()

    def leave(self, gpu: str, why: str) -> None:
        """Raise what ends the search."""
        raise DeviceError(f"{self.bench.device.name} ({gpu}) cannot be used, because {why}.")
