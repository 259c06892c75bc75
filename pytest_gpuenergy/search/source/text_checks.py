"""What a variant must not add to its baseline, whoever wrote it."""

from __future__ import annotations

from pytest_gpuenergy.search.source import cuda_checks, triton_checks
from pytest_gpuenergy.search.spec.kernel_spec import State


def additions(state: State, before: State) -> frozenset[str]:
    """What the text of a state contains and that of another does not, each in a few words.

    These are ways to deceive that a comparison of results cannot see: what outlives a launch or
    tells the time in CUDA text, and in a Triton module everything but functions that Triton
    compiles.

    Raises:
        ModuleError: the text is no Python module; the message is a clause without a period.
    """
    findings = cuda_checks.findings if state.language == "cuda" else triton_checks.findings
    return findings(state.source) - findings(before.source)
