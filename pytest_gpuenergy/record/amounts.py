"""Numbers that cannot take every value: a report that says otherwise is refused when it is read."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

NotNegative = Annotated[float, Meta(ge=0)]
AboveZero = Annotated[float, Meta(gt=0)]
