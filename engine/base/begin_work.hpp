#pragma once

#include <future>
#include <system_error>
#include <type_traits>

namespace troupe::engine {

/// Begins some work in a thread of its own, with the caller's priority; where the system gives no
/// thread, whoever waits for the future does it. `work` may be copied, and is called once.
template <class Work>
[[nodiscard]] std::future<std::invoke_result_t<Work>> begin_work(const Work& work) {
  try {
    return std::async(std::launch::async, work);
  } catch (const std::system_error&) {
    return std::async(std::launch::deferred, work);
  }
}

}  // namespace troupe::engine
