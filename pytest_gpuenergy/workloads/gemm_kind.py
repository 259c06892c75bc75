"""How matrix products are written: on the command line, in pyproject.toml and in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads.gemm import LAYOUTS, MODES, Gemm
from pytest_gpuenergy.workloads.gemm_sizes import GRAMMAR, name_of, parse_gemm
from pytest_gpuenergy.workloads.given import check_names
from pytest_gpuenergy.workloads.workload import Workload

_SIZES = (
    (512, 256, 640),
    (512, 384, 256),
    (512, 512, 512),
    (512, 768, 3072),
    (512, 3072, 768),
    *((size, size, size) for size in (896, 1024, 1152, 1536, 2048, 3072, 4096, 8192)),
)


class GemmKind:
    """The kind ``gemm``; see `registry.WorkloadKind`."""

    name = Gemm.kind
    grammar = f"{GRAMMAR} [layout=nt] [mode=tf32]"
    example = "M=512 N=256 K=640 layout=nt"
    networks: Mapping[str, tuple[Gemm, ...]] = {
        "gemm": tuple(
            bare.called(name_of(bare))
            for sizes in _SIZES
            for layout in LAYOUTS
            for bare in [Gemm("", *sizes, layout)]
        )
    }

    def parse(self, text: str) -> Gemm | None:
        """The matrix product that ``text`` describes; None if it has another form."""
        return parse_gemm(text)

    def text_of(self, workload: Workload) -> str:
        """``M=512 N=256 K=640 layout=nt``, with whatever else is not as usual."""
        given = {name: value for name, value in workload.parameters.items() if name != "kind"}
        if given["mode"] == MODES[0]:
            del given["mode"]
        return " ".join(f"{name}={value}" for name, value in given.items())

    def from_sizes(self, name: str, sizes: Sequence[int]) -> Gemm:
        """From M, N and K, in layout nn and float32."""
        if len(sizes) != 3:
            raise InputError(f"gemm takes the three numbers M,N,K, not {len(sizes)} numbers.")
        m, n, k = sizes
        workload = Gemm(name, m, n, k)
        return workload if name else workload.called(name_of(workload))

    def from_parameters(self, name: str, parameters: Mapping[str, object]) -> Gemm:
        """From `Gemm.parameters`; all but the sizes may be missing."""
        known = [field for field in fields(Gemm) if field.name != "name"]
        check_names(self.name, known, parameters)
        return Gemm(name, **parameters)  # type: ignore[arg-type]  # it checks them all
