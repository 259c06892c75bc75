"""A team of GPUs that evaluates the states of one spec."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from pytest_gpuenergy.engine import Team
from pytest_gpuenergy.search.gpu_process import Task
from pytest_gpuenergy.search.spec.kernel_spec import State
from pytest_gpuenergy.search.trust.result import Limit, Result
from pytest_gpuenergy.search.trust.state_evaluation import Bench
from pytest_gpuenergy.support import DeviceError


@dataclass(frozen=True)
class TeamEvaluator:
    """A team that evaluates the states of one spec.

    Attributes:
        team: of GPUs.
        benches: of the members in their order, in this process.
    """

    team: Team
    benches: tuple[Bench, ...]
    _prepared: set[str] = field(default_factory=set)

    @property
    def bench(self) -> Bench:
        """Of the first GPU that is used."""
        return self.benches[self.team.members.index(self.team.first)]

    @property
    def gpus(self) -> tuple[str, ...]:
        """All of the team."""
        return tuple(member.uuid for member in self.team.members)

    @property
    def working(self) -> tuple[str, ...]:
        """Those that are used."""
        return self.team.working

    def start(
        self, turn: int, state: State, ahead: Sequence[State] = (), limit: Limit | None = None
    ) -> Future[Result]:
        """Hand a state to the team; each one is compiled ahead by one process only."""
        new = tuple(one for one in ahead if one.id not in self._prepared)
        self._prepared.update(one.id for one in (state, *new))
        bench = self.benches[0]
        emulated = bench.device.emulated
        task = Task(bench.spec, bench.objective, bench.seed, state, new, limit, emulated)
        return self.team.start(turn, task)

    def alone(self) -> AbstractContextManager[None]:
        """Let the process of the first GPU that is used rest."""
        return self.team.first.resting()

    def leave(self, gpu: str, why: str) -> None:
        """Use a GPU no more."""
        [member] = [one for one in self.team.members if one.uuid == gpu]
        name = self.benches[0].device.name
        self.team.leave(member, DeviceError(f"{name} ({gpu}) cannot be used, because {why}."))
