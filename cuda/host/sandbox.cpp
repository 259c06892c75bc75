// Starts a program that must not be trusted: sandbox CPU_S ADDRESS_BYTES PROGRAM READABLE...
//
// It limits processor time, address space, file growth and core dumps. On Linux it also allows only the
// system calls that loading a program and computing need: no new processes, no files opened for writing,
// no sockets, no process but its own. Where the kernel has Landlock, the program can open only itself and
// the READABLE files and folders. It is a program of its own, which runs before the other one replaces it,
// because the parent has threads; and it is no script, because an interpreter takes longer to start than
// most kernels take to run.
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#ifdef __linux__
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <csignal>
#include <cstddef>
#endif

namespace {

[[noreturn]] void give_up(const char* what, const char* which) {
  fprintf(stderr, "%s %s\n", what, which);
  exit(1);
}

// A hard limit that is lower already stays.
void set_limit(int resource, rlim_t value) {
  rlimit limit;
  if (getrlimit(resource, &limit)) give_up("there is no limit", strerror(errno));
  bool infinite = limit.rlim_max == RLIM_INFINITY;
  limit.rlim_cur = infinite || value < limit.rlim_max ? value : limit.rlim_max;
  // Processor time: the hard limit is a second higher, so that the program can report it.
  limit.rlim_max = limit.rlim_cur + (infinite && resource == RLIMIT_CPU);
  if (setrlimit(resource, &limit)) give_up("a limit cannot be set:", strerror(errno));
}

void limit_resources(rlim_t cpu_s, rlim_t address_bytes) {
  set_limit(RLIMIT_CPU, cpu_s);
  set_limit(RLIMIT_AS, address_bytes);
  set_limit(RLIMIT_FSIZE, 0);
  set_limit(RLIMIT_CORE, 0);
  set_limit(RLIMIT_NPROC, 0);
}

#ifdef __linux__
// linux/landlock.h, which older systems lack. The calls have the same numbers on all architectures.
enum { create_ruleset = 444, add_rule, restrict_self };
constexpr uint32_t query_version = 1;
constexpr int path_beneath = 1;
constexpr uint64_t execute = 1 << 0, read_file = 1 << 2;
struct [[gnu::packed]] PathBeneath {
  uint64_t allowed;
  int32_t file;
};

// How many rights to files each version of Landlock knows; the last holds for all later ones.
constexpr int rights[] = {0, 13, 14, 15, 15, 16};

// From now on this process opens no files but those named, which may be read and executed; those that do
// not exist are left out.
void restrict_files(int count, char** readable) {
  long version = syscall(create_ruleset, nullptr, 0, query_version);
  if (version < 1) return;
  constexpr long last = sizeof rights / sizeof *rights - 1;
  uint64_t handled = (uint64_t(1) << rights[version < last ? version : last]) - 1;
  int ruleset = (int)syscall(create_ruleset, &handled, sizeof handled, 0);
  if (ruleset < 0) give_up("Landlock", "makes no set of rules");
  for (int k = 0; k < count; ++k) {
    int file = open(readable[k], O_PATH | O_CLOEXEC);
    if (file < 0) continue;
    PathBeneath rule{execute | read_file, file};
    if (syscall(add_rule, ruleset, path_beneath, &rule, 0) < 0)
      give_up("Landlock takes no rule for", readable[k]);
  }
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (syscall(restrict_self, ruleset, 0) < 0) give_up("Landlock", "does not restrict the process");
}

#if defined(__x86_64__) || defined(__aarch64__)
#ifdef __x86_64__
constexpr uint32_t architecture = AUDIT_ARCH_X86_64;
#else
constexpr uint32_t architecture = AUDIT_ARCH_AARCH64;
#endif
// Calls that a dynamic loader and a C runtime make, except those that write and those with conditions.
constexpr uint32_t allowed[] = {
#ifdef __x86_64__
    SYS_access, SYS_arch_prctl, SYS_getrlimit, SYS_readlink, SYS_time,
#endif
    SYS_brk, SYS_clock_gettime, SYS_close, SYS_execve, SYS_exit, SYS_exit_group, SYS_faccessat, SYS_fstat,
    SYS_futex, SYS_getcwd, SYS_getegid, SYS_geteuid, SYS_getgid, SYS_getpid, SYS_getrandom, SYS_gettid,
    SYS_gettimeofday, SYS_getuid, SYS_lseek, SYS_madvise, SYS_mmap, SYS_mprotect, SYS_mremap, SYS_munmap,
    SYS_newfstatat, SYS_pread64, SYS_read, SYS_readlinkat, SYS_rseq, SYS_rt_sigaction, SYS_rt_sigprocmask,
    SYS_rt_sigreturn, SYS_set_robust_list, SYS_set_tid_address, SYS_sigaltstack, SYS_statx, SYS_uname,
    SYS_write, SYS_writev};

struct Filter {
  sock_filter steps[32 + 2 * sizeof allowed / sizeof *allowed];
  unsigned short length = 0;

