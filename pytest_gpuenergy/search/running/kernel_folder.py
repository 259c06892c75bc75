"""The folder of one kernel's search: the forms of its files, reading and writing them.

Results are complete or absent: the files of a variant are written first, and ``result.json`` last.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from pytest_gpuenergy.kernels import AnyKernel, Kernel
from pytest_gpuenergy.record import Metric, RunInfo
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, State
from pytest_gpuenergy.search.spec.spec_file import write_spec
from pytest_gpuenergy.search.strategy.graph import GraphRecord
from pytest_gpuenergy.search.validation.result import (
    RESULT_VERSION,
    Result,
    SearchNode,
    VariantGain,
)
from pytest_gpuenergy.support import (
    InputError,
    drop_torn_line,
    dump,
    encode,
    is_there,
    lock,
    open_file,
    read_record,
    read_records,
    write_atomically,
)
from pytest_gpuenergy.tuning import writing

BASELINE, VARIANTS = "baseline", "variants"
SPEC_JSON, STATE_JSON = "spec.json", "search_state.json"
EVENTS_JSONL, TRACE_MD = "events.jsonl", "trace.md"
_RESULT, _COMPARISON, _BEST, _GPUS = "result.json", "comparison.json", "best", "gpus"

STATE_VERSION, CONTROL_VERSION = 1, 1
"""The ``schema_version`` of ``search_state.json`` and of control files."""
_MAX_STATE_BYTES = 256 << 20
"""The limit on the size of ``search_state.json``."""
_MAX_CONTROL_BYTES = 16 << 20
"""The limit on the size of a control file, which contains the source of a state."""
_MAX_BYTES = 1 << 20
"""The limit on the size of a result or a comparison."""
_MAX_LIST_BYTES = 1 << 30
"""The limit on the size of the list of events."""
_T = TypeVar("_T")


class SearchIdentity(Struct, frozen=True, kw_only=True):
    """The settings that a search must share with the one that it continues.

    Attributes:
        spec: the hash of the kernel spec with its source.
        gpu: the name of the GPU.
        emulated: whether the GPU is emulated.
        power_limit_w: the power limit that the card enforces; None if it reports none.
        sm_clock_mhz: the clock to which the SMs are locked; None if they are not.
        objective: the metric that the search minimizes.
        seed: the seed of the search.
        strategy: the parameters of the strategy, see `SearchParameters`.
    """

    spec: str
    gpu: str
    emulated: bool
    power_limit_w: float | None
    objective: Metric
    seed: int
    strategy: dict[str, float] = {}
    sm_clock_mhz: int | None = None

    @property
    def settings(self) -> str:
        """The settings of the card, as a clause such as `` under 450 W at 1500 MHz``."""
        limit = "" if self.power_limit_w is None else f" under {self.power_limit_w:g} W"
        return limit + ("" if self.sm_clock_mhz is None else f" at {self.sm_clock_mhz} MHz")


class SearchState(Struct, frozen=True, kw_only=True):
    """``search_state.json``: a search of one kernel.

    Attributes:
        width: the number of variants that are evaluated at the same time, which is the number of
            GPUs with which the search began. A search that continues on other GPUs keeps this
            number, because it chooses the same variants only then.
        builds: the number of evaluated variants, without the baseline.
        nodes: the states in the order of their evaluation, the baseline first.
        incumbent: the id of the best state: first by its cost, and at the end by `gains`.
        finished: whether the search has tried everything or spent its budget.
        gains: the gains of the best variants, the best by its cost first, until one is accepted.
        graph: the graph of the states, with the actions, values and visits of the strategy. A
            search that is continued builds it again from the results.
    """

    identity: SearchIdentity
    width: int = 1
    builds: int = 0
    nodes: tuple[SearchNode, ...] = ()
    incumbent: str | None = None
    finished: bool = False
    gains: tuple[VariantGain, ...] = ()
    graph: GraphRecord | None = None
    schema_version: int = STATE_VERSION


class Control(Struct, frozen=True, kw_only=True):
    """``control.json``: the evaluation of one state, which can be run alone.

    Attributes:
        spec: the path of the kernel spec, relative to the folder of this file.
        gpus, powercap, smclock: the settings of the GPUs, as the options take them.
        place: the place of the GPU among them, from 0.
        parent: the id of the state to which the move was made; None for the baseline.
        what: the place and the parameters of the move.
    """

    spec: str
    state: State
    objective: Metric
    seed: int
    gpus: str
    place: int = 0
    powercap: str
    smclock: str = "current"
    parent: str | None = None
    move: str = ""
    what: str = ""
    schema_version: int = CONTROL_VERSION


class _Event(Struct, frozen=True):
    event: str = ""
    id: str | None = None


def read_state(path: Path) -> SearchState:
    """Read a ``search_state.json``.

    Raises:
        InputError: the file cannot be read.
    """
    return read_record(
        path,
        "state of a search",
        SearchState,
        _MAX_STATE_BYTES,
        version=STATE_VERSION,
        remedy="name another --outdir",
    )


def read_control(path: Path) -> Control:
    """Read a ``control.json``.

    Raises:
        InputError: the file cannot be read.
    """
    return read_record(path, "control file", Control, _MAX_CONTROL_BYTES, version=CONTROL_VERSION)


class KernelFolder:
    """``OUTDIR/kernels/_NAME``, held by one process at a time; a context manager.

    Methods that read raise `InputError` if a file is damaged, and methods that write raise
    `OutputError` if a file cannot be written.

    Args:
        outdir: the folder for all kernels.
        spec: the spec of the kernel.
        identity: the identity of the search.
        resume: whether to continue an existing search.

    Attributes:
        path: the path of the folder.
        identity: the identity of the search.
        earlier: the state of the search that is continued; None for a new search.

    Raises:
        InputError: the folder contains a search and ``resume`` is not set, or contains another
            search, or another process is searching there.
    """

    def __init__(
        self, outdir: Path, spec: KernelSpec, identity: SearchIdentity, *, resume: bool
    ) -> None:
        self.path = outdir / "kernels" / f"_{spec.name}"
        self.identity = identity
        self.earlier: SearchState | None = None
        with ExitStack() as stack, writing(self.path):
            for name in (BASELINE, VARIANTS):
                (self.path / name).mkdir(parents=True, exist_ok=True)
            events = self.path / EVENTS_JSONL
            self._events = stack.enter_context(
                open(events, "a", buffering=1, encoding="utf-8", opener=open_file)
            )
            if not lock(self._events.fileno(), wait=False):
                raise InputError(
                    f"Another process is searching in {self.path}: wait for it to end, or name "
                    "another --outdir."
                )
            drop_torn_line(events)
            remedy = "name another --outdir"
            read = read_records(events, "list of events", _Event, _MAX_LIST_BYTES, remedy=remedy)
            self._noted = {(record.event, record.id) for record in read}
            self._begin(identity, spec, resume=resume)
            self._stack = stack.pop_all()

    def place(self, state_id: str) -> Path:
        """Return the folder of a state; the baseline has the id `BASELINE`."""
        return self.path / (state_id if state_id == BASELINE else f"{VARIANTS}/{state_id}")

    def earlier_result(self, state_id: str) -> Result | None:
        """Return the result of a state that was evaluated before; None if there is none."""
        result = _read_record(self.place(state_id) / _RESULT, "result", Result)
        if result is not None and result.schema_version != RESULT_VERSION:
            raise InputError(
                f"{self.place(state_id)} has a result of schema_version {result.schema_version}, "
                f"but this gpuenergy reads {RESULT_VERSION}: name another --outdir."
            )
        return result

    def earlier_baselines(self) -> dict[str, Result]:
        """Return the results of the baseline on all GPUs except the first one, by UUID."""
        paths = sorted((self.place(BASELINE) / _GPUS).glob("*.json"))
        results = [_read_record(path, "result", Result) for path in paths]
        return {result.gpu: result for result in results if result is not None}

    def keep_baseline(self, result: Result) -> None:
        """Write the result of the baseline on a GPU that is not the first one."""
        self._write(f"{BASELINE}/{_GPUS}/{result.gpu}.json", dump(result), durable=True)

    def earlier_gain(self, state_id: str) -> VariantGain | None:
        """Return the comparison of a state with the baseline, if it was made before."""
        return _read_record(self.place(state_id) / _COMPARISON, "comparison", VariantGain)

    def keep_gain(self, gain: VariantGain) -> None:
        """Write the comparison of a state with the baseline."""
        self._write(f"{VARIANTS}/{gain.id}/{_COMPARISON}", dump(gain), durable=True)

    def keep(
        self,
        state_id: str,
        control: Control,
        run: RunInfo,
        kernel: AnyKernel | None,
        listings: Mapping[str, str],
        result: Result,
        diff: str = "",
    ) -> None:
        """Write the files of a state, and last of all its result.

        The baseline has the id `BASELINE`. Without a ``kernel`` there could be none; ``listings``
        are the compiler's, see `Device.listings`, and ``diff`` is that to the parent.
        """
        files: dict[str, str] = {"control.json": dump(control), "run.json": dump(run)}
        if kernel is not None:
            name = "kernel.cu" if isinstance(kernel, Kernel) else "kernel_module.py"
            files[name] = str(kernel.content["source"])
        files |= {f"kernel.{name}": text for name, text in listings.items()}
        if diff:
            files["candidate.diff"] = diff
        files["stdout.log"] = "".join(
            f"{step}: {seconds:.3f} s\n" for step, seconds in result.steps_s.items()
        )
        files["stderr.log"] = f"{result.message}\n" if result.message else ""
        files[_RESULT] = dump(result)
        place = self.place(state_id).relative_to(self.path)
        for name, text in files.items():
            self._write(f"{place}/{name}", text, durable=name == _RESULT)

    def event(self, kind: str, **fields: Any) -> None:
        """Append to ``events.jsonl``, unless it already has the same event of the same ``id``."""
        key = (kind, fields.get("id"))
        if key in self._noted:
            return
        with writing(self.path / EVENTS_JSONL):
            self._events.write(encode({"event": kind, **fields}).decode() + "\n")
        self._noted.add(key)

    def write_state(self, state: SearchState) -> None:
        """Replace ``search_state.json``."""
        self._write(STATE_JSON, dump(state))

    def write_trace(self, text: str) -> None:
        """Replace ``trace.md``."""
        self._write(TRACE_MD, text)

    def link_best(self, state_id: str) -> None:
        """Make ``best`` a link to the folder of a state."""
        draft = self.path / f".{_BEST}-{os.getpid()}"
        with writing(self.path / _BEST):
            draft.unlink(missing_ok=True)
            draft.symlink_to(self.place(state_id).relative_to(self.path))
            draft.replace(self.path / _BEST)

    def _write(self, name: str, text: str, *, durable: bool = False) -> None:
        path = self.path / name
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, text, durable=durable)

    def _begin(self, identity: SearchIdentity, spec: KernelSpec, *, resume: bool) -> None:
        path = self.path / STATE_JSON
        if not is_there(path):
            if is_there(self.place(BASELINE) / _RESULT):
                raise InputError(
                    f"{self.path} has results, but no {STATE_JSON}, which says what they are of: "
                    "name another --outdir."
                )
            write_spec(spec, self.path / SPEC_JSON)
            self.write_state(SearchState(identity=identity))
            return
        if not resume:
            raise InputError(
                f"{self.path} already contains a search: continue it with --resume "
                "(--budget-builds includes its variants), or name another --outdir."
            )
        self.earlier = read_state(path)
        if self.earlier.identity != identity:
            what = next(
                name
                for name in identity.__struct_fields__
                if getattr(identity, name) != getattr(self.earlier.identity, name)
            )
            raise InputError(
                f"{self.path} contains a search with another {what}: name another --outdir."
            )

    def __enter__(self) -> KernelFolder:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # a line that could not be written was reported before
            self._stack.close()


def _read_record(path: Path, what: str, kind: type[_T]) -> _T | None:
    """Return the record in a file; None if there is no file."""
    if not is_there(path):
        return None
    remedy = "delete its folder to have it measured again"
    return read_record(path, what, kind, _MAX_BYTES, remedy=remedy)
