"""Where kernels run: the interface of a device, NVML, and a real GPU through CuPy."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
