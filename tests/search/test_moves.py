"""The move that changes sizes of blocks, and the policy that chooses between its applications."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernel_specs import SOURCE, launch_with, spec_with, write
from move_checks import move_named
from msgspec.structs import replace

from pytest_gpuenergy.search import Application, read_spec


def applications(folder: Path, **fields: Any) -> list[Application]:
    spec = read_spec(write(folder, spec_with(**fields)))
    return list(move_named("change_block_sizes").applications(spec.baseline, spec))


def whats(folder: Path, **fields: Any) -> list[str]:
    return [one.what for one in applications(folder, **fields)]


def test_a_block_whose_size_the_grid_knows_is_changed(tmp_path: Path) -> None:
    found = whats(tmp_path)
    assert found == [
        *(f"block_x={threads}" for threads in (64, 128, 256, 512, 1024)),
        *(f"ITEMS={items}" for items in (1, 2, 8, 16)),
    ]


def test_every_application_leads_to_another_state(tmp_path: Path) -> None:
    found = applications(tmp_path)
    assert len({one.state.id for one in found}) == len({one.what for one in found}) == len(found)


def test_a_block_that_nothing_depends_on_is_left_alone(tmp_path: Path) -> None:
    assert whats(tmp_path, launch=launch_with(grid=[125], constants={})) == []


def test_a_constant_that_only_a_comment_has_is_left_alone(tmp_path: Path) -> None:
    text = SOURCE.replace("ITEMS", "4") + "// ITEMS\n/* ITEMS */"
    assert not any("ITEMS" in what for what in whats(tmp_path, source=text))


def test_a_constant_that_states_the_size_of_the_block_takes_it_along(tmp_path: Path) -> None:
    text = SOURCE.replace("blockDim.x", "THREADS")
    launch = launch_with(grid=["ceil_div(N, THREADS * 4)"], constants={"THREADS": 32})
    found = applications(tmp_path, source=text.replace("ITEMS", "4"), launch=launch)
    plans = [(one.state.launch.constants["THREADS"], one.state.launch.block) for one in found]
    assert plans == [(threads, (threads,)) for threads in (64, 128, 256, 512, 1024)]


def test_a_block_has_at_most_1024_threads(tmp_path: Path) -> None:
    launch = launch_with(grid=["ceil_div(N, block_x)", "ceil_div(N, block_y)"], block=[32, 8])
    found = applications(tmp_path, launch=launch)
    assert found
    assert all(one.state.launch.block[0] * one.state.launch.block[1] <= 1024 for one in found)


def test_constants_stay_near_those_of_the_baseline(tmp_path: Path) -> None:
    spec = read_spec(write(tmp_path))
    far = replace(spec.baseline, launch=replace(spec.launch, constants={"ITEMS": 64}))
    found = [one.what for one in move_named("change_block_sizes").applications(far, spec)]
    assert "ITEMS=32" in found
    assert "ITEMS=128" not in found
