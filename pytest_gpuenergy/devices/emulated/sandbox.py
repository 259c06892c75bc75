"""Starts a program that must not be trusted.

``python -I -S sandbox.py CPU_S ADDRESS_BYTES PROGRAM READABLE...`` limits processor time, address
space, file growth and core dumps. On Linux it also allows only the system calls that loading a
program and computing need: no new processes, no files opened for writing, no sockets, no process
but its own. Where the kernel has Landlock, the program can open only itself and the ``READABLE``
files and folders. It is a script of its own, which runs before the program replaces it, because
the parent has threads.
"""

import ctypes
import os
import resource
import struct
import sys
from collections.abc import Callable, Iterable

# Calls that a dynamic loader and a C runtime make, by architecture, except those that write and
# those with conditions, see `_filter`.
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # linux/audit.h
_ALLOWED = {
    "x86_64": """
            0 read 1 write 3 close 5 fstat 8 lseek 9 mmap 10 mprotect 11 munmap 12 brk
            13 rt_sigaction 14 rt_sigprocmask 15 rt_sigreturn 17 pread64 20 writev 21 access
            25 mremap 28 madvise 39 getpid 59 execve 60 exit 63 uname 79 getcwd 89 readlink
            96 gettimeofday 97 getrlimit 102 getuid 104 getgid 107 geteuid 108 getegid
            131 sigaltstack 158 arch_prctl 186 gettid 201 time 202 futex 218 set_tid_address
            228 clock_gettime 231 exit_group 262 newfstatat 267 readlinkat
            269 faccessat 273 set_robust_list 318 getrandom 332 statx 334 rseq
        """,
    "aarch64": """
            17 getcwd 48 faccessat 57 close 62 lseek 63 read 64 write 66 writev 67 pread64
            78 readlinkat 79 newfstatat 80 fstat 93 exit 94 exit_group 96 set_tid_address
            98 futex 99 set_robust_list 113 clock_gettime 132 sigaltstack
            134 rt_sigaction 135 rt_sigprocmask 139 rt_sigreturn 160 uname 169 gettimeofday
            172 getpid 174 getuid 175 geteuid 176 getgid 177 getegid 178 gettid 214 brk
            215 munmap 216 mremap 221 execve 222 mmap 226 mprotect 233 madvise
            278 getrandom 291 statx 293 rseq
        """,
}
_OPENAT = {"x86_64": 257, "aarch64": 56}
_TGKILL = {"x86_64": 234, "aarch64": 131}
_PRLIMIT = {"x86_64": 302, "aarch64": 261}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
# Classic BPF, linux/filter.h and linux/seccomp.h.
_LOAD, _JUMP_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
_AT_NUMBER, _AT_ARCHITECTURE, _AT_ARGUMENTS = 0, 4, 16
# linux/landlock.h. The calls have the same numbers on all architectures.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _READ_FILE = 1 << 0, 1 << 2
_RIGHTS = (0, 13, 14, 15, 15, 16)
"""Rights to files that Landlock knows, by its version; the last for all later versions."""

SystemCall = Callable[..., int]

_Step = tuple[int, int, int, int]


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_ushort),
        ("if_true", ctypes.c_ubyte),
        ("if_false", ctypes.c_ubyte),
        ("operand", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


def limit_resources(cpu_s: int, address_bytes: int) -> None:
    """Set the limits that every POSIX system has; a hard limit that is lower already stays."""
    for name, value in (
        ("RLIMIT_CPU", cpu_s),
        ("RLIMIT_AS", address_bytes),
        ("RLIMIT_FSIZE", 0),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_NPROC", 0),
    ):
        number = getattr(resource, name, None)
        if number is None:
            continue
        _, hard = resource.getrlimit(number)
        soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # Processor time: the hard limit is a second higher, so that the program can report it.
        last = soft + 1 if name == "RLIMIT_CPU" and hard == resource.RLIM_INFINITY else soft
        resource.setrlimit(number, (soft, last))


def system_call(number: int, *arguments: int | bytes | None) -> int:
    """Make a system call that Python has no function for; -1 where it fails."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = call(ctypes.c_long(number), *converted)
    return result


def restrict_files(readable: Iterable[str], call: SystemCall = system_call) -> bool:
    """Let this process open no files but ``readable``, from now on; False without Landlock.

    Args:
        readable: files and folders, which may be read and executed; those that do not exist are
            left out.
        call: makes system calls.

    Raises:
        OSError: the kernel has Landlock and does not apply it.
    """
    linux = sys.platform.startswith("linux")
    version = call(_CREATE_RULESET, None, 0, _VERSION) if linux else -1
    if version < 1:
        return False
    handled = (1 << _RIGHTS[min(version, len(_RIGHTS) - 1)]) - 1
    ruleset = call(_CREATE_RULESET, struct.pack("=Q", handled), 8, 0)
    if ruleset < 0:
        raise OSError("Landlock makes no set of rules")
    for path in readable:
        try:
            file = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        rule = struct.pack("=Qi", _EXECUTE | _READ_FILE, file)
        if call(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0) < 0:
            raise OSError(f"Landlock takes no rule for {path}")
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if call(_RESTRICT_SELF, ruleset, 0) < 0:
        raise OSError("Landlock does not restrict the process")
    return True


def filter_system_calls() -> None:
    """Refuse all but the allowed calls with EPERM; do nothing where the system cannot."""
    machine = os.uname().machine
    if machine not in _ALLOWED or not sys.platform.startswith("linux"):
        return
    steps = _filter(machine, os.getpid())  # which stays that of the program
    instructions = (_Instruction * len(steps))(*(_Instruction(*step) for step in steps))
    program = _Program(len(steps), instructions)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0)


def _filter(machine: str, process: int) -> list[_Step]:
    steps = [
        (_LOAD, 0, 0, _AT_ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _AT_NUMBER),
    ]
    # openat: to read. tgkill: its own threads. prlimit64: to read its own limits.
    steps += _allowed_if(_OPENAT[machine], [(_argument(2), _JUMP_SET, _WRITING, False)])
    steps += _allowed_if(_TGKILL[machine], [(_argument(0), _JUMP_EQUAL, process, True)])
    new_limit = [(at, _JUMP_EQUAL, 0, True) for at in (_argument(2), _argument(2) + 4)]
    steps += _allowed_if(_PRLIMIT[machine], [(_argument(0), _JUMP_EQUAL, 0, True), *new_limit])
    for number in (int(word) for word in _ALLOWED[machine].split()[::2]):
        steps += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    return [*steps, (_RETURN, 0, 0, _REFUSE)]


def _argument(index: int) -> int:
    """Where the lower half of an argument is; both architectures are little-endian."""
    return _AT_ARGUMENTS + 8 * index


def _allowed_if(number: int, tests: list[tuple[int, int, int, bool]]) -> list[_Step]:
    """Steps that allow the call ``number`` if all tests of its arguments are as wanted."""
    steps: list[_Step] = []
    for at, test, operand, wanted in tests:
        steps += [(_LOAD, 0, 0, at), (test, int(wanted), int(not wanted), operand)]
        steps.append((_RETURN, 0, 0, _REFUSE))
    steps.append((_RETURN, 0, 0, _ALLOW))
    return [(_JUMP_EQUAL, 0, len(steps), number), *steps]


def main() -> None:
    """Set the limits and become the program."""
    cpu_s, address_bytes, program, *readable = sys.argv[1:]
    limit_resources(int(cpu_s), int(address_bytes))
    restrict_files([program, *readable])
    filter_system_calls()
    os.execv(program, [program])  # noqa: S606 -- becoming it is the point


if __name__ == "__main__":
    main()
