"""``--gpuenergy-export``: what ``gpuenergy ab`` has to know of the run beside its kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_gpuenergy.pytest_plugin.gate import measures_energy
from pytest_gpuenergy.support.errors import GpuEnergyError


class ExportPlugin:
    """Writes into ``folder`` that energy items were collected, and what failed the run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Make the folder when there are energy items, whatever will come of them."""
        from pytest_gpuenergy.ab.exhibit import begin_export

        if any(map(measures_energy, session.items)):
            with contextlib.suppress(GpuEnergyError):  # each item will say so
                begin_export(self._folder)

    def finish(self, problems: Sequence[str]) -> list[str]:
        """Write down what failed the run as a whole; returns what went wrong meanwhile."""
        from pytest_gpuenergy.ab.exhibit import export_problems

        try:
            if problems:
                export_problems(self._folder, problems)
        except GpuEnergyError as error:
            return [str(error)]
        return []
