"""Measurements and the run they belong to: JSON is the truth, everything else a view of it."""

from pytest_gpuenergy.record.infos import WorkloadInfo
from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.record.run import RunInfo
from pytest_gpuenergy.report.store import Report, RunFolder, load_report

__all__ = ["Measurement", "Report", "RunFolder", "RunInfo", "WorkloadInfo", "load_report"]
