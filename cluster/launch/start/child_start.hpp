#pragma once

#include <sys/types.h>

namespace troupe::cluster {

/// The number under which a child finds the one descriptor that it may be handed.
inline constexpr int handed_over_as = 3;

/// In the environment of each process of the program that another one starts, as a node or to
/// measure: the number of that one.
inline constexpr const char* started_by = "TROUPE_STARTED_BY";

/// Everything that a new process needs to become a child. Made before the process: where it is
/// forked from one with several threads, only system calls are safe in it.
struct child_start {
  const char* program = nullptr;
  char* const* arguments = nullptr;  ///< With the program's name; a null pointer ends them.
  char* const* environment = nullptr;
  const char* working_folder = nullptr;  ///< Null: the parent's.
  int in = -1, out = -1, err = -1;
  int failure = -1;      ///< Where it writes a start_failure if it cannot start.
  int handed_over = -1;  ///< -1: nothing is.
  pid_t parent = 0;
};

/// Why a child could not start.
struct start_failure {
  int reason = 0;             ///< An errno.
  bool is_of_folder = false;  ///< Its working folder cannot be entered.
};

/// Writes that with errno to `failure` and ends the process.
[[noreturn]] void give_up(int failure, bool is_of_folder = false) noexcept;

/// Of a new process, before its program runs: gives it a process group of its own, its parent's
/// death, its folder and its descriptors. Afterwards `failure` is the first one that its program
/// must not have. Ends the process where that fails.
void take_place(child_start& how) noexcept;

}  // namespace troupe::cluster
