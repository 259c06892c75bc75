"""How it is computed: source text, launches, argument order, origin."""

from pytest_gpuenergy.kernels.kernel import Kernel, Launch, Origin, RecordedFigures

__all__ = ["Kernel", "Launch", "Origin", "RecordedFigures"]
