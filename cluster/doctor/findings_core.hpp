#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/doctor/facts/facts.hpp"

// What is right and wrong with a cluster, from facts alone.

namespace troupe::cluster::doctor {

enum class severity : std::uint8_t {
  ok,
  warning,  ///< A run works, but slower than it could, or with something that the user should know.
  error,    ///< A run fails.
};

/// "ok", "warning", "error".
[[nodiscard]] const char* name_of(severity level) noexcept;

struct finding {
  severity level = severity::ok;
  std::string topic;   ///< "memory"
  std::string where;   ///< "beta", "alpha -> beta"; empty: the run.
  std::string text;    ///< One line.
  std::string remedy;  ///< What to do; empty where all is well.

  bool operator==(const finding&) const = default;
};

/// A node of the run and what runs there.
struct patient {
  std::string name;
  std::string lost;         ///< "WHY nothing is known of it; WHAT TO DO"; empty: facts are there.
  bool never_came = false;  ///< That is all: others start it, and it was waited for in vain.
  std::vector<std::string> warnings;  ///< "WHAT; WHAT TO DO", of what was met on the way there.
  std::optional<host_facts> facts;
  std::string listening_error;  ///< Why it cannot listen; empty: it can, or need not.
  std::vector<std::uint32_t> stages;
  int server_processes = 0;  ///< Shards and workers of a parameter server, which has no stages.
  int threads = 0;           ///< Of its stages, or of those processes, together.
  std::uint64_t needed_bytes = 0;     ///< Of their memory, at least; 0: not known.
  std::string what_is_needed;         ///< "weights, gradients and optimizer state"
  std::uint64_t predicted_bytes = 0;  ///< The peak, with activations; 0: not predicted.
  std::string why_not_predicted;      ///< Empty where nothing is known either.
  int shared_memory_processes = 0;    ///< That talk over shared memory there.
  std::uint64_t needed_files = 0;     ///< Open files that one of its processes has; 0: not known.
  bool raises_limits = false;         ///< That process raises its own limit as far as it may.
  bool starts_others_by_ssh = false;
};

/// All that was measured.
struct examination {
  std::vector<patient> nodes;  ///< The trainer's machine first.
  std::vector<edge_facts> edges;
  bool is_sealed = false;       ///< Edges between hosts are sealed tcp.
  std::vector<finding> others;  ///< Of the settings and the model.
};

/// What a launch says of a failure, "WHAT (AS QUOTED; WORD BY WORD); WHAT TO DO", in two parts.
struct said_failure {
  std::string what;
  std::string remedy;  ///< Empty: it says none.

  bool operator==(const said_failure&) const = default;
};
[[nodiscard]] said_failure split_remedy(const std::string& text);

/// The same for a process that could not be started, or ended, on a node: with what to do.
[[nodiscard]] std::string with_remedy_of_start(const std::string& why);

/// Names of the nodes of which nothing could be learned.
[[nodiscard]] std::vector<std::string> unexamined_nodes(const examination& all);

/// Of settings that are wrong, without which no node is known.
[[nodiscard]] examination of_settings(const std::vector<std::string>& errors);

/// Every finding, the nodes' first; each topic that is well has one too.
[[nodiscard]] std::vector<finding> findings_of(const examination& all);

/// Of one node, of all edges, and of nodes beside each other.
[[nodiscard]] std::vector<finding> host_findings(const patient& node, bool is_sealed);
[[nodiscard]] std::vector<finding> folder_findings(const patient& node);
/// Slices of checkpoints that two nodes of one machine keep in one folder, or on one disk.
[[nodiscard]] std::vector<finding> shared_disk_findings(const std::vector<patient>& nodes);
[[nodiscard]] std::vector<finding> edge_findings(const std::vector<edge_facts>& edges);
[[nodiscard]] std::vector<finding> version_findings(const std::vector<patient>& nodes);
[[nodiscard]] std::vector<finding> clock_findings(const examination& all);

/// The worst.
[[nodiscard]] severity worst_of(const std::vector<finding>& all) noexcept;

/// "1.5 GiB", "812 MiB"
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);

}  // namespace troupe::cluster::doctor
