"""Where kernels run: a real GPU through CuPy and NVML, or an emulated one."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
