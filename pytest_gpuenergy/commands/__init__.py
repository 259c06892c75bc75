"""The subcommands of ``gpuenergy``: each module has ``add_parser`` and ``run``.

Importing a command module must stay cheap, because ``gpuenergy --help`` imports them all: NumPy,
the workloads and everything heavier are imported inside ``run``.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
