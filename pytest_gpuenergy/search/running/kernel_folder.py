"""The folder of one kernel's search: what was evaluated, what it gave, and where it stands.

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
from pytest_gpuenergy.search.running.search_state import (
    Identity,
    SearchState,
    read_lines,
    read_state,
)
from pytest_gpuenergy.search.spec.kernel_spec import KernelSpec, State
from pytest_gpuenergy.search.spec.spec_file import write_spec
from pytest_gpuenergy.search.trust.result import RESULT_VERSION, Gain, Result
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    decode,
    drop_torn_line,
    dump,
    encode,
    is_there,
    lock,
    open_file,
    read_bytes,
    schema_version,
    shown,
    write_atomically,
)
from pytest_gpuenergy.tuning import writing

BASELINE, VARIANTS = "baseline", "variants"
SPEC_JSON, STATE_JSON = "spec.json", "search_state.json"
EVENTS_JSONL, TRACE_MD = "events.jsonl", "trace.md"
_RESULT, _COMPARISON, _BEST, _GPUS = "result.json", "comparison.json", "best", "gpus"
_T = TypeVar("_T")
_LARGEST_BYTES = 1 << 20
_LARGEST_LIST_BYTES = 1 << 30


class KernelFolder:
    """``OUTDIR/kernels/_NAME``, held by one process at a time; a context manager.

    Args:
        outdir: where all kernels are.
        spec: of the kernel.
        identity: of the search.
        resume: whether a search that is there is to be continued.

    Attributes:
        path: of the folder.
        earlier: the state of the search that is continued; None of a new one.

    Raises:
        InputError: it contains a search that is not to be continued, or another one, or another
            process is searching there.
        OutputError: it cannot be written.
    """

    def __init__(self, outdir: Path, spec: KernelSpec, identity: Identity, *, resume: bool) -> None:
        self.path = outdir / "kernels" / f"_{spec.name}"
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
            self._noted = _noted_in(events)
            self._begin(identity, spec, resume=resume)
            self._stack = stack.pop_all()

    def place(self, state_id: str) -> Path:
        """The folder of a state; `BASELINE` is that of the baseline."""
        return self.path / (state_id if state_id == BASELINE else f"{VARIANTS}/{state_id}")

    def known(self, state_id: str) -> Result | None:
        """The result of a state that was evaluated before.

        Raises:
            InputError: it is damaged.
        """
        found = _read(self.place(state_id) / _RESULT, "result", Result)
        if found is not None and found.schema_version != RESULT_VERSION:
            raise InputError(
                f"{self.place(state_id)} has a result of schema_version {found.schema_version}, "
                f"but this gpuenergy reads {RESULT_VERSION}: name another --outdir."
            )
        return found

    def known_baselines(self) -> dict[str, Result]:
        """The results of the baseline on other GPUs than the first one, by UUID.

        Raises:
            InputError: one is damaged.
        """
        paths = sorted((self.place(BASELINE) / _GPUS).glob("*.json"))
        found = [_read(path, "result", Result) for path in paths]
        return {one.gpu: one for one in found if one is not None}

    def keep_baseline(self, result: Result) -> None:
        """Write the result of the baseline on another GPU than the first one.

        Raises:
            OutputError: it cannot be written.
        """
        path = self.place(BASELINE) / _GPUS / f"{result.gpu}.json"
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, dump(result), durable=True)

    def known_gain(self, state_id: str) -> Gain | None:
        """The comparison of a state with the baseline, if it was made before.

        Raises:
            InputError: it is damaged.
        """
        return _read(self.place(state_id) / _COMPARISON, "comparison", Gain)

    def keep_gain(self, gain: Gain) -> None:
        """Write the comparison of a state with the baseline.

        Raises:
            OutputError: it cannot be written.
        """
        path = self.place(gain.id) / _COMPARISON
        with writing(path):
            write_atomically(path, dump(gain), durable=True)

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
        """Write what was evaluated, and last of all its result.

        Args:
            state_id: of what was evaluated; `BASELINE` is the baseline.
            control: what was asked for.
            run: in which run.
            kernel: what ran; None if there could be none.
            listings: see `Device.listings`.
            result: what became of it.
            diff: to the state that it was made from.

        Raises:
            OutputError: it cannot be written.
        """
        place = self.place(state_id)
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
        with writing(place):
            place.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                write_atomically(place / name, text, durable=name == _RESULT)

    def event(self, kind: str, **fields: Any) -> None:
        """Append to ``events.jsonl``, unless the same event of the same ``id`` is there already.

        Raises:
            OutputError: it cannot be written.
        """
        key = (kind, fields.get("id"))
        if key in self._noted:
            return
        with writing(self.path / EVENTS_JSONL):
            self._events.write(encode({"event": kind, **fields}).decode() + "\n")
        self._noted.add(key)

    def write_state(self, state: SearchState) -> None:
        """Replace ``search_state.json``.

        Raises:
            OutputError: it cannot be written.
        """
        with writing(self.path / STATE_JSON):
            write_atomically(self.path / STATE_JSON, dump(state))

    def write_trace(self, text: str) -> None:
        """Replace ``trace.md``.

        Raises:
            OutputError: it cannot be written.
        """
        with writing(self.path / TRACE_MD):
            write_atomically(self.path / TRACE_MD, text)

    def link_best(self, state_id: str) -> None:
        """Let ``best`` lead to the folder of a state.

        Raises:
            OutputError: it cannot be written.
        """
        draft = self.path / f".{_BEST}-{os.getpid()}"
        with writing(self.path / _BEST):
            draft.unlink(missing_ok=True)
            draft.symlink_to(self.place(state_id).relative_to(self.path))
            draft.replace(self.path / _BEST)

    def _begin(self, identity: Identity, spec: KernelSpec, *, resume: bool) -> None:
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
        with suppress(OSError):  # a line that could not be written has been reported already
            self._stack.close()


def _read(path: Path, what: str, kind: type[_T]) -> _T | None:
    """The record in a file; None if there is none."""
    if not is_there(path):
        return None
    try:
        return decode(read_bytes(path, what, _LARGEST_BYTES), kind)
    except FormError as error:
        raise InputError(
            f"The {what} {path} cannot be used, because {error}: delete its folder to have it "
            "measured again."
        ) from None


class _Event(Struct, frozen=True):
    event: str = ""
    id: str | None = None


def _noted_in(path: Path) -> set[tuple[str, str | None]]:
    """The events that a file has, each by its kind and id."""
    events = read_lines(path, "list of events", _Event, _LARGEST_LIST_BYTES)
    return {(one.event, one.id) for one in events}


CONTROL_VERSION = 1
"""``schema_version`` of the files written and read here."""

_LARGEST_CONTROL_BYTES = 16 << 20


class Control(Struct, frozen=True, kw_only=True):
    """``control.json``: the evaluation of one state.

    Attributes:
        spec: path of the kernel spec, from the folder of this file.
        state: what to evaluate.
        objective: what the search minimizes.
        seed: of the search.
        gpus: as ``--gpus`` takes it.
        place: of the GPU among them, from 0.
        powercap: the power limit, as ``--powercap`` takes it.
        smclock: the clock, as ``--smclock`` takes it.
        parent: the id of the state that the move was made to; None of the baseline.
        move: its name.
        what: the place and the parameters of the move.
        schema_version: of this file.
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


def read_control(path: Path) -> Control:
    """Read a ``control.json``.

    Raises:
        InputError: it cannot be read.
    """
    content = read_bytes(path, "control file", _LARGEST_CONTROL_BYTES)
    try:
        version = schema_version(content)
        if version != CONTROL_VERSION:
            raise FormError(
                f"its schema_version is {shown(version)}, but this gpuenergy reads "
                f"{CONTROL_VERSION}"
            )
        return decode(content, Control)
    except FormError as error:
        raise InputError(f"The control file {path} cannot be used, because {error}.") from None
