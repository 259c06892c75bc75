"""A project of a few lines that measures a kernel which is right: what several tests begin with."""

LEAN = '"--disable-plugin-autoload", "-p", "gpuenergy"'
"""Of ``addopts``: to load all plugins that are installed takes half a second or more, also in each
worker of pytest-xdist. Tests name those that they need: ``-p xdist``, ``-p benchmark``."""

QUICK = "-p no:hypothesispytest -p no:anyio -p no:slipcover"
"""For ``PYTEST_ADDOPTS``: leaves out what takes longest to load, and loads all other plugins as a
user's run does."""

NOT_NEEDED = tuple(
    f"-pno:{name}"
    for name in (
        "unraisableexception",  # looks through all objects for garbage
        *("doctest", "faulthandler", "legacypath", "logging", "pastebin", "setuponly"),
        *("setupplan", "stepwise", "subtests", "unittest"),
    )
)
"""Plugins of pytest that take a fifth of a short run in this process."""

INI = f"""
[tool.pytest.ini_options]
filterwarnings = ["error"]
gpu_device = "emulated"
gpuenergy_preheat = "0"
addopts = [{LEAN}]
"""
"""To compute the temperature of a card while it is heated up takes half the time of a short run."""

PARTS = '''
from pytest_gpuenergy.workloads import Contract, Scalar, Tensor

SOURCE = """
extern "C" __global__ void scale(const float* x, float* y, float factor) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = factor * x[i];
}
"""
LAUNCH = {"entry": "scale", "grid": 8, "block": 128, "arguments": ("x", "y", "factor")}
SCALE = Contract(
    "scale",
    (Tensor("x", (1024,), "float32", "input"), Tensor("y", (1024,), "float32", "output")),
    lambda inputs: {"y": 2 * inputs["x"]},
    flops=1024,
    values=(Scalar("factor", "float32", 2.0),),
)
'''
"""A module ``parts`` that the tests of the small project import."""

BENCH = """
from parts import LAUNCH, SCALE, SOURCE

def test_scale(powercap, load_kernel, energy_benchmark):
    energy_benchmark(load_kernel(SOURCE, **LAUNCH), workload=SCALE)
"""

LINE = "  y[i] = factor * x[i];"
SLOWER = f"""{LINE}
  for (int k = 1; k < 16; ++k) y[i] += x[(i * 33 * k) % 1024] - x[(i * 33 * k) % 1024];"""
"""Of the kernel: what it does, and how it does more than it has to."""