  void step(unsigned code, uint32_t operand, unsigned if_true = 0, unsigned if_false = 0) {
    steps[length++] = {(unsigned short)code, (unsigned char)if_true, (unsigned char)if_false, operand};
  }

  void load(size_t offset) { step(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset); }

  void end(uint32_t verdict) { step(BPF_RET | BPF_K, verdict); }

  void refuse() { end(SECCOMP_RET_ERRNO | EPERM); }

  // The number of the call is loaded. What follows decides about it, in so many steps.
  void if_call(uint32_t number, unsigned following) {
    step(BPF_JMP | BPF_JEQ | BPF_K, number, 0, following);
  }

  // Three steps: refuse the call unless the half of an argument at `offset` is this.
  void require(size_t offset, uint32_t value) {
    load(offset);
    step(BPF_JMP | BPF_JEQ | BPF_K, value, 1, 0);
    refuse();
  }
};

// Where the lower half of an argument is; both architectures are little-endian.
constexpr size_t argument(int index) { return offsetof(seccomp_data, args) + sizeof(uint64_t) * index; }
constexpr size_t upper(size_t lower) { return lower + sizeof(uint32_t); }

// Refuse all but the allowed calls with EPERM.
void filter_system_calls() {
  Filter filter;
  filter.load(offsetof(seccomp_data, arch));
  filter.step(BPF_JMP | BPF_JEQ | BPF_K, architecture, 1, 0);
  filter.end(SECCOMP_RET_KILL_PROCESS);
  filter.load(offsetof(seccomp_data, nr));
  filter.if_call(SYS_openat, 4);  // to read
  filter.load(argument(2));
  filter.step(BPF_JMP | BPF_JSET | BPF_K, O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0, 1);
  filter.refuse();
  filter.end(SECCOMP_RET_ALLOW);
  filter.if_call(SYS_tgkill, 4);  // its own threads; it keeps this process's number
  filter.require(argument(0), (uint32_t)getpid());
  filter.end(SECCOMP_RET_ALLOW);
  filter.if_call(SYS_prlimit64, 10);  // to read its own limits
  filter.require(argument(0), 0);
  filter.require(argument(2), 0);
  filter.require(upper(argument(2)), 0);
  filter.end(SECCOMP_RET_ALLOW);
  for (uint32_t number : allowed) {
    filter.if_call(number, 1);
    filter.end(SECCOMP_RET_ALLOW);
  }
  filter.refuse();
  sock_fprog program{filter.length, filter.steps};
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}
#else
void filter_system_calls() {}
#endif
#else
void restrict_files(int, char**) {}
void filter_system_calls() {}
#endif

}  // namespace

int main(int count, char** words) {
  if (count < 4) give_up("usage:", "sandbox CPU_S ADDRESS_BYTES PROGRAM READABLE...");
  char* program = words[3];
  limit_resources(strtoull(words[1], nullptr, 10), strtoull(words[2], nullptr, 10));
  restrict_files(count - 3, words + 3);
  filter_system_calls();
  char* arguments[] = {program, nullptr};
  execv(program, arguments);
  give_up(program, strerror(errno));
}
