#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cluster/launch/start/process_start.hpp"
#include "tests/bytes_of.hpp"
#include "tests/scratch_folder.hpp"
#include "tests/scratch_memory.hpp"

namespace Catch {
class ScopedMessage;
}

namespace troupe::tests {

/// How a run of the program under test ended and what it wrote.
struct program_outcome {
  int code = 0;    ///< Exit code, where it exited.
  int signal = 0;  ///< What killed it, or 0.
  std::string out;
  std::string err;
  std::chrono::duration<double> seconds{0};

  /// The last line of `err`.
  [[nodiscard]] std::string last_line() const;

  /// Has assertions that fail show what it wrote, as INFO would, while this or a copy of it lives.
  /// In the test's own thread. `command`: the words behind the program.
  void show(const std::string& program, const std::vector<std::string>& command);

 private:
  std::shared_ptr<Catch::ScopedMessage> shown_;
};

/// Runs a program to its end (killed, and failing the test, after `limit`), which assertions show
/// (see program_outcome::show). `on_line` sees each line of its standard error as it comes, with
/// the program's pid, in the caller's thread: it may assert.
program_outcome run_other(const std::string& program, const std::vector<std::string>& arguments,
                          const std::function<void(pid_t, std::string_view)>& on_line = {},
                          std::chrono::minutes limit = std::chrono::minutes(2));

#ifdef TROUPE_PROGRAM  // each target has one of its own
/// The same for the program under test.
static inline program_outcome run_program(
    const std::vector<std::string>& arguments,
    const std::function<void(pid_t, std::string_view)>& on_line = {}) {
  return run_other(TROUPE_PROGRAM, arguments, on_line);
}

/// Its whole command line for /bin/sh, to be put behind what the shell is to do first ("ulimit -f
/// 8;") and before redirections. For run_other("/bin/sh", {"-c", ..}).
static inline std::string shell_line(const std::string& first,
                                     const std::vector<std::string>& arguments,
                                     const std::string& redirections = {}) {
  std::string line = first + " exec " + TROUPE_PROGRAM;
  for (const auto& word : arguments) line.append(" '").append(word).append("'");
  return line + " " + redirections;
}
#endif

/// How long after a loss was known a run has said that the other stages go on; fails the test where
/// it has not.
std::chrono::duration<double> seconds_to_go_on(const program_outcome& outcome);

/// For `on_line`.
using line_handler = std::function<void(pid_t, std::string_view)>;

/// Does something once, at the first line that holds `text`.
line_handler at_line(const std::string& text, std::function<void(pid_t)> act);

/// Has both see each line.
line_handler one_after_other(line_handler first, line_handler second);

/// Checks how every child process of a run with --verbose ended: `count` of them, each by itself
/// with code 0.
void check_children_ended_well(const program_outcome& outcome, std::size_t count);

/// Waits until a process has computed for so long from now on; false after a minute.
bool wait_for_work(pid_t pid, std::chrono::milliseconds amount);

/// Waits until a file has so many more lines than now; false after a minute.
bool wait_for_lines(const std::filesystem::path& file, std::ptrdiff_t more);

/// Waits until a file is there; false after a minute.
bool wait_until_there(const std::filesystem::path& file);
bool wait_until_gone(const std::filesystem::path& file);

/// The same, checked; returns how long that took.
std::chrono::duration<double> wait_for_file(const std::filesystem::path& file);

/// Processes that `parent` has started; its zygote is none of them. None where it has ended.
std::vector<pid_t> children_of(pid_t parent);

pid_t parent_of(pid_t child);

/// Whether processes keep zygotes, which those that a sanitizer watches do not.
inline constexpr bool has_zygotes = !cluster::is_watched;

/// The zygote of a process; 0: it keeps none.
pid_t zygote_of(pid_t keeper);

/// Waits until a child of ours is stopped by a signal.
void wait_until_stopped(pid_t child);

/// Waits until the system shows a process in a state ('T': stopped); false after a minute.
bool wait_for_state(pid_t pid, char state);

/// Waits until a process is gone; false after five seconds.
bool wait_until_gone(pid_t pid);

/// Stops one thread of a process, by its name, while all others go on, as a debugger would. It
/// stays stopped until its process is killed, for which the destructor waits. The process must be a
/// descendant of this one.
class stopped_thread {
 public:
  /// `computing`: not in a system call, so not while it waits for anything.
  stopped_thread(pid_t process, const std::string& name, bool computing = false);
  stopped_thread(const stopped_thread&) = delete;
  stopped_thread& operator=(const stopped_thread&) = delete;
  ~stopped_thread() { reaper_.join(); }

 private:
  std::thread reaper_;  // nobody can reap the process before its tracer has reaped the thread
};

/// Holds up the end of a process once it is killed, as a disk may, by its thread of this name: it
/// is not gone, and nobody can reap it, until the destructor lets it end. That waits for the kill.
/// Of one thread. The process must be a descendant of this one.
class held_up_end {
 public:
  held_up_end(pid_t process, const std::string& thread);
  held_up_end(const held_up_end&) = delete;
  held_up_end& operator=(const held_up_end&) = delete;
  ~held_up_end();

 private:
  pid_t thread_;
};

/// The process among `among` that has a thread of this name; fails the test where none has.
pid_t process_with_thread(const std::vector<pid_t>& among, const std::string& name);

}  // namespace troupe::tests
