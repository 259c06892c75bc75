"""The settings of a card: what is requested, who may write them, and how they are restored."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
