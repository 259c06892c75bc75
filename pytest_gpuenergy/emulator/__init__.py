"""The emulated GPU: CUDA text run on the host CPU, in virtual time."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
