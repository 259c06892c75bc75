"""Starts a program that must not be trusted.

``python -I -S sandbox.py CPU_S ADDRESS_BYTES PROGRAM`` limits processor time, address space, file
growth and core dumps. On Linux it also allows only the system calls that loading a program and
computing need: no new processes, no files opened for writing, no sockets. It is a script of its
own, which runs before the program replaces it, because the parent has threads.
"""

import ctypes
import os
import resource
import sys

# Calls that a dynamic loader and a C runtime make, by architecture, except those that write.
# openat is allowed for reading.
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # linux/audit.h
_OPENAT = {"x86_64": 257, "aarch64": 56}
_ALLOWED = {
    "x86_64": """
            0 read 1 write 3 close 5 fstat 8 lseek 9 mmap 10 mprotect 11 munmap 12 brk
            13 rt_sigaction 14 rt_sigprocmask 15 rt_sigreturn 17 pread64 20 writev 21 access
            25 mremap 28 madvise 39 getpid 59 execve 60 exit 63 uname 79 getcwd 89 readlink
            96 gettimeofday 97 getrlimit 102 getuid 104 getgid 107 geteuid 108 getegid
            131 sigaltstack 158 arch_prctl 186 gettid 201 time 202 futex 218 set_tid_address
            228 clock_gettime 231 exit_group 234 tgkill 262 newfstatat 267 readlinkat
            269 faccessat 273 set_robust_list 302 prlimit64 318 getrandom 332 statx 334 rseq
        """,
    "aarch64": """
            17 getcwd 48 faccessat 57 close 62 lseek 63 read 64 write 66 writev 67 pread64
            78 readlinkat 79 newfstatat 80 fstat 93 exit 94 exit_group 96 set_tid_address
            98 futex 99 set_robust_list 113 clock_gettime 131 tgkill 132 sigaltstack
            134 rt_sigaction 135 rt_sigprocmask 139 rt_sigreturn 160 uname 169 gettimeofday
            172 getpid 174 getuid 175 geteuid 176 getgid 177 getegid 178 gettid 214 brk
            215 munmap 216 mremap 221 execve 222 mmap 226 mprotect 233 madvise 261 prlimit64
            278 getrandom 291 statx 293 rseq
        """,
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
# Classic BPF, linux/filter.h and linux/seccomp.h.
_LOAD, _JUMP_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
_AT_NUMBER, _AT_ARCHITECTURE, _AT_THIRD_ARGUMENT = 0, 4, 32


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


def filter_system_calls() -> None:
    """Refuse all but the allowed calls with EPERM; do nothing where the system cannot."""
    machine = os.uname().machine
    if machine not in _ALLOWED or not sys.platform.startswith("linux"):
        return
    allowed = [int(word) for word in _ALLOWED[machine].split()[::2]]
    steps = [
        (_LOAD, 0, 0, _AT_ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _AT_NUMBER),
        (_JUMP_EQUAL, 0, 4, _OPENAT[machine]),
        (_LOAD, 0, 0, _AT_THIRD_ARGUMENT),
        (_JUMP_SET, 0, 1, _WRITING),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    for number in allowed:
        steps += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    steps.append((_RETURN, 0, 0, _REFUSE))
    instructions = (_Instruction * len(steps))(*(_Instruction(*step) for step in steps))
    program = _Program(len(steps), instructions)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0)


def main() -> None:
    """Set the limits and become the program."""
    cpu_s, address_bytes, program = sys.argv[1:4]
    limit_resources(int(cpu_s), int(address_bytes))
    filter_system_calls()
    os.execv(program, [program])  # noqa: S606 -- becoming it is the point


if __name__ == "__main__":
    main()
