// cuda/pipeline: stages of copies, of one thread or between the threads of a group.
#pragma once

#include "barrier.h"
#include "threads.h"

namespace cuda {

enum class pipeline_role { producer, consumer };

template <thread_scope scope, unsigned char stages>
class pipeline_shared_state {
 public:
  pipeline_shared_state() = default;
  pipeline_shared_state(const pipeline_shared_state&) = delete;
  pipeline_shared_state& operator=(const pipeline_shared_state&) = delete;

  // Not CUDA's.
  struct cuhost_Stage {
    barrier<scope> produced, consumed;
  };
  cuhost_Stage cuhost_stages[stages];
  int cuhost_producers;

  void cuhost_begin(unsigned long long producers, unsigned long long consumers) {
    for (cuhost_Stage& stage : cuhost_stages) {
      init(&stage.produced, (ptrdiff_t)producers);
      init(&stage.consumed, (ptrdiff_t)consumers);
    }
  }
};

template <thread_scope scope>
class pipeline {
 public:
  using cuhost_Stage = typename pipeline_shared_state<scope, 1>::cuhost_Stage;
  pipeline(cuhost_Stage* stages, unsigned count) : stages(stages), count(count) {}
  pipeline(pipeline&&) = default;
  pipeline(const pipeline&) = delete;
  pipeline& operator=(const pipeline&) = delete;

  void producer_acquire() { stages[head].consumed.wait_parity(!head_odd); }
  void producer_commit() {
    (void)stages[head].produced.arrive();
    next(head, head_odd);
  }
  void consumer_wait() { stages[tail].produced.wait_parity(tail_odd); }
  template <class Time>
  bool consumer_wait_for(const Time& time) {
    return stages[tail].produced.try_wait_parity_for(tail_odd, time);
  }
  template <class Time>
  bool consumer_wait_until(const Time& time) {
    return consumer_wait_for(time);
  }
  void consumer_release() {
    (void)stages[tail].consumed.arrive();
    next(tail, tail_odd);
  }
  bool quit() { return false; }

  void cuhost_copy(void* to, const void* from, size_t bytes, size_t alignment) {
    stages[head].produced.cuhost_copy(to, from, bytes, alignment);
  }

 private:
  cuhost_Stage* stages;
  unsigned count, head = 0, tail = 0;
  bool head_odd = false, tail_odd = false;  // the parity of the phases that end next

  void next(unsigned& stage, bool& odd) {
    if (++stage == count) stage = 0, odd = !odd;
  }
};

// Its copies are those of cuda_pipeline.h.
template <>
class pipeline<thread_scope_thread> {
 public:
  pipeline() = default;
  pipeline(pipeline&&) = default;
  pipeline(const pipeline&) = delete;
  pipeline& operator=(const pipeline&) = delete;

  void producer_acquire() {}
  void producer_commit() {
    ::cuhost::cuhost_commit_copies();
    ++committed;
  }
  void consumer_wait() {
    if (committed) ::cuhost::cuhost_finish_copies(--committed);
  }
  template <class Time>
  bool consumer_wait_for(const Time&) {
    consumer_wait();
    return true;
  }
  template <class Time>
  bool consumer_wait_until(const Time& time) {
    return consumer_wait_for(time);
  }
  void consumer_release() {}
  bool quit() { return true; }

  void cuhost_copy(void* to, const void* from, size_t bytes, size_t alignment) {
    ::cuhost::cuhost_copy_any(to, from, bytes, alignment);
  }
  void cuhost_wait_prior(unsigned but_latest) {
    ::cuhost::cuhost_finish_copies(but_latest);
    if (committed > but_latest) committed = but_latest;
  }

 private:
  unsigned committed = 0;  // and not waited for
};

inline pipeline<thread_scope_thread> make_pipeline() { return {}; }

template <unsigned char but_latest>
inline void pipeline_consumer_wait_prior(pipeline<thread_scope_thread>& pipe) {
  pipe.cuhost_wait_prior(but_latest);
}

template <class Group, thread_scope scope, unsigned char stages>
inline pipeline<scope> make_pipeline(const Group& group, pipeline_shared_state<scope, stages>* state,
                                     size_t producers) {
  if (!group.thread_rank()) state->cuhost_begin(producers, group.size() - producers);
  group.sync();
  return {(typename pipeline<scope>::cuhost_Stage*)state->cuhost_stages, stages};
}
template <class Group, thread_scope scope, unsigned char stages>
inline pipeline<scope> make_pipeline(const Group& group, pipeline_shared_state<scope, stages>* state) {
  if (!group.thread_rank()) state->cuhost_begin(group.size(), group.size());
  group.sync();
  return {(typename pipeline<scope>::cuhost_Stage*)state->cuhost_stages, stages};
}
template <class Group, thread_scope scope, unsigned char stages>
inline pipeline<scope> make_pipeline(const Group& group, pipeline_shared_state<scope, stages>* state,
                                     pipeline_role role) {
  if (!group.thread_rank()) state->cuhost_producers = 0;
  group.sync();
  if (role == pipeline_role::producer) cuda_device::atomicAdd(&state->cuhost_producers, 1);
  group.sync();
  return make_pipeline(group, state, (size_t)state->cuhost_producers);
}

}  // namespace cuda
