"""Numbers with a lower bound: a report that violates it is refused when it is read."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

NotNegative = Annotated[float, Meta(ge=0)]
AboveZero = Annotated[float, Meta(gt=0)]
Extent = Annotated[int, Meta(ge=1)]
Bytes = Annotated[int, Meta(ge=0)]
Megahertz = Annotated[int, Meta(ge=1)]
