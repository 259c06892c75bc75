"""The identities of a run's items, by which runs are compared: no two items may share one."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_gpuenergy.record import Identity, Measurement
from pytest_gpuenergy.support import InputError


class Identities:
    """The identities of a run's items, each held by a single item.

    Args:
        earlier: the measurements the run had before it was resumed.
    """

    def __init__(self, earlier: Iterable[Measurement] = ()) -> None:
        self._earlier = {m.identity: m.node_id for m in earlier}
        self._holders = dict(self._earlier)

    def assign(self, identity: Identity, node_id: str) -> None:
        """Assign an identity to an item; an item that runs again keeps it.

        Raises:
            InputError: another item has this identity.
        """
        holder = self._holders.setdefault(identity, node_id)
        if holder == node_id:
            return
        problem = _collision_sentence(identity, holder, node_id, "would both be recorded")
        if self._earlier.get(identity) == holder:
            problem += " If the test was renamed, run without --gpuenergy-resume."
        raise InputError(problem)


def shared_identities(measurements: Iterable[Measurement]) -> list[str]:
    """Return a sentence for each item of a run that shares its identity with an earlier item."""
    holders: dict[Identity, str] = {}
    return [
        _collision_sentence(m.identity, holder, m.node_id, "were both recorded")
        for m in measurements
        if (holder := holders.setdefault(m.identity, m.node_id)) != m.node_id
    ]


def _collision_sentence(identity: Identity, first: str, second: str, verb: str) -> str:
    return (
        f"{first} and {second} {verb} as {identity.label}, which would make them "
        "indistinguishable: give energy_benchmark a label= of its own in each."
    )
