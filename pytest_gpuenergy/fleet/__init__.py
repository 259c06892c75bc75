"""Spreads a run over the GPUs of many hosts, with pytest-xdist, and Ray, ssh or Slurm.

A *slot* is a GPU with the command that starts a Python interpreter beside it. pytest-xdist starts a
*relay* for each slot, a small process on the controller's host that starts the slot's interpreter,
passes messages between both, and says in one sentence why a slot cannot be used, or was lost.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
