"""From a kernel and a workload to a measurement: verification, harness, anchors."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
