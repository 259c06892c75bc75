"""Whose joules are they: from the profile of a model to the energy of its kernels."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
