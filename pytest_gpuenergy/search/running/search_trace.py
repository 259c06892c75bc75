"""Writes what people read about a search: ``candidate.diff``, and ``trace.md`` with its times."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter

from pytest_gpuenergy.record import METRICS
from pytest_gpuenergy.report import markdown_table
from pytest_gpuenergy.search.running.kernel_folder import SearchState
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, State
from pytest_gpuenergy.search.spec.state_kernel import macros
from pytest_gpuenergy.search.validation.hidden_inputs import allows_other_sizes
from pytest_gpuenergy.search.validation.result import Result, VariantGain
from pytest_gpuenergy.support import dump


def candidate_diff(parent: State, child: State) -> str:
    """Return the unified diff of two states: of their text and of their launch plans."""
    name = "kernel.cu" if child.language == "cuda" else "kernel_module.py"
    texts: list[dict[str, list[str]]] = []
    for state in (parent, child):
        constants = macros(state.launch.constants) if state.language == "cuda" else ""
        source = state.source if state.source.endswith("\n") else f"{state.source}\n"
        files = {name: constants + source, "launch.json": dump(state.launch)}
        texts.append({file: text.splitlines(keepends=True) for file, text in files.items()})
    before, after = texts
    return "".join(
        line
        for file in before
        for line in difflib.unified_diff(before[file], after[file], f"a/{file}", f"b/{file}")
    )


def trace(spec: KernelSpec, state: SearchState, notes: Iterable[str] = ()) -> str:
    """Return the search so far, as Markdown that ends with the notes."""
    identity, metric = state.identity, state.identity.objective
    note = " (emulated: no figure here is measured)" if identity.emulated else ""
    lines = [
        f"# Search of {spec.name}",
        "",
        f"On {identity.gpu}{note}{identity.settings}, minimizing {metric.label}.",
    ]
    if not allows_other_sizes(spec):
        lines.append(
            "No sizes but the listed ones are allowed: a variant may be right for these alone."
        )
    lines += [
        "",
        f"| variant | from | move | outcome | {metric.label} ({metric.unit}) | of baseline |",
        "|---|---|---|---|---|---|",
    ]
    first = state.nodes[0].cost if state.nodes else None
    for node in state.nodes:
        move = f"{node.move} {node.what}".strip().replace("|", "\\|") or "baseline"
        assumed = " (assumed)" if node.assumed else ""
        cost = "" if node.cost is None else f"{node.cost:.4g}{assumed}"
        share = "" if node.cost is None or not first else f"{node.cost / first:.3f}{assumed}"
        cells = (node.id, node.parent or "", move, node.outcome, cost, share)
        lines.append(f"| {' | '.join(cells)} |")
    if any(node.assumed for node in state.nodes):
        lines += [
            "",
            "Assumed: the power was not measured to the end, as the variant cannot be the best.",
        ]
    for gain in state.gains:
        lines += ["", _comparison(gain)]
    if state.finished:
        best = "Kept" if any(gain.unclaimed for gain in state.gains) else "Best"
        is_baseline = state.incumbent == spec.baseline.id
        lines += ["", f"{best}: {'the baseline' if is_baseline else state.incumbent}."]
    return "\n".join([*lines, *notes, ""])


def _comparison(gain: VariantGain) -> str:
    if gain.message:
        compared = "" if gain.unclaimed else " compared with the baseline"
        return f"{gain.id}{compared}: {gain.message}"
    parts = [
        f"{metric.label} {gain.ratios[metric]:.4f} [{ends.low:.4f}, {ends.high:.4f}]"
        for metric in METRICS
        if (ends := gain.ratio_intervals.get(metric)) is not None
    ]
    verdict = "better" if gain.accepted else "not certainly better, and therefore not kept"
    why = "it was certain" if gain.accepted else "a gain that could be proven was out of reach"
    early = f" (ended early, because {why})"
    rounds = f"{gain.rounds} rounds{early if gain.ended_early else ''}"
    return (
        f"{gain.id} measured alternately with the baseline, {rounds}, as fractions of "
        f"the baseline's figures: {', '.join(parts)}: {verdict}."
    )


class Times:
    """The wall time of this run of a search, by activity.

    The steps of evaluations are those of `Result.steps_s`; with several GPUs they overlap.
    """

    def __init__(self) -> None:
        self._own_s: defaultdict[str, float] = defaultdict(float)
        self._steps_s: defaultdict[str, float] = defaultdict(float)
        self._evaluated = 0

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the time inside to an activity."""
        began = perf_counter()
        try:
            yield
        finally:
            self._own_s[what] += perf_counter() - began

    def add(self, result: Result) -> None:
        """Add the steps of an evaluation."""
        self._evaluated += 1
        for step, seconds in result.steps_s.items():
            self._steps_s[step] += seconds

    def lines(self) -> list[str]:
        """Return a table, as Markdown; nothing if nothing was evaluated."""
        if not self._evaluated:
            return []
        steps_s = {f"evaluate: {step}": seconds for step, seconds in self._steps_s.items()}
        rows = [
            [what, f"{seconds:.2f}", f"{seconds / self._evaluated:.2f}"]
            for what, seconds in {**self._own_s, **steps_s}.items()
        ]
        return [
            "",
            f"Wall time of the latest run, of which {self._evaluated} states were evaluated:",
            "",
            markdown_table(["what", "s", "s each"], rows),
        ]
