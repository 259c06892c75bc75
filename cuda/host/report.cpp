// Reports what went wrong, also from a signal handler.
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <ucontext.h>
#include <unistd.h>

#include "runtime.h"

namespace cuhost {

const char* running_kernel = "the kernel";

void fault(const char* outcome, const char* format, ...) {
  char line[2000];
  int length = snprintf(line, sizeof line, "%s fault %s ", plan.token, outcome);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line + length, sizeof line - 1 - length, format, arguments);
  va_end(arguments);
  for (char* c = line; *c; ++c) {
    if (*c == '\n') *c = ' ';
  }
  strcat(line, "\n");
  if (write(1, line, strlen(line)) < 0) _exit(71);
  _exit(70);
}

std::string place_of(Index thread, Index block) {
  char text[160];
  snprintf(text, sizeof text, "thread (%u,%u,%u) of block (%u,%u,%u) of %s", thread.x, thread.y,
           thread.z, block.x, block.y, block.z, running_kernel);
  return text;
}

std::string here() { return place_of(cuhost_where.thread, cuhost_where.block); }

static void on_signal(int number, siginfo_t* info, void* context) {
  std::string where = here();
  if (number == SIGSEGV || number == SIGBUS) {
    const char* verb = "accesses";
#if defined(__x86_64__) && defined(REG_ERR)
    verb = ((ucontext_t*)context)->uc_mcontext.gregs[REG_ERR] & 2 ? "writes" : "reads";
#endif
    (void)context;
    if (beyond_fiber_stack(info->si_addr))
      fault("runtime", "stack overflow: %s needs more local memory than the emulated GPU has",
            where.c_str());
    std::string what = describe_address(info->si_addr, verb);
    if (what.find("the input") != std::string::npos || in_guard(info->si_addr))
      fault("correctness", "%s %s", where.c_str(), what.c_str());
    char address[64];
    snprintf(address, sizeof address, "%s address %p, far from every tensor", verb, info->si_addr);
    fault("runtime", "illegal address: %s %s", where.c_str(), what.empty() ? address : what.c_str());
  }
  const char* name = number == SIGFPE    ? "SIGFPE (integer division by zero or overflow)"
                     : number == SIGILL  ? "SIGILL (illegal instruction)"
                     : number == SIGXCPU ? "SIGXCPU (processor time used up)"
                                         : "a signal";
  fault(number == SIGXCPU ? "timeout" : "runtime", "%s was ended by %s", where.c_str(), name);
}

void install_signal_handlers() {
  static char stack[65536];  // a handler cannot run on the stack that overflowed
  stack_t alternate{};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, nullptr);
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGXCPU}) sigaction(number, &action, nullptr);
}

extern "C" {

void cuhost_trap(const char* what) { fault("runtime", "%s reached %s", here().c_str(), what); }

bool cuhost_waits_in_vain() {
  fault("correctness", "%s waits in a loop that does nothing but load by __ldcg or __ldcv: CUDA's compiler takes "
        "these for ordinary loads and leaves the loop out; load as volatile, by an atomic or with ld.relaxed or "
        "ld.acquire", here().c_str());
}

void cuhost_assert(const char* expression, int line) {
  fault("runtime", "assertion `%s` failed in line %d: %s", expression, line, here().c_str());
}

int cuhost_printf(const char* format, ...) {
  static size_t left = 1 << 20;  // CUDA's default printf buffer, cudaLimitPrintfFifoSize
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  size_t bytes = length < 0 ? 0 : strlen(text);
  if (bytes > left) bytes = left;
  left -= bytes;
  return bytes && write(2, text, bytes) < 0 ? -1 : length;
}
}

}  // namespace cuhost
