"""Which GPUs ``CUDA_VISIBLE_DEVICES`` lets CUDA see, and in which order.

The CUDA driver library decides this itself; this module explains its decision, and stands in for it
where it is not available. Semantics: the CUDA programming guide, "CUDA Environment Variables". What
the guide leaves open (repetitions, mixed kinds of entries) follows PyTorch's findings about the
driver (``torch/cuda/__init__.py``, ``_parse_visible_devices``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.support import InputError

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


@dataclass(frozen=True)
class VisibleGpus:
    """UUIDs of the GPUs visible to CUDA, device 0 first.

    ``remark`` says which part of the variable has no effect, or hides GPUs, and why; or None.
    """

    uuids: tuple[str, ...]
    remark: str | None = None


def visible_gpus(environment: Mapping[str, str], gpus: Sequence[tuple[str, str]]) -> VisibleGpus:
    """The GPUs that the environment makes visible to CUDA.

    Args:
        environment: where the variables are looked up.
        gpus: UUID and name of every GPU in NVML's order, which is that of the PCI addresses.

    Raises:
        InputError: CUDA puts the fastest GPU first, and only CUDA knows which one that is.
    """
    value = environment.get(VISIBLE)
    if value is None:
        return VisibleGpus(_in_cudas_order(environment, gpus))
    if not value.strip():
        return VisibleGpus((), f"{VISIBLE} is empty, which hides every GPU")
    words = [word.strip() for word in value.split(",")]
    if words[0].startswith("MIG-"):
        return VisibleGpus(
            (), f"{VISIBLE} names the MIG instance {words[0]}, which has no power sensor of its own"
        )
    if words[0].startswith("GPU-"):
        numbers = [_by_uuid(word, gpus) for word in words]
        ordered: Sequence[str] = [uuid for uuid, _ in gpus]
    else:
        numbers = [_leading_number(word) for word in words]
        ordered = _in_cudas_order(environment, gpus)
    return _up_to_the_first_unknown(words, numbers, ordered)


def _up_to_the_first_unknown(
    words: Sequence[str], numbers: Sequence[int | None], ordered: Sequence[str]
) -> VisibleGpus:
    seen: list[int] = []
    for word, number in zip(words, numbers, strict=True):
        if number is None or number >= len(ordered):
            uuids = tuple(ordered[k] for k in seen)
            return VisibleGpus(
                uuids,
                f"{VISIBLE} has {word!r}, which is not a GPU here: CUDA stops reading there",
            )
        if number in seen:
            return VisibleGpus((), f"{VISIBLE} names a GPU twice, which hides every GPU")
        seen.append(number)
    return VisibleGpus(tuple(ordered[k] for k in seen))


def _leading_number(word: str) -> int | None:
    match = re.match(r"\+?([0-9]{1,9})", word)  # CUDA reads "1gpu" as 1, and "-1" as no GPU
    return int(match[1]) if match else None


def _by_uuid(word: str, gpus: Sequence[tuple[str, str]]) -> int | None:
    """Position of the only GPU whose UUID starts with ``word``; None if there is not just one."""
    if not word.startswith("GPU-"):
        return None
    found = [index for index, (uuid, _) in enumerate(gpus) if uuid.startswith(word)]
    return found[0] if len(found) == 1 else None


def _in_cudas_order(
    environment: Mapping[str, str], gpus: Sequence[tuple[str, str]]
) -> tuple[str, ...]:
    if environment.get(ORDER) != "PCI_BUS_ID" and len({name for _, name in gpus}) > 1:
        raise InputError(
            "The GPUs here differ, and only CUDA knows which of them is device 0: set "
            f"{ORDER}=PCI_BUS_ID, or name GPUs by UUID in {VISIBLE}."
        )
    return tuple(uuid for uuid, _ in gpus)
