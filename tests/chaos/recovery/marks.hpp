#pragma once

#include <atomic>
#include <cstdint>

namespace troupe::chaos {

/// The variable that names the folder of all processes' marks, a file each by the process's name.
inline constexpr const char* marks_folder = "TROUPE_MARKS";

/// What a stage computes. An order is obeyed when its process next begins that, or ends it.
enum class work : std::uint32_t { none, forward, backward, update, evaluation };

/// What a process does to itself.
enum class deed : std::uint32_t {
  kill,   ///< SIGKILL
  abort,  ///< SIGABRT
  stop,   ///< SIGSTOP
  exit,   ///< It exits with `code_of_exit`.
  fail,   ///< Its arithmetic throws.
  gorge,  ///< It takes memory until somebody ends it.
};
inline constexpr int code_of_exit = 7;

/// A file that a process of stormy_pipeline and whoever disturbs it have both mapped.
struct marks {
  std::atomic<work> at;  ///< Of the order; none: there is no order.
  std::atomic<deed> what;
  std::atomic<std::uint32_t> at_end;     ///< 1: when that work ends, not when it begins.
  std::atomic<std::uint32_t> delay_us;   ///< After that, while the process computes on.
  std::atomic<std::uint64_t> obeyed_ns;  ///< When it was; of the steady clock; 0: not yet.
};

}  // namespace troupe::chaos
