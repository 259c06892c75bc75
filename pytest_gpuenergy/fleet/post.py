"""What a relay has to know of its place, and of the paths there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Post:
    """What a relay has to know.

    Attributes:
        spec: execnet's, of the gateway to open.
        host: what to call the place.
        uuid: of the GPU that was promised; None where it is chosen there.
        root: path of the project here.
        wait_s: how long the worker may take to start.
        silence_s: how long the worker goes on without a sign of this process.
        asked: what `far.begin` receives.
    """

    spec: str
    host: str
    uuid: str | None
    root: str
    wait_s: float
    silence_s: float
    asked: dict[str, Any]

    def arguments(self, given: list[str], directory: str) -> list[str]:
        """The arguments of pytest as they are to be given where the project is at ``directory``."""
        mapped = [_mapped(argument, self.root, directory) for argument in given]
        if any(argument.startswith("--rootdir") for argument in given):
            return mapped
        return [f"--rootdir={directory}", *mapped]


def _mapped(argument: str, root: str, directory: str) -> str:
    """An argument with a path in the project, or an option with one, as it is there."""
    option, equals, value = (
        argument.partition("=") if argument.startswith("-") else ("", "", argument)
    )
    if value == root or value.startswith(f"{root}/"):
        value = directory + value[len(root) :]
    return f"{option}{equals}{value}"
