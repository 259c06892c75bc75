// Fibers: separate stacks, switched explicitly.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#define CUHOST_UCONTEXT 1
#endif

namespace cuhost {

#if defined(CUHOST_UCONTEXT)

struct Context {
  ucontext_t state;
};
inline void switch_to(Context& from, Context& to) { swapcontext(&from.state, &to.state); }
inline void start_at(Context& context, char* stack, size_t bytes, void (*body)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = bytes;
  context.state.uc_link = nullptr;
  makecontext(&context.state, body, 0);
}

#else

struct Context {
  void* stack_pointer;
};

// Saves the callee-saved registers of the platform's calling convention.
extern "C" void cuhost_switch(void** save, void* load);

inline void switch_to(Context& from, Context& to) {
  cuhost_switch(&from.stack_pointer, to.stack_pointer);
}

#if defined(__x86_64__)
__asm__(R"(
.text
.globl cuhost_switch
.type cuhost_switch, @function
cuhost_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuhost_switch, .-cuhost_switch
)");

inline void start_at(Context& context, char* stack, size_t bytes, void (*body)()) {
  void** top = (void**)((size_t)(stack + bytes) & ~(size_t)63);
  *--top = nullptr;       // the return address of body, which never returns
  *--top = (void*)body;   // what the first switch returns to; the stack is then 8 modulo 16
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  context.stack_pointer = top;
}
#else  // __aarch64__
__asm__(R"(
.text
.globl cuhost_switch
.type cuhost_switch, %function
cuhost_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size cuhost_switch, .-cuhost_switch
)");

inline void start_at(Context& context, char* stack, size_t bytes, void (*body)()) {
  void** top = (void**)((size_t)(stack + bytes) & ~(size_t)63) - 20;
  for (int saved = 0; saved < 20; ++saved) top[saved] = nullptr;
  top[11] = (void*)body;  // x30, the link register
  context.stack_pointer = top;
}
#endif
#endif

}  // namespace cuhost
