"""The process of a kernel: its sandbox, and answers that the kernel itself may have written."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.emulator import HostRunner, ProcessAnswers, Toolchain, find_compiler
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import DeviceError, KernelFault, cuda_dir
from pytest_gpuenergy.workloads import Scalar, Tensor

pytestmark = pytest.mark.slow
Run = Callable[..., dict[str, Any]]
on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="it is x86-64 assembler")
with_landlock = pytest.mark.skipif(
    ctypes.CDLL(None).syscall(444, None, 0, 1) < 1, reason="this system has no Landlock"
)
# Assembler counts as PTX unless the preprocessor puts its keyword together.
CALL = """
#undef __asm__
#define JOINED(a, b) a##b
__device__ long call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0) {
  long result;
  register long r10 JOINED(__as, m__)("r10") = d;
  register long r8 JOINED(__as, m__)("r8") = e;
  JOINED(__as, m__) volatile("syscall" : "=a"(result)
      : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
  return result;
}
"""
GETPID, TGKILL, PRLIMIT, OPENAT, EXECVE = 39, 234, 302, 257, 59


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that must not end before it is told to."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        yield process.pid
        assert process.poll() is None
        process.communicate(b"\n")


def test_hostile_text_starts_no_process_and_writes_no_file(run: Run, tmp_path: Path) -> None:
    source = f"""
    #include <stdlib.h>
    #include <stdio.h>
    __global__ void k(int* y) {{
      y[0] = system("touch {tmp_path}/started");
      y[1] = fopen("{tmp_path}/written", "w") != nullptr;
    }}"""
    out = run(source, outputs={"y": (2, "int32")})
    could_not_be_executed = 127 << 8  # what system() says when no process can be made
    assert out["y"].tolist() == [could_not_be_executed, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["y"]


@on_x86
@pytest.mark.parametrize("number", [0, signal.SIGTERM, signal.SIGKILL, 40])
def test_a_kernel_signals_no_other_process(run: Run, stranger: int, number: int) -> None:
    body = f"y[0] = call({TGKILL}, {stranger}, {stranger}, {number});"
    out = run(f"{CALL} __global__ void k(int* y) {{ {body} }}", outputs={"y": (1, "int32")})
    assert out["y"].tolist() == [-errno.EPERM]


@on_x86
@pytest.mark.parametrize(
    "target", ["0", "-1", "1", "(1L << 32) + {pid}", "call(39) + 1"],
    ids=["group", "all", "init", "high", "next"],
)  # fmt: skip
def test_no_other_number_than_its_own_is_taken_for_the_kernels_process(
    run: Run, stranger: int, target: str
) -> None:
    pid = target.format(pid=stranger)
    body = f"y[0] = call({TGKILL}, {pid}, {stranger}, 0);"
    out = run(f"{CALL} __global__ void k(int* y) {{ {body} }}", outputs={"y": (1, "int32")})
    assert out["y"].tolist() == [-errno.EPERM]


@on_x86
@pytest.mark.parametrize(
    "call",
    [
        "302, {pid}, 9, 0, (long)limits",  # prlimit64, to read
        "302, {pid}, 9, (long)limits, 0",  # and to set
        "302, 0, 9, (long)limits, 0",  # its own
        "302, 0, 9, 1L << 40, 0",
        "62, {pid}, 9",  # kill
        "200, {pid}, 9",  # tkill
        "129, {pid}, 9, (long)limits",  # rt_sigqueueinfo
        "297, {pid}, {pid}, 9, (long)limits",  # rt_tgsigqueueinfo
        "434, {pid}, 0",  # pidfd_open
        "101, 16, {pid}",  # ptrace, to attach
        "310, {pid}, (long)limits, 1, (long)limits, 1",  # process_vm_readv
        "311, {pid}, (long)limits, 1, (long)limits, 1",  # process_vm_writev
        "203, {pid}, 8, (long)limits",  # sched_setaffinity
        "144, {pid}, 0, (long)limits",  # sched_setscheduler
        "141, 0, {pid}, 19",  # setpriority
        "109, {pid}, 0",  # setpgid
        "274, {pid}, (long)limits, (long)limits",  # get_robust_list
        "312, {pid}, {pid}, 0, 0, 0",  # kcmp
        "256, {pid}, 8, (long)limits, (long)limits",  # migrate_pages
        "279, {pid}, 1, (long)limits, 0, (long)limits",  # move_pages
        "298, (long)limits, {pid}, -1, -1, 0",  # perf_event_open
    ],
)
def test_no_call_of_a_kernel_reaches_another_process(run: Run, stranger: int, call: str) -> None:
    body = f"long limits[16] = {{}}; y[0] = call({call.format(pid=stranger)});"
    out = run(f"{CALL} __global__ void k(int* y) {{ {body} }}", outputs={"y": (1, "int32")})
    assert out["y"].tolist() == [-errno.EPERM]


@on_x86
def test_a_program_may_read_its_own_limits_and_signal_itself(run: Run) -> None:
    body = """
    unsigned long limits[2];
    y[0] = call(302, 0, 9, 0, (long)limits);
    y[1] = limits[0] > 1000;
    y[2] = call(234, call(39), call(186), 0);"""
    out = run(f"{CALL} __global__ void k(int* y) {{ {body} }}", outputs={"y": (3, "int32")})
    assert out["y"].tolist() == [0, 1, 0]


@on_x86
@with_landlock
@pytest.mark.parametrize(
    "path",
    [
        "{folder}/secret", "{folder}", "/", "/etc/passwd", "/proc/{pid}/environ", "/proc/{pid}/mem",
        "/proc/self/environ", "/proc/self/maps", "/proc/{pid}/fd/0", "/dev/shm", "/dev/null",
        sys.executable, __file__,
    ],
)  # fmt: skip
def test_a_kernel_opens_no_file(run: Run, tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("of the user's")
    name = path.format(folder=tmp_path, pid=os.getpid())
    body = f'y[0] = call({OPENAT}, -100, (long)"{name}", 0);'
    out = run(f"{CALL} __global__ void k(int* y) {{ {body} }}", outputs={"y": (1, "int32")})
    assert out["y"].tolist() == [-errno.EACCES]


@on_x86
@with_landlock
def test_a_kernel_becomes_no_other_program(run: Run) -> None:
    body = f'const char* none[] = {{0}}; y[0] = call({EXECVE}, (long)"/bin/sh", (long)none, 0);'
    out = run(f"{CALL} __global__ void k(int* y) {{ {body} }}", outputs={"y": (1, "int32")})
    assert out["y"].tolist() == [-errno.EACCES]


@on_x86
@pytest.mark.parametrize(
    ("number", "name"),
    [(1, "SIGHUP"), (9, "SIGKILL"), (34, r"SIGRTMIN"), (35, r"SIGRTMIN\+1"), (63, r"SIGRTMIN\+29")],
)
def test_a_kernel_that_ends_itself_with_a_signal_is_told_with_its_name(
    run: Run, number: int, name: str
) -> None:
    body = f"y[0] = 1; call({TGKILL}, call({GETPID}), call({GETPID}), {number});"
    with pytest.raises(
        KernelFault,
        match=rf"was ended by {name}\.$",
        check=lambda fault: fault.outcome == "runtime",
    ):
        run(f"{CALL} __global__ void k(int* y) {{ {body} }}", outputs={"y": (1, "int32")})


ANSWERS_ITSELF = [
    r'puts("");',
    r'puts("some text");',
    r'putchar(0);',
    r'write("ran 1 0.000001\n", 15);',
    r'write("- ran 1 0.000001\n", 17);',
    r'write("fault \n", 7);',
    r'write("fault correctness\n", 18);',
    r'write("fault nonsense \xff\n", 17); call(231, 70);',
    r'write("ran 1 0.000001\ndone\n", 20); call(231, 0);',
    r'write("profile 1 1 1 1 1 1 0 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\ndone\n", 57); call(231, 0);',
    r'write("done\n", 5); call(231, 0);',
    r'write("\n", 1); call(231, 0);',
    r'for (;;) write("0123456789abcdef", 16);',
    r'for (;;) write("0123456789abcd\n", 15);',
]  # fmt: skip
WRITES = CALL + "#define write(text, bytes) call(1, 1, (long)text, bytes)\n"


@on_x86
@pytest.mark.parametrize("statement", ANSWERS_ITSELF)
def test_a_kernel_that_answers_for_its_runtime_is_a_fault(run: Run, statement: str) -> None:
    source = f"{WRITES} __global__ void k(int* y) {{ y[0] = 1; {statement} }}"
    with pytest.raises(
        KernelFault,
        match=r"^k wrote to the pipe on which the emulated GPU answers, which no kernel",
        check=lambda fault: fault.outcome == "runtime",
    ):
        run(source, outputs={"y": (1, "int32")})


@on_x86
@pytest.mark.parametrize("statement", ANSWERS_ITSELF)
def test_a_kernel_that_answers_for_the_check_of_races_is_a_fault(
    runner: HostRunner, tmp_path: Path, statement: str
) -> None:
    source = f"{WRITES} __global__ void k(int* y) {{ y[0] = 1; {statement} }}"
    y = Arena.create(tmp_path / "y", Tensor("y", (1,), "int32", "output"))
    with pytest.raises(
        KernelFault,
        match=r"^k wrote to the pipe on which the emulated GPU answers, which no kernel",
        check=lambda fault: fault.outcome == "runtime",
    ):
        runner.check_races(
            Kernel(source, (Launch("k", (1, 1, 1), (1, 1, 1), ("y",)),)),
            {"y": y},
            {},
            timeout_s=20.0,
        )


# It leaves the namespace that holds the text, and finds the token where the runtime keeps it.
THIEF = f"""
#include <stdio.h>
}} }}
namespace cuhost {{ struct Plan {{ char token[32]; }}; extern Plan plan; }}
namespace cuda_device {{ namespace {{
{CALL}
#define answer(...) do {{ char s[2000]; \
  call(1, 1, (long)s, snprintf(s, sizeof s, "%s ", ::cuhost::plan.token)); \
  call(1, 1, (long)s, snprintf(s, sizeof s, __VA_ARGS__)); }} while (0)
"""


@on_x86
def test_a_kernel_that_steals_the_token_is_judged_by_its_outputs(run: Run) -> None:
    body = r"""
    answer("ran 1 0.000001\n");
    for (char c; call(0, 0, (long)&c, 1) > 0;) {}
    answer("done\n");
    call(231, 0);"""
    out = run(f"{THIEF} __global__ void k(float* y) {{ {body} }}", outputs={"y": (4, "float32")})
    assert np.isnan(out["y"]).all()


@on_x86
@pytest.mark.parametrize(
    "answer",
    [
        r"ran 2 0.000001\n",
        r"ran 0 0.000001\n",
        r"ran 1 999.000000\n",
        r"ran 999999999999999999 0.000001\n",
        r"ran 1 0.1\n",
        r"ran -1 nan\n",
        r"done\n",
        r"nonsense\n",
        r"\n",
        r"fault runtime",
    ],
)
def test_an_answer_that_cannot_be_is_a_fault(run: Run, answer: str) -> None:
    body = f'y[0] = 1; answer("{answer}\\n"); call(231, 0);'
    with pytest.raises(
        KernelFault,
        match=r"^k wrote to the pipe|ended its process",
        check=lambda fault: fault.outcome == "runtime",
    ):
        run(f"{THIEF} __global__ void k(int* y) {{ {body} }}", outputs={"y": (1, "int32")})


ONES = " 1" * 22


@on_x86
@pytest.mark.parametrize(
    "answers",
    [
        (),
        (f"profile 0{ONES}",),
        (f"profile 2{ONES}",),
        (f"profile 1{ONES} 1",),
        (f"profile 1{ONES[2:]}",),
        (f"profile -1{ONES}",),
        (f"profile 1{ONES}", f"profile 1{ONES}"),
        (f"profile 1{' 9' * 21}".replace("9", "9" * 40),),
        ("profile",),
        ("ran 1 0.000001",),
    ],
)
def test_a_profile_that_cannot_be_is_a_fault(
    runner: HostRunner, tmp_path: Path, answers: tuple[str, ...]
) -> None:
    body = "".join(f'answer("{answer}\\n"); ' for answer in (*answers, "done"))
    source = f"{THIEF} __global__ void k(int* y) {{ {body} call(231, 0); }}"
    y = Arena.create(tmp_path / "y", Tensor("y", (1,), "int32", "output"))
    with pytest.raises(
        KernelFault, match=r"^k wrote to the pipe", check=lambda fault: fault.outcome == "runtime"
    ):
        runner.check_races(
            Kernel(source, (Launch("k", (1, 1, 1), (1, 1, 1), ("y",)),)),
            {"y": y},
            {},
            timeout_s=20.0,
        )


@on_x86
def test_what_a_kernel_says_of_itself_has_no_control_characters(run: Run) -> None:
    body = r'answer("fault correctness \x1b[2J\a%0500d\n", 1); call(231, 70);'
    with pytest.raises(
        KernelFault, match=r"^\?\[2J\?0+1$", check=lambda fault: fault.outcome == "correctness"
    ):
        run(f"{THIEF} __global__ void k(int* y) {{ {body} }}", outputs={"y": (1, "int32")})


@on_x86
def test_a_kernel_that_closes_the_pipe_is_a_fault(run: Run) -> None:
    with pytest.raises(
        KernelFault, match="exit code 71", check=lambda fault: fault.outcome == "runtime"
    ):
        run(f"{CALL} __global__ void k(int* y) {{ call(3, 1); }}", outputs={"y": (1, "int32")})


def test_text_that_never_reads_its_plan_is_a_timeout(runner: HostRunner, tmp_path: Path) -> None:
    source = """
    struct Early { Early() { for (volatile bool on = true; on;) {} } } early;
    __global__ void k(int* y, int n) { y[0] = n + sizeof(early); }"""
    launches = (Launch("k", (1, 1, 1), (1, 1, 1), ("y", "n" * 100)),) * 2000
    y = Arena.create(tmp_path / "y", Tensor("y", (1,), "int32", "output"))
    n = {"n" * 100: Scalar("n" * 100, "int32", 1)}
    with pytest.raises(
        KernelFault, match="did not finish", check=lambda fault: fault.outcome == "timeout"
    ):
        runner.run(Kernel(source, launches), {"y": y}, n, timeout_s=0.5)


# What sandbox.cpp does where Landlock has a certain version, and one of its calls fails.
RECORDED = """
#include <unistd.h>
static long recorded(long number, ...);
#define syscall recorded
#define main sandbox_main
#include "sandbox.cpp"
#undef main
#include <cstdarg>
static int calls = 0, version, failing;
static long recorded(long number, ...) {
  va_list given;
  va_start(given, number);
  if (number == create_ruleset && !calls) {
    printf("query\\n");
  } else if (number == create_ruleset) {
    printf("create %lx\\n", (long)*va_arg(given, uint64_t*));
  } else if (number == add_rule) {
    int set = va_arg(given, int), kind = va_arg(given, int);
    const PathBeneath* rule = va_arg(given, const PathBeneath*);
    printf("add %d %d %lx\\n", set, kind, (long)rule->allowed);
  } else {
    printf("restrict %d\\n", va_arg(given, int));
  }
  va_end(given);
  ++calls;
  return calls == failing ? -1 : calls == 1 ? version : 7;
}
int main(int count, char** words) {
  version = atoi(words[1]), failing = atoi(words[2]);
  restrict_files(count - 3, words + 3);
}
"""
Restrict = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def restrict(tmp_path_factory: pytest.TempPathFactory) -> Restrict:
    """Make restrict(version, failing call or 0, files), which returns the calls made."""
    folder = tmp_path_factory.mktemp("sandbox")
    (folder / "recorded.cpp").write_text(RECORDED)
    command = [find_compiler(), "-std=c++17", f"-I{cuda_dir() / 'host'}", "recorded.cpp"]
    subprocess.run([*command, "-o", "recorded"], cwd=folder, check=True)

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        command = [folder / "recorded", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize(
    ("version", "rights"), [(1, 13), (2, 14), (3, 15), (4, 15), (5, 16), (7, 16), (99, 16)]
)
def test_all_rights_that_landlock_knows_are_withdrawn(
    restrict: Restrict, tmp_path: Path, version: int, rights: int
) -> None:
    done = restrict(version, 0, tmp_path, tmp_path / "missing")
    made = ["query", f"create {2**rights - 1:x}", "add 7 1 5", "restrict 7"]
    assert (done.stdout.splitlines(), done.returncode) == (made, 0)


def test_without_landlock_nothing_is_restricted(restrict: Restrict, tmp_path: Path) -> None:
    done = restrict(-1, 0, tmp_path)
    assert (done.stdout, done.returncode) == ("query\n", 0)


@pytest.mark.parametrize("failing", [2, 3, 4])
def test_a_landlock_that_does_not_obey_starts_no_kernel(
    restrict: Restrict, tmp_path: Path, failing: int
) -> None:
    done = restrict(5, failing, tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("Landlock ")
    assert len(done.stdout.splitlines()) == failing


def test_a_sandbox_that_is_gone_is_one_sentence(
    runner: HostRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Toolchain, "sandbox", tmp_path / "missing")
    with pytest.raises(DeviceError, match=r"missing cannot be started \(No such file"):
        runner.run(
            Kernel("__global__ void k() {}", (Launch("k", (1, 1, 1), (1, 1, 1), ()),)),
            {},
            {},
            timeout_s=20.0,
        )


def cut(text: bytes, places: list[int]) -> list[bytes]:
    """Divide ``text`` into pieces, as a pipe may deliver it."""
    ends = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


@given(st.integers(1, 10**9), st.integers(0, 10**6), st.lists(st.integers(0, 99)))
def test_an_answer_is_read_however_it_is_cut(count: int, spent_us: int, places: list[int]) -> None:
    answers = ProcessAnswers("k")
    line = f"{answers.ask()} ran {count} {spent_us / 1e6:.6f}\n"
    for piece in cut(line.encode(), places):
        answers.take(piece)
    told = answers.runs(most=count, budget_s=0.0, elapsed_s=1.0)
    assert told == (count, spent_us / 1e6)


@given(st.binary(min_size=1), st.lists(st.integers(0, 99)))
def test_any_bytes_without_the_token_are_a_fault(text: bytes, places: list[int]) -> None:
    answers = ProcessAnswers("k")
    answers.ask()
    with pytest.raises(KernelFault, match=r"^k wrote to the pipe"):
        [answers.take(piece) for piece in cut(text + b"\n", places)]


@given(st.one_of(st.text(), st.from_regex(r"(ran|fault|profile|done)[ 0-9a-z.\n]*")))
def test_any_text_with_the_token_is_an_answer_or_a_fault(text: str) -> None:
    answers = ProcessAnswers("k")
    token = answers.ask()
    count, spent_s, said = 1, 0.0, ""
    try:
        answers.take(f"{token} {text}\n".encode(errors="replace"))
        count, spent_s = answers.runs(most=9, budget_s=0.0, elapsed_s=1.0)
    except KernelFault as fault:
        said = str(fault)
    assert said.isprintable()
    assert 1 <= count <= 9
    assert 0 <= spent_s <= 1.1


def test_an_answer_to_the_question_before_is_a_fault() -> None:
    answers = ProcessAnswers("k")
    old = answers.ask()
    answers.take(f"{old} ran 1 0.000001\n".encode())
    answers.runs(most=1, budget_s=0.0, elapsed_s=1.0)
    answers.ask()
    with pytest.raises(KernelFault, match=r"^k wrote to the pipe"):
        answers.take(f"{old} ran 1 0.000001\n".encode())


def test_an_answer_without_end_is_a_fault() -> None:
    answers = ProcessAnswers("k")
    answers.take(answers.ask().encode() + b" ")
    with pytest.raises(KernelFault, match=r"^k wrote to the pipe"):
        [answers.take(b"0" * (1 << 16)) for _ in range(17)]
