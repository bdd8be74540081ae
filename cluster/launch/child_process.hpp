#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/launch/start/child_start.hpp"
#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"

namespace troupe::cluster {

/// A program to start.
struct child_spec {
  std::string name;                                  ///< For messages: "stage-1".
  std::vector<std::string> arguments;                ///< Without the program's own name.
  std::map<std::string, std::string> environment;    ///< Added to ours, or replacing.
  std::filesystem::path program = "/proc/self/exe";  ///< This very program, unless told otherwise.
  int handed_over =
      -1;  ///< A descriptor of ours that the child gets as `handed_over_as`; -1: none.
  int standard_input = -1;                    ///< One that it gets as that; -1: an empty one.
  std::filesystem::path working_folder = {};  ///< Empty: ours.
  /// It joins a run, and says so (joined_mark): see process_group.
  bool joins = false;
};

/// How a child ended.
struct child_exit {
  std::string name;
  pid_t pid = 0;
  int code = 0;    ///< Exit code, where it exited.
  int signal = 0;  ///< The signal that killed it, or 0.
  /// Killed by SIGKILL, and the system had killed for lack of memory since it was started and since
  /// the last child of this process that ended by SIGKILL.
  bool lacked_memory = false;

  [[nodiscard]] bool ok() const noexcept { return code == 0 && signal == 0; }

  bool operator==(const child_exit&) const = default;
};

/// "signal 9 (SIGKILL)"
[[nodiscard]] std::string name_of_signal(int number);

/// "stage-1 exited with code 3", "stage-1 was killed by signal 9 (SIGKILL)"; what to do where it
/// lacked memory.
[[nodiscard]] std::string describe(const child_exit& ended);

/// What is said of a process that has not ended within deadlines::tell_of_end, to the user who
/// waits for it.
[[nodiscard]] std::string words_on_late_end(const std::string& name);

/// Whether another process of the program has started this one and said so (see started_by). What
/// this one starts in turn has another parent than the mark says.
[[nodiscard]] bool was_launched();

/// One running child process. Owns it: the destructor kills and reaps it, with every process it has
/// started in its process group. The kernel kills the child (SIGKILL) as soon as the thread that
/// started it ends, so start children from a thread that outlives them; `process_group` does.
///
/// The child has its own process group, so a Ctrl-C at the terminal reaches only the parent, no
/// inherited descriptors but the standard three and the one that it is handed, and default signal
/// handling. One that is this very program is a copy of this process's zygote where it has one
/// (zygote.hpp), and has not loaded its libraries again.
class child_process {
 public:
  /// The read ends of the child's standard output and error, non-blocking.
  struct pipes {
    descriptor out;
    descriptor err;
  };

  /// Starts a program. Errors: io_failed (cannot be executed, no pid or descriptor left), naming
  /// child and program.
  [[nodiscard]] static result<child_process> start(const child_spec& spec);

  child_process(child_process&& other) noexcept;
  child_process& operator=(child_process&& other) noexcept;
  ~child_process();

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Readable (POLLIN) once the child has ended.
  [[nodiscard]] int exit_descriptor() const noexcept { return pidfd_.get(); }
  /// Its output; the caller may take them out.
  [[nodiscard]] pipes& output() noexcept { return output_; }

  /// Whether it is stopped by a signal (SIGSTOP); one that a debugger holds is not. Once false
  /// between two stops, however soon one follows the other.
  [[nodiscard]] bool is_stopped() noexcept;
  /// Sends a signal to the child alone; nothing happens once it has ended.
  void signal(int number) const noexcept;
  /// Sends a signal to the child and whatever lives in its process group.
  void signal_group(int number) const noexcept;
  /// SIGKILL to the whole process group.
  void kill_group() const noexcept;

  /// Reaps the child if it has ended. Afterwards this object owns nothing.
  [[nodiscard]] std::optional<child_exit> try_reap();

 private:
  child_process() = default;
  void kill_and_reap() noexcept;

  std::string name_;
  pid_t pid_ = 0;                   // 0: nothing to reap
  std::uint64_t memory_kills_ = 0;  // of the system, before it was started
  bool stopped_ = false;            // as far as the system was asked
  descriptor pidfd_;
  pipes output_;
};

}  // namespace troupe::cluster
