"""`gpuenergy gemm profile`: programs built and run by tools that only seem to be the real ones."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command_outcomes import ended

from pytest_gpuenergy.cli import main
from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.tuners import rank_kernels

pytestmark = pytest.mark.slow

PROFILE = ("gemm", "profile", "--gpu-device", "emulated", "--out", "out")
CMAKE = """#!{python}
import sys
from pathlib import Path
if "--build" in sys.argv:
    build = Path(sys.argv[sys.argv.index("--build") + 1])
    for source in build.parent.glob("kernels/*/*.launch.cu"):
        (build / (source.parent.name + "_" + source.name.split(".")[0])).write_text("")
else:
    Path(sys.argv[sys.argv.index("-B") + 1]).mkdir()
    print("configured for", [word for word in sys.argv if "COMPILER" in word])
"""
NCU = """#!{python}
import json, os, sys
from pathlib import Path
words = sys.argv[1:]
Path("{folder}/called.jsonl").open("a").write(
    json.dumps([words, os.environ["CUDA_VISIBLE_DEVICES"]]) + "\\n")
assert [word for word in words if Path(word).parent.name == "build"][0]
Path(words[words.index("-o") + 1] + ".ncu-rep").write_text("profile")
print("C: max error 1.0e-07 (bound 1.0e-06): correct")
"""


@pytest.fixture(autouse=True)
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all tools, the only one on the PATH; the emulated GPU counts as a real one."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name, text in (("nvcc", "#!/bin/sh\n"), ("cmake", CMAKE), ("ncu", NCU)):
        put(folder, name, text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(EmulatedDevice, "emulated", False)
    monkeypatch.setattr("pytest_gpuenergy.tuners.contenders.rank_kernels", most_promising)
    return folder


@functools.cache
def most_promising(*arguments: Any) -> list[Any]:
    """To rank ten thousand takes most of the time of a test, and only the first is used."""
    return rank_kernels(*arguments)[:1]


def put(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text.replace("{python}", sys.executable).replace("{folder}", str(folder)))
    path.chmod(0o755)


@pytest.mark.slow
def test_each_product_is_profiled_without_locking_clocks(tools, capsys):
    assert main([*PROFILE, "MNK=64 mode=3xtf32"]) == 0
    layouts = ("nn", "nt")
    profiles = [Path(f"out/gemm_64x64x64_{one}_3xtf32.ncu-rep").absolute() for one in layouts]
    assert capsys.readouterr().out.splitlines() == [str(path) for path in profiles]
    assert all(path.is_file() for path in profiles)
    lines = (tools / "called.jsonl").read_text().splitlines()
    for line, layout in zip(lines, layouts, strict=True):
        words, visible = json.loads(line)
        assert visible.startswith("GPU-")
        options = dict(zip(words[::2], words[1::2], strict=False))
        assert (options["--clock-control"], options["--cache-control"]) == ("none", "none")
        assert options["--set"] == "full"
        launches = int(options["--launch-count"])
        assert int(options["--launch-skip"]) == 99 * launches
        name = f"gemm_64x64x64_{layout}_3xtf32_kernel01"
        assert words[-3:] == [
            str(Path(f"out/programs/build/{name}").absolute()),
            "--launches",
            "100",
        ]


def test_all_launches_of_a_kernel_are_profiled(tools):
    assert main([*PROFILE, "M=16 N=16 K=4096 layout=nn"]) == 0  # with a sum of shared tiles
    words, _ = json.loads((tools / "called.jsonl").read_text())
    assert words[words.index("--launch-count") + 1] == "2"


def test_the_programs_are_built_with_the_nvcc_that_is_found(tools):
    assert main([*PROFILE, "MNK=64 layout=nn"]) == 0
    assert f"-DCMAKE_CUDA_COMPILER={tools / 'nvcc'}" in Path("out/build.log").read_text()
    assert "set(CMAKE_CUDA_ARCHITECTURES 90)" in Path("out/programs/CMakeLists.txt").read_text()


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        ("nvcc", "needs nvcc, which is not on the PATH: install the CUDA toolkit"),
        ("cmake", "needs cmake, which is not on the PATH: install CMake 3.24"),
        ("ncu", "needs ncu, which is not on the PATH: install Nsight Compute"),
    ],
)
def test_a_tool_that_is_missing_is_named_with_what_to_install(tools, tool, told):
    (tools / tool).unlink()
    (line,) = ended(2, *PROFILE, "MNK=64").err.splitlines()
    assert told in line
    assert not Path("out").exists()


def test_an_emulated_gpu_cannot_be_profiled(monkeypatch):
    monkeypatch.setattr(EmulatedDevice, "emulated", True)
    (line,) = ended(2, *PROFILE, "MNK=64").err.splitlines()
    assert "Profiling takes a real GPU, and NVIDIA H200 is emulated here" in line


@pytest.mark.parametrize(
    ("tool", "text", "told"),
    [
        ("cmake", "#!/bin/sh\necho no compiler\nexit 1\n", "programs could not be built: "),
        ("ncu", "#!/bin/sh\necho ==ERROR== ERR_NVGPUCTRPERM\n", "RestrictProfilingToAdminUsers=0"),
        ("ncu", "#!/bin/sh\necho C: max error 1: WRONG\n", "gemm_64x64x64_nn is wrong: "),
        ("ncu", "#!/bin/sh\nexit 9\n", "made no profile of gemm_64x64x64_nn: "),
        pytest.param(
            "ncu",
            "#!/bin/sh\necho No kernels were profiled.\n",
            "made no profile",
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["build", "forbidden", "wrong", "failing", "empty"],
)
def test_what_a_tool_cannot_do_is_told_in_one_sentence(tools, tool, text, told):
    put(tools, tool, text)
    (line,) = ended(1, *PROFILE, "MNK=64 layout=nn").err.splitlines()
    assert told in line
    shown = Path("out", "build.log" if tool == "cmake" else "gemm_64x64x64_nn.log").read_text()
    assert shown == "".join(f"{said[5:]}\n" for said in text.splitlines() if said[:5] == "echo ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["MNK"], "which is not understood: give sizes such as"),
        (["MNK=64", "--contender", "mkl"], "no contender 'mkl': choose from template"),
        (["MNK=64", "--contender", "tvm"], "no records for gemm_64x64x64_nn"),
    ],
)
def test_bad_input_is_told_in_one_sentence(tools, arguments, told):
    (line,) = ended(2, *PROFILE, *arguments).err.splitlines()
    assert told in line
    assert not (tools / "called.jsonl").exists()


def test_a_full_folder_is_left_alone():
    Path("out").mkdir()
    Path("out/mine").write_text("mine")
    assert "out is not empty" in ended(2, *PROFILE, "MNK=64").err
