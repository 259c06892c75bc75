"""A process that launches a variant a few times, for Nsight Compute to profile.

``python -m pytest_gpuenergy.search.priors.profiled CONTROL_JSON GPU_UUID``; whoever starts it has
claimed the GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

LAUNCHES = 3
"""The last is profiled: by then the caches are as in a measurement."""


def main(words: Sequence[str]) -> int:
    """Launch the kernel of a control file, with the first set of sizes."""
    from pytest_gpuenergy.engine import arenas_for
    from pytest_gpuenergy.kernels import Job
    from pytest_gpuenergy.opening import open_device
    from pytest_gpuenergy.search.control import read_control
    from pytest_gpuenergy.search.spec.spec_file import read_spec
    from pytest_gpuenergy.search.spec.spec_workload import workload_of
    from pytest_gpuenergy.search.spec.state_kernel import kernel_of

    path, gpu = Path(words[0]), words[1]
    control = read_control(path)
    spec = read_spec(path.parent / control.spec)
    workload = workload_of(spec, spec.sizes[0], dict)
    kernel = kernel_of(spec, control.state, spec.sizes[0])
    with open_device(gpu) as device:
        job = Job.of(kernel, workload, seed=control.seed)
        with (
            arenas_for(workload, job.seed, device.arrays) as arenas,
            device.load(job, arenas) as loaded,
        ):
            for _ in range(LAUNCHES):
                loaded.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
