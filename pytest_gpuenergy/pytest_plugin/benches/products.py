"""The options and fixtures of the benches that compare contenders.

These are `bench_items.test_gemm`, of matrix products, and `bench_items.test_conv2d_contenders`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuenergy import engine, report as reports, tuners
from pytest_gpuenergy.pytest_plugin.declared_options import RUN, runs_items
from pytest_gpuenergy.pytest_plugin.outputs import collection_error
from pytest_gpuenergy.support import (
    GpuEnergyError,
    InputError,
    nearest,
    show_section,
    terminal_width,
)
from pytest_gpuenergy.tuning import given_folder
from pytest_gpuenergy.workloads import (
    Conv2d,
    Gemm,
    in_variants,
    measured_products,
    network,
    parse_variants,
    products_in,
    search_options_notice,
    split_words,
)

if TYPE_CHECKING:
    from pytest_gpuenergy.devices import Device
    from pytest_gpuenergy.kernels import AnyKernel
    from pytest_gpuenergy.pytest_plugin.run_plugin import RunPlugin
    from pytest_gpuenergy.tuners import ContenderSetup, KernelStore

CONVOLUTIONS = "test_conv2d_contenders"
"""The name of the test of convolutions."""
_ITEM = re.compile(rf"::(test_gemm|{CONVOLUTIONS})\[(.+?)-(\w+)-(?:current|[0-9])")
"""Finds the test, the workload and the contender in an item's id."""
_PLURALS = {"test_gemm": "products", CONVOLUTIONS: "convolutions"}
_COMPUTED = {Gemm.kind: "matrix products", Conv2d.kind: "convolutions"}
"""What is compared, by the kind of workload."""
_NAMES_WORKLOAD = re.compile(r"[0-9_=]")
"""Matches words that differ from one workload to another."""
ALL_CONTENDERS = "all"
NETWORK = "gemm"
RECORDS = Path("bench", "records")


def left_out_lines(outcomes: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """Return a line for each contender and each kind of reason for which its items were skipped.

    Reasons are of one kind if they differ only in names, sizes and numbers; the line has the first.

    Args:
        outcomes: reports of items by outcome, in the form of a terminal reporter's ``stats``.
    """
    everything = [call for reports in outcomes.values() for call in _calls(reports)]
    workloads: dict[tuple[str, str], set[str]] = {}
    for _, test, workload, contender in everything:
        workloads.setdefault((test, contender), set()).add(workload)
    kinds: dict[tuple[str, str, str], tuple[str, set[str]]] = {}
    for report, test, workload, contender in _calls(outcomes.get("skipped", ())):
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        own = reason.replace(workload, "=")  # a name of a user's may be any word
        alike = " ".join(word for word in own.split() if not _NAMES_WORKLOAD.search(word))
        kinds.setdefault((test, contender, alike), (reason, set()))[1].add(workload)
    for (test, contender), every in workloads.items():
        for (where, name, _), (reason, without) in kinds.items():
            if (where, name) == (test, contender):
                share = "all" if len(without) == len(every) else f"{len(without)} of"
                told = f" in {share} {len(every)} {_PLURALS[test]}" if len(every) > 1 else ""
                yield f"{contender}{told}: {reason}"


def _calls(reports: Iterable[Any]) -> Iterator[tuple[Any, str, str, str]]:
    """Return the reports of items that ran, each with its test, workload and contender."""
    for report in reports:
        if getattr(report, "when", None) == "call" and (found := _ITEM.search(report.nodeid)):
            yield report, found[1], found[2], found[3]


class ContenderKernels:
    """The kernels of contenders, each made once for all power caps.

    The kernels of templates for products are chosen without the GPU. That of the first item is
    therefore begun while the GPU is claimed. While an item is measured, the kernel of the next one
    is compiled, or verified where the GPU is emulated.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[str, Gemm | Conv2d, str], AnyKernel | InputError] = {}
        self._ahead: dict[tuple[str, Gemm | Conv2d, str], Future[AnyKernel]] = {}
        self._pool = ThreadPoolExecutor(1, "kernels-ahead")

    def kernel(self, contender: str, workload: Gemm | Conv2d, setup: ContenderSetup) -> AnyKernel:
        """Return a contender's kernel for a workload.

        An error is raised again when the kernel is asked for again, except for a `GpuEnergyError`
        other than a wrong input: the candidates may have failed under one power cap only.
        """
        key = (contender, workload, setup.gpu.uuid)
        found = self._made.get(key)
        if found is None:
            ahead = self._ahead.pop(key, None)
            try:
                if ahead is None or ahead.cancel():
                    found = tuners.CONTENDERS[contender](workload, setup)
                else:
                    found = ahead.result()
            except InputError as error:
                found = error
            self._made[key] = found
        if isinstance(found, InputError):
            raise found
        return found

    def expect(self, item: pytest.Item, setup: ContenderSetup) -> None:
        """Begin with the kernel of the first item after ``item`` that has another one."""
        run: RunPlugin | None = item.config.pluginmanager.get_plugin(RUN)
        assert run is not None  # it has the GPU
        own = _item_contender(item)
        after = item.session.items[item.session.items.index(item) + 1 :]
        others = (found for later in after if (found := _item_contender(later)) not in (own, None))
        following = next(others, None)
        if following is None or run.session.link is not None:  # workers share the items
            return
        contender, workload = following
        setup.gpu.expect_modules(tuners.CONTENDER_MODULES.get(contender, ()))
        if (made := self.begin(contender, workload, setup)) is None:
            return
        if setup.gpu.emulated:
            run.session.expect(lambda: (made.result(), workload))
        else:
            run.session.expect_workload(workload)

    def begin(
        self, contender: str, workload: Gemm | Conv2d, setup: ContenderSetup
    ) -> Future[AnyKernel] | None:
        """Begin with a kernel in the background; return None if it has begun or needs the GPU."""
        key = (contender, workload, setup.gpu.uuid)
        if contender != _CHOSEN_WITHOUT_GPU or not isinstance(workload, Gemm):
            return None
        if key in self._made or key in self._ahead:
            return None

        def make() -> AnyKernel:
            kernel: AnyKernel = tuners.CONTENDERS[contender](workload, setup)
            if not setup.gpu.emulated:
                setup.gpu.prepare([kernel])
                # Remembers the numbers in the kernel's text, which its verification will need.
                engine.drawings_of(engine.SEEDS, workload, kernel)
            return kernel

        made = self._ahead[key] = self._pool.submit(make)
        return made

    def has_begun(self, contender: str, workload: Gemm | Conv2d, setup: ContenderSetup) -> bool:
        """Return whether a kernel is made in the background, which does not use the GPU."""
        return (contender, workload, setup.gpu.uuid) in self._ahead

    def close(self) -> None:
        """Forget what has not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)


