#pragma once

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>

#include <string>
#include <tuple>
#include <utility>

#include "actors/futures/pool.hpp"

namespace troupe::actors {

/// A pool for arithmetic: each thread computes with one intra-op thread, and outside threads sleep
/// while they wait, so that `threads` cores are busy and no more.
[[nodiscard]] inline pool_settings tensor_pool(unsigned threads, std::string name = "fork") {
  return {.name = std::move(name),
          .threads = threads,
          .helped_by_waiters = false,
          .on_thread_start = [] {
            (void)at::get_num_threads();  // a thread's first use would take the process's number
            at::set_num_threads(1);
          }};
}

/// `on.fork(fn, args...)` with torch's per-thread state (grad mode, inference mode, autocast) as in
/// the caller's thread, so that autograd records through a fork. Tensors are passed by reference: a
/// copy of a tensor is a handle.
template <class F, class... Args>
auto fork(pool& on, F fn, Args... args) {
  return on.fork([state = at::ThreadLocalState(), fn = std::move(fn),
                  args = std::tuple(std::move(args)...)]() mutable {
    const at::ThreadLocalStateGuard as_in_the_caller(state);
    return std::apply(fn, std::move(args));
  });
}

}  // namespace troupe::actors
