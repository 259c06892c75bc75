"""Numbers within bounds: a report that violates them is refused when it is read.

Whole numbers have 64 bits at most, as in Parquet, and as other tools read them.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

NotNegative = Annotated[float, Meta(ge=0)]
AboveZero = Annotated[float, Meta(gt=0)]

_MOST = 2**63 - 1
Whole = Annotated[int, Meta(ge=-_MOST - 1, le=_MOST)]
Count = Annotated[int, Meta(ge=0, le=_MOST)]
Extent = Annotated[int, Meta(ge=1, le=_MOST)]
Bytes = Count
Megahertz = Annotated[int, Meta(ge=1, le=_MOST)]
