"""The moves that a search can make."""

from __future__ import annotations

from pytest_gpuenergy.search.moves.async_pipeline import EnableAsyncPipeline
from pytest_gpuenergy.search.moves.atomic_sums import AvoidAtomicsReduce
from pytest_gpuenergy.search.moves.block_sizes import ChangeBlockSizes
from pytest_gpuenergy.search.moves.blocks_order import GroupedGemmColmajor
from pytest_gpuenergy.search.moves.cache_policy import CachePolicyCg
from pytest_gpuenergy.search.moves.guards import PadTailAndMask
from pytest_gpuenergy.search.moves.move import Move
from pytest_gpuenergy.search.moves.softmax_math import SoftmaxMathFusion
from pytest_gpuenergy.search.moves.tensor_cores import SwitchToMmaOrWgmma
from pytest_gpuenergy.search.moves.vectorize import VectorizeGlobalLoads

MOVES: tuple[Move, ...] = (
    ChangeBlockSizes(),
    EnableAsyncPipeline(),
    VectorizeGlobalLoads(),
    SwitchToMmaOrWgmma(),
    PadTailAndMask(),
    CachePolicyCg(),
    AvoidAtomicsReduce(),
    GroupedGemmColmajor(),
    SoftmaxMathFusion(),
)
"""All of them, in a fixed order."""
