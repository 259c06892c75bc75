"""Reports: a run and its measurements, stored as JSON, from which all views are made."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
