#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cluster/doctor/facts/facts_text.hpp"
#include "cluster/membership/launch_choice.hpp"

namespace troupe::cluster::doctor {

/// What a process on a node has said, and what went wrong.
struct answer {
  std::vector<std::string> lines;  ///< Of facts; see facts_text.hpp.
  std::string error;               ///< Empty: it ended well, or goes on.
};

/// An agent on one node, as a launch has it there, and what it is asked. Processes are started as
/// stage processes are: with the node's environment, working folder and the secret. Requests may be
/// served at once, from several threads, by as many examiners as it has: each serves one at a time.
class node_visit {
 public:
  /// Returns when the agent takes orders. Errors: those of make_agent_launcher.
  [[nodiscard]] static result<std::unique_ptr<node_visit>> open(const agent_plan& plan,
                                                                agent_host host,
                                                                std::size_t examiners);
  node_visit(const node_visit&) = delete;
  node_visit& operator=(const node_visit&) = delete;
  ~node_visit();

  /// What is harmless and yet to be changed: see process_watch.
  [[nodiscard]] std::vector<std::string> warnings() const;

  /// Has one of the examiners serve a request to its end, which must come within `limit`.
  [[nodiscard]] answer ask(const request& what, std::chrono::milliseconds limit,
                           std::size_t examiner = 0);
  /// Has one begin to, and returns when it has said its facts; it goes on until the visit ends.
  [[nodiscard]] answer begin(const request& what, std::chrono::milliseconds limit);

 private:
  struct mailbox;
  node_visit(std::shared_ptr<mailbox> box, std::unique_ptr<node_launcher> launcher);
  [[nodiscard]] answer serve(const std::string& process, const request& what,
                             std::chrono::milliseconds limit, bool to_its_end);

  const std::shared_ptr<mailbox> box_;
  const std::unique_ptr<node_launcher> launcher_;
};

}  // namespace troupe::cluster::doctor