_CHOSEN_WITHOUT_GPU = "template"
"""The contender whose kernels of products are chosen by an estimate alone."""
_KERNELS = pytest.StashKey[ContenderKernels]()
"""The kernels that have begun when items have been collected."""


def _item_contender(item: pytest.Item) -> tuple[str, Gemm | Conv2d] | None:
    """Return the contender and the workload of an item; None if it has none."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    workload = params.get("gemm_workload") or params.get("bench_workload")
    return (params["contender"], workload) if workload and "contender" in params else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the benches."""
    group = parser.getgroup("bench", "this repository's benches")
    group.addoption(
        "--contenders",
        metavar="LIST",
        nargs="?",
        const=ALL_CONTENDERS,
        help="Compare contenders in convolutions, as products always do: all, which is also meant "
        "by the option alone, or such as template,cudnn, in products too",
    )
    group.addoption(
        "--gemm",
        metavar="SIZES",
        help="Matrix products, such as 'MNK=4096; M=512 N=256 K=640'; in the layouts nn and nt "
        "unless layout= chooses others (default: the network gemm)",
    )
    group.addoption(
        "--records",
        metavar="DIR",
        help="Folder of record files, or with one such folder per GPU model (default: "
        f"{RECORDS} here or in a parent folder)",
    )
    group.addoption(
        "--cutlass",
        metavar="PATH",
        help="Checkout of CUTLASS, or its folder of headers, for the contender cutlass (default: "
        "those in the package nvidia-cutlass or apache-tvm)",
    )
    group.addoption(
        "--cutlass-profiler",
        metavar="PATH",
        help="Program cutlass_profiler of a build of CUTLASS, whose fastest kernel takes part too",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize ``gemm_workload`` and, with it, ``contender``.

    A contender that is not named in ``--contenders`` has no items in products of another kind than
    it has, see `tuners.takes_part`.
    """
    if "gemm_workload" not in metafunc.fixturenames:
        return

    config = metafunc.config
    try:
        chosen = products(config)
        records_folder(config)  # it must be one
        tuners.check_cutlass(_path(config, "--cutlass"), _path(config, "--cutlass-profiler"))
        contenders = chosen_contenders(config, Gemm.kind)
    except GpuEnergyError as error:
        raise collection_error(metafunc.config, error) from None
    if "contender" not in metafunc.fixturenames:
        metafunc.parametrize("gemm_workload", chosen, ids=[product.name for product in chosen])
        return
    named = split_words([config.getoption("--contenders") or ALL_CONTENDERS])
    pairs = [
        (product, contender)
        for product in chosen
        for contender in contenders
        if contender in named or tuners.takes_part(contender, product)
    ]
    ids = [f"{product.name}-{contender}" for product, contender in pairs]
    metafunc.parametrize(("gemm_workload", "contender"), pairs, ids=ids)


def chosen_contenders(config: pytest.Config, kind: str) -> list[str]:
    """Return the contenders of ``--contenders`` in a kind of workload, by default all.

    The contender of CUTLASS's profiler takes part only with ``--cutlass-profiler``.

    Raises:
        InputError: there is no contender of a given name, or no given contender computes this kind.
    """
    known = tuners.CONTENDERS_IN[kind]
    left_out = () if config.getoption("--cutlass-profiler") else (tuners.CUTLASS_PROFILER,)
    given = config.getoption("--contenders")
    words = split_words([given or ALL_CONTENDERS])
    names = [*known] if words == [ALL_CONTENDERS] else words
    unknown = [name for name in names if name not in tuners.CONTENDERS]
    found = [name for name in dict.fromkeys(names) if name in known and name not in left_out]
    if unknown or not found:
        wrong = unknown[0] if unknown else given
        where = "" if unknown else f" in {_COMPUTED[kind]}"
        choices = ", ".join(name for name in known if name not in left_out)
        raise InputError(
            f"--contenders {wrong!r:.60} names no contender{where}: choose from {choices}, or "
            f"write --contenders={ALL_CONTENDERS}, also in front of a path."
        )
    return found


def _without_part(config: pytest.Config, kinds: Collection[str]) -> Iterator[str]:
    """Yield a line for each contender of ``--contenders`` that computes none of the kinds."""
    computed = {name for kind in kinds for name in tuners.CONTENDERS_IN[kind]}
    for name in dict.fromkeys(split_words([config.getoption("--contenders") or ALL_CONTENDERS])):
        others = [kind for kind, names in tuners.CONTENDERS_IN.items() if name in names]
        if others and name not in computed:
            yield (
                f"bench: the contender {name} takes no part, since it computes "
                f"{_COMPUTED[others[0]]} only"
            )


def compares_convolutions(config: pytest.Config) -> bool:
    """Return whether contenders in convolutions are asked for: by option, id or ``-k``."""
    named = " ".join([*config.args, config.getoption("keyword") or ""])
    return config.getoption("--contenders") is not None or CONVOLUTIONS in named


def pytest_report_collectionfinish(
    config: pytest.Config, items: Sequence[pytest.Item]
) -> list[str]:
    """Show where the records of the selected products come from, and options without effect."""
    chosen = [item.callspec.params for item in items if hasattr(item, "callspec")]
    gemm = [params for params in chosen if "gemm_workload" in params]
    compared = gemm + [params for params in chosen if {"bench_workload", "contender"} <= {*params}]
    sizes = config.getoption("--gemm")
    if items and not gemm and sizes is not None:
        return ["bench: --gemm has no effect, since no item of bench/test_gemm.py is selected"]
    ignored = search_options_notice(sizes) if gemm and sizes else None
    lines = [f"bench: {ignored}"] if ignored else []
    if gemm and len(gemm) == len(items) and config.getoption("--layout", None) is not None:
        lines.append(
            "bench: --layout has no effect, since it is of convolutions: products have layout= in "
            "--gemm"
        )
    if compared:
        kinds = {Gemm.kind for _ in gemm} | {Conv2d.kind for _ in compared[len(gemm) :]}
        lines += _without_part(config, kinds)
    tuned = dict.fromkeys(
        (
            params.get("gemm_workload") or params["bench_workload"],
            tuners.TUNED_BY[params["contender"]],
        )
        for params in compared
        if params.get("contender") in tuners.TUNED_BY
    )
    run: RunPlugin | None = config.pluginmanager.get_plugin(RUN)
    if run is None or not tuned:
        return lines
    folder, gpu = records_folder(config), run.session.card.device
    sources: dict[Path, str] = {}
    unfit: list[str] = []
    for workload, tuner in tuned:
        with contextlib.suppress(GpuEnergyError):  # its own item reports it
            found, rank = tuners.best_record(folder, workload, gpu, tuner)
            assert found.folder is not None  # it was read
            if rank is None:
                unfit.append(workload.name)
            else:
                sources[found.folder] = found.gpu
    lines += source_lines(sources, gpu.name)
    if unfit:
        names = unfit[0] + (f" and {len(unfit) - 1} more" if unfit[1:] else "")
        lines.append(
            f"bench: no record for {names} fits {gpu.name}: parameters are chosen as without "
            "records"
        )
    return lines


def pytest_collection_finish(session: pytest.Session) -> None:
    """Choose and compile the first item's kernel ahead of time, if that does not use the GPU."""
    config = session.config
    run: RunPlugin | None = config.pluginmanager.get_plugin(RUN)
    first = _item_contender(session.items[0]) if session.items else None
    if run is None or run.session.link is not None or first is None or not runs_items(config):
        return

    kernels = config.stash[_KERNELS] = ContenderKernels()
    with (
        contextlib.suppress(GpuEnergyError),
        tuners.KernelStore() as store,
    ):  # its own item reports it
        # Templates do not need the store.
        setup = tuners.ContenderSetup(run.session.card.device, records_folder(config), store)
        run.session.heats_at_once = kernels.begin(*first, setup) is not None


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show contenders side by side, and which have no figures and why, below the other tables."""
    run: RunPlugin | None = config.pluginmanager.get_plugin(RUN)
    if run is not None and config.get_verbosity() >= 0:
        lines = _compared_lines(run, terminal_width(is_terminal=terminalreporter.isatty))
        show_section(terminalreporter, "contenders side by side", lines)
    lines = left_out_lines(terminalreporter.stats)
    show_section(terminalreporter, "contenders left out", lines)


def _compared_lines(run: RunPlugin, width: int | None) -> Iterator[str]:
    with contextlib.suppress(GpuEnergyError, OSError):  # told where outputs are written
        if report := run.session.outcome:
            rows = [m for m in report.measurements if _ITEM.search(m.node_id)]
            yield from reports.side_by_side(rows, emulated=report.run.emulated, width=width)


@pytest.fixture(scope="session")
def kernel_store() -> Iterator[tuners.KernelStore]:
    """The store that makes the kernels of TVM's records."""
    with tuners.KernelStore() as store:
        yield store


@pytest.fixture(scope="session")
def contender_kernels(request: pytest.FixtureRequest) -> Iterator[ContenderKernels]:
    """The kernels of contenders, of all items."""
    kernels = request.config.stash.get(_KERNELS, None) or ContenderKernels()
    yield kernels
    kernels.close()


@pytest.fixture
def contender_setup(
    request: pytest.FixtureRequest, gpu: Device, kernel_store: KernelStore
) -> tuners.ContenderSetup:
    """The GPU, records and programs with which contenders make their kernels."""
    config = request.config
    return tuners.ContenderSetup(
        gpu,
        records_folder(config),
        kernel_store,
        cutlass=_path(config, "--cutlass"),
        cutlass_profiler=_path(config, "--cutlass-profiler"),
    )


def products(config: pytest.Config) -> list[Gemm]:
    """Return the products of ``--gemm``, or all bundled ones and those that ids name.

    They are in the modes of ``--mode``, if it is given, which is an option of this repository.

    Raises:
        InputError: the sizes or modes are not understood, ask for a tuning, or name another mode.
    """
    found = in_variants(_products(config), parse_variants(config.getoption("--mode", None)))
    return [product for product in found if isinstance(product, Gemm)]


def _products(config: pytest.Config) -> list[Gemm]:
    if (text := config.getoption("--gemm")) is None:
        bundled = [product for product in network(NETWORK) if isinstance(product, Gemm)]
        if config.getoption("--quick", False):
            bundled = [bundled[0], bundled[-1]]
        named = products_in(" ".join([*config.args, config.getoption("keyword") or ""]))
        return list({product.name: product for product in (*bundled, *named)}.values())
    return measured_products(text)


def records_folder(config: pytest.Config) -> Path:
    """Return the folder of ``--records``, or that of the project's records.

    Raises:
        InputError: there is no folder of that name.
    """
    if given := _path(config, "--records"):
        return given_folder(given)
    return nearest(config.rootpath, RECORDS) or config.rootpath / RECORDS


def _path(config: pytest.Config, option: str) -> Path | None:
    given = config.getoption(option)
    return config.invocation_params.dir / str(given) if given else None


def source_lines(sources: Mapping[Path, str], gpu: str) -> list[str]:
    """Return lines that tell which folders kernels for ``gpu`` come from, and their GPUs."""
    why = "as" if len(sources) == 1 else "where"
    return [
        f"bench: kernels from {source}, tuned for {tuned_for}"
        + ("" if tuned_for == gpu else f", {why} there are none for {gpu}")
        for source, tuned_for in sources.items()
    ]
