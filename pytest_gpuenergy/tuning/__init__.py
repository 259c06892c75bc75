"""The tuner: proposes, evaluates and keeps kernels of a workload, from any search space."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
