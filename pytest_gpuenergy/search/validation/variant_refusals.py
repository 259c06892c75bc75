"""Reasons to refuse a state before it runs, or for figures that cannot be right."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pytest_gpuenergy.search.analysis.output_reads import outputs_read
from pytest_gpuenergy.search.analysis.text_checks import additions
from pytest_gpuenergy.search.source.triton_checks import ModuleError
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, State
from pytest_gpuenergy.support import InputError, KernelFault
from pytest_gpuenergy.workloads import Workload

_BYTES = 8
"""Bytes of an element: inputs are drawn, and references computed, in double precision."""


def check_text(state: State, spec: KernelSpec) -> None:
    """Check that a state adds nothing to the baseline's text that a variant may not have.

    Raises:
        KernelFault: the state adds something like that.
        UnavailableError: tree-sitter is needed and not installed.
    """
    baseline = spec.baseline
    try:
        added = additions(state, baseline)
    except ModuleError as error:
        raise KernelFault("compile", f"Its source cannot be used: {error}.") from None
    if added:
        raise KernelFault(
            "constraints",
            f"Its source adds {', '.join(sorted(added))}: a variant may have nothing that outlives "
            "a launch or reads a clock, and no Python that Triton does not compile.",
        )
    if state.source == baseline.source:
        return
    if read := outputs_read(state, spec) - outputs_read(baseline, spec):
        raise KernelFault(
            "constraints",
            f"It may read what {', '.join(sorted(read))} held before, which its baseline does not: "
            "a variant must only store to its outputs, by pointers whose every use is a store.",
        )


def check_variables(bytes_found: int, bytes_allowed: int) -> None:
    """Refuse variables in machine code that the baseline does not have."""
    if bytes_found > bytes_allowed:
        raise KernelFault(
            "constraints",
            f"Its machine code has {bytes_found} bytes of variables that outlive a launch, and "
            f"that of the baseline {bytes_allowed}: a variant may have no more.",
        )


def check_plausible(time_ms: float, floor_ms: float, gpu: str) -> None:
    """Refuse a launch that is faster than the card's peaks allow."""
    if time_ms < floor_ms:
        raise KernelFault(
            "correctness",
            f"A launch takes {time_ms:.4g} ms, but its memory traffic or arithmetic takes "
            f"{floor_ms:.4g} ms at the peaks of {gpu}: it leaves work out, or the spec "
            "overstates flops or bytes_moved.",
        )


@contextmanager
def sizes_withheld() -> Iterator[None]:
    """Replace the message of a fault by one without sizes, which the next variant might exploit."""
    try:
        yield
    except KernelFault as fault:
        raise KernelFault(
            fault.outcome,
            "It fails for sizes between those that the spec lists, which are drawn and not told: "
            'it must be right for all of them, or the spec must say "other_sizes": false.',
        ) from None


def check_fits(workload: Workload) -> None:
    """Refuse tensors for which this machine has too little memory, instead of being killed.

    Raises:
        InputError: the tensors are too large.
    """
    needed = _BYTES * sum(tensor.size for tensor in workload.tensors)
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > have:
        raise InputError(
            f"The tensors of {workload.name} take {needed / 2**30:.0f} GiB in double precision, "
            f"and this machine has {have / 2**30:.0f} GiB: give smaller sizes in the spec."
        )
