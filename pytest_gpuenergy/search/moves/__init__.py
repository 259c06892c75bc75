"""The moves that a search can make."""

from pytest_gpuenergy.search.move import Move
from pytest_gpuenergy.search.moves.block_sizes import ChangeBlockSizes

MOVES: tuple[Move, ...] = (ChangeBlockSizes(),)
