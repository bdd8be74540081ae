#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cluster/launch/child_process.hpp"
#include "cluster/launch/line_splitter.hpp"
#include "cluster/launch/process_group.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster::doctor {

/// Reports about the processes on a node that the doctor visits. Filled from any thread. What a
/// node says of other processes is ignored: anybody who knows the secret may have said it.
struct visit_mailbox {
  /// Lines of facts, and bytes of a line: the program never writes more for a request.
  static constexpr std::size_t most_lines = 256;
  static constexpr std::size_t longest_line = line_splitter::longest_line_bytes;

  struct process {
    std::vector<std::string> lines;  ///< Of facts.
    std::string last_error;
    std::optional<child_exit> end;
    bool says_too_much = false;  ///< And is listened to no more.
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, process> processes;  ///< That were started, by name.
  std::vector<std::string> warnings;         ///< "WHAT; WHAT TO DO"
  std::optional<error> lost;                 ///< The node is, with its processes.

  void hear(const std::string& name, output_stream stream, const std::string& text);
  void note_end(const child_exit& how);
  void note_warning(const std::string& text);
  void note_lost(const error& why);
};

}  // namespace troupe::cluster::doctor
