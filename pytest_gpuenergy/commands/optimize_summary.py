"""The part of ``gpuenergy optimize`` that sums up several kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands.command_line import print_lines

if TYPE_CHECKING:
    from pytest_gpuenergy.search import KernelSpec, SearchState

SUMMARY_JSON, SUMMARY_MD = "summary.json", "summary.md"


def sum_up(found: Sequence[tuple[KernelSpec, SearchState]], outdir: Path, *, printed: bool) -> None:
    """Write what the searches have gained together, and print it if there are several.

    Raises:
        OutputError: it cannot be written.
    """
    from pytest_gpuenergy.report import markdown_table
    from pytest_gpuenergy.search import summary_of, table_of, totals_of
    from pytest_gpuenergy.support import aligned, dump, write_atomically
    from pytest_gpuenergy.tuning import writing

    summary = summary_of(found)
    if summary is None:
        return
    head, *rows = table_of(summary)
    text = (0, len(head) - 2, len(head) - 1)
    page = [markdown_table(head, rows, text=text), "", *totals_of(summary), ""]
    for name, content in ((SUMMARY_JSON, dump(summary)), (SUMMARY_MD, "\n".join(page))):
        with writing(outdir / name):
            write_atomically(outdir / name, content)
    if printed and len(rows) > 1:
        print_lines([*aligned([head, *rows]), *totals_of(summary), f"  {outdir / SUMMARY_MD}"])
