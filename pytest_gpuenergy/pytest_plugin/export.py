"""``--gpuenergy-export``: what ``gpuenergy ab`` must know of the run besides its kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_gpuenergy.pytest_plugin.gate import measures_energy
from pytest_gpuenergy.support import GpuEnergyError


class ExportPlugin:
    """Records in ``folder`` that energy items were collected, and what failed the run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Create the folder when there are energy items, whether or not they succeed."""
        from pytest_gpuenergy.ab import begin_export

        if any(map(measures_energy, session.items)):
            with contextlib.suppress(GpuEnergyError):  # each item will report it
                begin_export(self._folder)

    def finish(self, problems: Sequence[str]) -> list[str]:
        """Write the problems that failed the run as a whole; returns problems of doing so."""
        from pytest_gpuenergy.ab import export_problems

        try:
            if problems:
                export_problems(self._folder, problems)
        except GpuEnergyError as error:
            return [str(error)]
        return []
