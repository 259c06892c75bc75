"""Time, energy and energy-delay product of GPU kernels under power caps, as pytest items.

What a bench or a program imports is here. Each name is loaded when it is first used, so that
importing the package costs nothing else.
"""

from lazy_loader import attach_stub

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
