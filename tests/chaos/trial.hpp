#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/multiprocess/program.hpp"
#include "tests/words.hpp"

namespace troupe::chaos {

using tests::operator+;
using tests::split_words;
using tests::with;
using tests::words;

using seconds = std::chrono::duration<double>;

/// A program of ours with the processes that it starts.
struct subject {
  std::string name;     ///< "pipeline-shm".
  std::string program;  ///< The file to execute.
  std::vector<std::string> arguments;
  std::vector<std::string> processes;  ///< "program" first, then as --node-name has them.
  std::size_t tensors = 0;             ///< In its weights.
  std::string title = {};              ///< How its last line begins; empty: as its file is called.
};

/// What is tried: two and three stages over both links, a parameter server of both modes.
[[nodiscard]] const std::vector<subject>& subjects();
/// One more, for calls that fail: a layer of the stage that reads the data throws in the third
/// step, another process takes its place and reads them from there on, and keepers compute
/// versions. A process that is killed does not end it, as it does those above.
[[nodiscard]] const subject& recovering_subject();
/// Any of these. Throws std::invalid_argument for a name that is none.
[[nodiscard]] const subject& subject_of(const std::string& name);

/// A folder for one run: what it saves, its sockets, its segments and its temporary files.
class run_folder {
 public:
  /// `in_place`: sockets and segments are where those of all of this user's runs are.
  explicit run_folder(bool in_place = false);
  run_folder(const run_folder&) = delete;
  run_folder& operator=(const run_folder&) = delete;

  [[nodiscard]] std::filesystem::path weights() const { return folder_ / "out/weights"; }
  /// Variables for the run: XDG_RUNTIME_DIR, TMPDIR, UCX_POSIX_DIR, and TROUPE_THROWN (see
  /// throwing_pipeline).
  [[nodiscard]] std::map<std::string, std::string> environment() const;
  /// For the records of calls.
  [[nodiscard]] std::filesystem::path records() const { return folder_ / "calls"; }
  /// Files that a run which ended in order must not leave: sockets, segments, temporary files,
  /// anything beside the weights.
  [[nodiscard]] std::vector<std::string> left_behind() const;

 private:
  tests::scratch_folder folder_;
  std::optional<tests::scratch_folder> segments_;  // none: in place
};

struct log_line {
  seconds at{};
  std::string text;
};

/// How a process ended that outlived the program that had started it.
struct orphan {
  pid_t pid = 0;
  int code = 0;
  int signal = 0;
};

struct outcome {
  int code = 0;
  int signal = 0;
  bool is_late = false;  ///< It had to be killed at the bound.
  seconds took{};
  std::vector<log_line> log;  ///< Standard error and output.
  std::vector<orphan> orphans;
  std::size_t left_running = 0;  ///< Killed by us, seconds after the program's end.

  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string last_line() const;
};

/// Something done to a run: `delay` after its n-th line (0: after its start), if it is still there.
/// `act` gets the program and the lines until then.
struct intervention {
  std::size_t line = 0;
  seconds delay{};
  std::function<void(pid_t program, const std::vector<log_line>& log)> act;
};

/// Runs a subject to its end, at most `bound`, and waits for every process that came of it. Not
/// from two threads at once: this process takes in all orphans.
[[nodiscard]] outcome run(const subject& what, const run_folder& folder,
                          std::map<std::string, std::string> environment,
                          const std::vector<intervention>& interventions, seconds bound);

/// Reads how every orphan of a run ended that is over; kills what still runs after some seconds.
void take_in_orphans(outcome& ended);

/// What became of a child of this process, by waitid.
[[nodiscard]] orphan orphan_of(const siginfo_t& how);

/// What is wrong with an end, whatever was done to the run: a process that ended by a signal that
/// nobody sends (`sent` are those that we sent, to whomever), an exit code that no document has,
/// something left running, a last line that does not say what failed.
[[nodiscard]] std::vector<std::string> complaints(const subject& what, const outcome& ended,
                                                  const std::set<int>& sent);

/// Empty where the file is there and holds all tensors.
[[nodiscard]] std::string fault_of_weights(const subject& what, const std::filesystem::path& file);

/// "stage-1" of a process of ours, from its command line.
[[nodiscard]] std::string name_of_process(pid_t pid);

}  // namespace troupe::chaos
