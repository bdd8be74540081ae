#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"

namespace troupe::cluster {

/// A file for each node of a run, NAME.log, with the lines that its processes write, each behind
/// its time (UTC) and whose it is:
///
///     2026-05-04T09:30:00.125Z stage-1: layers 5 to 9
///
/// What is in a file already stays before them. A file that can be written no more is warned of
/// once and left; the run goes on. Used by one thread at a time.
class node_logs {
 public:
  /// Opens no file: `write` does nothing.
  node_logs() = default;

  /// Makes the folder where it is not there. Errors: io_failed, naming what cannot be written.
  [[nodiscard]] static result<node_logs> open(const std::filesystem::path& folder,
                                              const std::vector<std::string>& nodes);

  /// `process`: "stage-1"; empty: the node's agent.
  void write(const std::string& node, std::string_view process, std::string_view line);

 private:
  struct file {
    std::filesystem::path path;
    descriptor to;  // closed: it could be written no more
  };
  std::map<std::string, file> files_;  // by node
};

}  // namespace troupe::cluster
