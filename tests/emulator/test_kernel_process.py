"""The process of a kernel: its sandbox, and answers that the kernel itself may have written."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from outcomes import in_blocks, raises

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.emulator import ProcessAnswers, Toolchain, find_compiler
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import DeviceError, KernelFault, cuda_dir
from pytest_gpuenergy.workloads import Scalar, Tensor

pytestmark = pytest.mark.slow
Run = Callable[..., dict[str, Any]]
Answers = Callable[[Iterable[str]], dict[str, int]]
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
def answers(run: Run) -> Answers:
    """Make answers(calls): what each call of the system returns to one kernel, by its words."""

    def go(calls: Iterable[str]) -> dict[str, int]:
        made = [f"y[{k}] = call({words});" for k, words in enumerate(calls)]
        body = f"long limits[16] = {{}}; const char* none[] = {{0}}; {' '.join(made)}"
        text = f"{CALL} __global__ void k(int* y) {{ {body} (void)limits; (void)none; }}"
        y = run(text, outputs={"y": (len(made), "int32")})["y"]
        return dict(zip(calls, y.tolist(), strict=True))

    return go


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that must not end before it is told to."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        yield process.pid
        assert process.poll() is None
        process.communicate(b"\n")


def test_hostile_text_starts_no_process_and_writes_no_file(run, tmp_path):
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


REACHING = [
    *(
        f"{TGKILL}, {{pid}}, {{pid}}, {number}"
        for number in (0, signal.SIGTERM, signal.SIGKILL, 40)
    ),
    *(
        f"{TGKILL}, {target}, {{pid}}, 0"  # its group, all, init, and numbers like its own
        for target in ("0", "-1", "1", "(1L << 32) + {pid}", "call(39) + 1")
    ),
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
]


@on_x86
def test_no_call_of_a_kernel_reaches_another_process(answers, stranger):
    calls = [call.format(pid=stranger) for call in REACHING]
    assert answers(calls) == dict.fromkeys(calls, -errno.EPERM)


@on_x86
def test_a_program_may_read_its_own_limits_and_signal_itself(answers):
    own = ["302, 0, 9, 0, (long)limits", "234, call(39), call(186), 0"]
    assert answers(own) == dict.fromkeys(own, 0)


@on_x86
@with_landlock
def test_a_kernel_opens_no_file_and_becomes_no_other_program(answers, tmp_path):
    (tmp_path / "secret").write_text("of the user's")
    own = f"/proc/{os.getpid()}"
    paths = [
        *(f"{tmp_path}/secret", tmp_path, "/", "/etc/passwd", "/proc/self/environ"),
        *(f"{own}/environ", f"{own}/mem", f"{own}/fd/0", "/proc/self/maps", "/dev/shm"),
        *("/dev/null", sys.executable, __file__),
    ]
    calls = [f'{OPENAT}, -100, (long)"{path}", 0' for path in paths]
    calls.append(f'{EXECVE}, (long)"/bin/sh", (long)none, 0')
    assert answers(calls) == dict.fromkeys(calls, -errno.EACCES)


@on_x86
@pytest.mark.parametrize(
    ("number", "name"),
    [(1, "SIGHUP"), (9, "SIGKILL"), (34, r"SIGRTMIN"), (35, r"SIGRTMIN\+1"), (63, r"SIGRTMIN\+29")],
)
def test_a_kernel_that_ends_itself_with_a_signal_is_told_with_its_name(run, number, name):
    body = f"y[0] = 1; call({TGKILL}, call({GETPID}), call({GETPID}), {number});"
    with raises("runtime", rf"was ended by {name}\.$"):
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


@pytest.fixture
def run_one(run):
    """Make run_one(before, statements, number): run one of statements, compiled with all others."""

    def go(before, statements, number, *, checked=False):
        body = f"y[0] = 1; {in_blocks(statements, 'number')}"
        source = f"{before} __global__ void k(int* y, int number) {{ {body} }}"
        chosen = Scalar("number", "int32", number)
        return run(source, outputs={"y": (1, "int32")}, scalars=[chosen], checked=checked)

    return go


@on_x86
@pytest.mark.parametrize("checked", [False, True], ids=["run", "check"])
@pytest.mark.parametrize("number", range(len(ANSWERS_ITSELF)))
def test_a_kernel_that_answers_for_its_runtime_is_a_fault(run_one, number, checked):
    with raises("runtime", r"^k wrote to the pipe on which the emulated GPU answers, which no ker"):
        run_one(WRITES, ANSWERS_ITSELF, number, checked=checked)


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
def test_a_kernel_that_steals_the_token_is_judged_by_its_outputs(run):
    body = r"""
    answer("ran 1 0.000001\n");
    for (char c; call(0, 0, (long)&c, 1) > 0;) {}
    answer("done\n");
    call(231, 0);"""
    out = run(f"{THIEF} __global__ void k(float* y) {{ {body} }}", outputs={"y": (4, "float32")})
    assert np.isnan(out["y"]).all()


IMPOSSIBLE = [
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
]


@on_x86
@pytest.mark.parametrize("number", range(len(IMPOSSIBLE)))
def test_an_answer_that_cannot_be_is_a_fault(run_one, number):
    statements = [f'answer("{answer}\\n"); call(231, 0);' for answer in IMPOSSIBLE]
    with raises("runtime", r"^k wrote to the pipe|ended its process"):
        run_one(THIEF, statements, number)


ONES = " 1" * 22
PROFILES = [
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
]


@on_x86
@pytest.mark.parametrize("number", range(len(PROFILES)))
def test_a_profile_that_cannot_be_is_a_fault(run_one, number):
    statements = [
        "".join(f'answer("{answer}\\n"); ' for answer in (*answers, "done")) + "call(231, 0);"
        for answers in PROFILES
    ]
    with raises("runtime", r"^k wrote to the pipe"):
        run_one(THIEF, statements, number, checked=True)


@on_x86
def test_what_a_kernel_says_of_itself_has_no_control_characters(run):
    body = r'answer("fault correctness \x1b[2J\a%0500d\n", 1); call(231, 70);'
    with raises("correctness", r"^\?\[2J\?0+1$"):
        run(f"{THIEF} __global__ void k(int* y) {{ {body} }}", outputs={"y": (1, "int32")})


@on_x86
def test_a_kernel_that_closes_the_pipe_is_a_fault(run):
    with raises("runtime", "exit code 71"):
        run(f"{CALL} __global__ void k(int* y) {{ call(3, 1); }}", outputs={"y": (1, "int32")})


def test_text_that_never_reads_its_plan_is_a_timeout(runner, tmp_path):
    source = """
    struct Early { Early() { for (volatile bool on = true; on;) {} } } early;
    __global__ void k(int* y, int n) { y[0] = n + sizeof(early); }"""
    launches = (Launch("k", (1, 1, 1), (1, 1, 1), ("y", "n" * 100)),) * 2000
    y = Arena.create(tmp_path / "y", Tensor("y", (1,), "int32", "output"))
    n = {"n" * 100: Scalar("n" * 100, "int32", 1)}
    with raises("timeout", "did not finish"):
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
def test_all_rights_that_landlock_knows_are_withdrawn(restrict, tmp_path, version, rights):
    done = restrict(version, 0, tmp_path, tmp_path / "missing")
    made = ["query", f"create {2**rights - 1:x}", "add 7 1 5", "restrict 7"]
    assert (done.stdout.splitlines(), done.returncode) == (made, 0)


def test_without_landlock_nothing_is_restricted(restrict, tmp_path):
    done = restrict(-1, 0, tmp_path)
    assert (done.stdout, done.returncode) == ("query\n", 0)


@pytest.mark.parametrize("failing", [2, 3, 4])
def test_a_landlock_that_does_not_obey_starts_no_kernel(restrict, tmp_path, failing):
    done = restrict(5, failing, tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("Landlock ")
    assert len(done.stdout.splitlines()) == failing


def test_a_sandbox_that_is_gone_is_one_sentence(run, monkeypatch, tmp_path):
    monkeypatch.setattr(Toolchain, "sandbox", tmp_path / "missing")
    with pytest.raises(DeviceError, match=r"missing cannot be started \(No such file"):
        run("__global__ void k() {}")


def cut(text: bytes, places: list[int]) -> list[bytes]:
    """Divide ``text`` into pieces, as a pipe may deliver it."""
    ends = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


@given(st.integers(1, 10**9), st.integers(0, 10**6), st.lists(st.integers(0, 99)))
def test_an_answer_is_read_however_it_is_cut(count, spent_us, places):
    answers = ProcessAnswers("k")
    line = f"{answers.ask()} ran {count} {spent_us / 1e6:.6f}\n"
    for piece in cut(line.encode(), places):
        answers.take(piece)
    told = answers.runs(most=count, budget_s=0.0, elapsed_s=1.0)
    assert told == (count, spent_us / 1e6)


@given(st.binary(min_size=1), st.lists(st.integers(0, 99)))
def test_any_bytes_without_the_token_are_a_fault(text, places):
    answers = ProcessAnswers("k")
    answers.ask()
    with pytest.raises(KernelFault, match=r"^k wrote to the pipe"):
        [answers.take(piece) for piece in cut(text + b"\n", places)]


@given(st.one_of(st.text(), st.from_regex(r"(ran|fault|profile|done)[ 0-9a-z.\n]*")))
def test_any_text_with_the_token_is_an_answer_or_a_fault(text):
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


def test_an_answer_to_the_question_before_is_a_fault():
    answers = ProcessAnswers("k")
    old = answers.ask()
    answers.take(f"{old} ran 1 0.000001\n".encode())
    answers.runs(most=1, budget_s=0.0, elapsed_s=1.0)
    answers.ask()
    with pytest.raises(KernelFault, match=r"^k wrote to the pipe"):
        answers.take(f"{old} ran 1 0.000001\n".encode())


def test_an_answer_without_end_is_a_fault():
    answers = ProcessAnswers("k")
    answers.take(answers.ask().encode() + b" ")
    with pytest.raises(KernelFault, match=r"^k wrote to the pipe"):
        [answers.take(b"0" * (1 << 16)) for _ in range(17)]
