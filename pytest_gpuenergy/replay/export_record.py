"""What stands in an exported file beside the programs and weights."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from pytest_gpuenergy.replay.programs import NO_PROMPT, Prompt
from pytest_gpuenergy.support import FormError, InputError, decode, schema_version, shown

EXPORT_VERSION = 1
"""``schema_version`` of the exports written and read here."""


class ExportRecord(Struct, frozen=True):
    """What was exported, and with what.

    Attributes:
        model: as the user named it.
        vocabulary: the number of tokens; 0 for a function, whose numbers of tokens are 0, too.
        device: PyTorch's name of the device that the steps were exported on.
        layers: paths of its modules, in the order of `Program.layers`.
    """

    model: str
    weights: str
    attention: str
    dtype: str
    vocabulary: int
    prompt_tokens: int
    new_tokens: int
    batch: int
    seed: int
    device: str
    layers: tuple[str, ...]
    torch: str
    transformers: str
    schema_version: int = EXPORT_VERSION

    @property
    def prompt(self) -> Prompt:
        """What it was exported for."""
        if not self.vocabulary:
            return NO_PROMPT
        return Prompt(self.prompt_tokens, self.new_tokens, self.batch, self.seed)


def read_record(text: str, path: Path) -> ExportRecord:
    """Decode the record of the export ``path``.

    Raises:
        InputError: it has another form than ours, or that of another version.
    """
    try:
        version = schema_version(text)
        if version != EXPORT_VERSION:
            raise InputError(
                f"The schema_version of the export {path} is {shown(version)}, but this gpuenergy "
                f"reads {EXPORT_VERSION}: update pytest-gpuenergy, or export the model again."
            )
        return decode(text, ExportRecord, "the record")
    except FormError as error:
        raise InputError(f"{path} is damaged ({error}): export the model again.") from None
