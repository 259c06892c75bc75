"""Time, energy and energy-delay product of GPU kernels under power caps, as pytest items."""

__version__ = "0.1.0"
