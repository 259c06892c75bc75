"""Names of the tuners on the command line, separate from them so that reading options is cheap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

TunerName = Literal["template", "tvm"]
TUNER_NAMES: tuple[TunerName, ...] = get_args(TunerName)
TEMPLATE: TunerName = "template"
TVM: TunerName = "tvm"

USUAL_TUNERS: Mapping[str, TunerName] = {"gemm": TEMPLATE}
"""By kind of workload; of all others it is TVM."""
