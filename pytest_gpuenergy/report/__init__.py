"""Reports: a run and its measurements, stored as JSON, from which all views are made."""

from pytest_gpuenergy.record.infos import WorkloadInfo
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.record.run import RunInfo
from pytest_gpuenergy.report.store import Report, RunFolder, load_report

__all__ = ["Measurement", "Report", "RunFolder", "RunInfo", "WorkloadInfo", "load_report"]
