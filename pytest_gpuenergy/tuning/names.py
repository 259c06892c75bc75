"""Names of the tuners on the command line, separate from them so that reading options is cheap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from pytest_gpuenergy.workloads import Workload

TunerName = Literal["template", "tvm"]
TUNER_NAMES: tuple[TunerName, ...] = get_args(TunerName)
TEMPLATE: TunerName = "template"
TVM: TunerName = "tvm"


def usual_tuner(workload: Workload) -> TunerName:
    """The tuner of a workload unless another is asked for.

    Matrix products and convolutions in groups have templates; of all others it is TVM.
    """
    from pytest_gpuenergy.workloads import Conv2d, Gemm

    grouped = isinstance(workload, Conv2d) and workload.shape.groups > 1
    return TEMPLATE if grouped or isinstance(workload, Gemm) else TVM
