#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/doctor/facts/facts_text.hpp"
#include "cluster/doctor/visits/visit_mailbox.hpp"
#include "cluster/membership/launchers/launch_choice.hpp"

namespace troupe::cluster::doctor {

/// What a process on a node has said, and what went wrong.
struct answer {
  std::vector<std::string> lines;  ///< Of facts; see facts_text.hpp.
  std::string error;               ///< Empty: it ended well, or goes on.
};

/// How processes of the program are started on a node, each under a name and with a request.
struct visit_means {
  std::function<result<void>(const std::string& process, const std::string& asked)> start;
  std::function<void(const std::string& process)> kill;
  std::function<void()> leave;  ///< Ends all that is left there. Called once, last.
};

/// A node, and what it is asked: by an agent, as a launch has it there, or by a process that
/// somebody else has started. Processes are started as stage processes are: with the node's
/// environment, working folder and the secret. Requests may be served at once, from several
/// threads, by as many examiners as it has: each serves one at a time.
class node_visit {
 public:
  /// By an agent. Returns when it takes orders. Errors: those of make_agent_launcher.
  [[nodiscard]] static result<std::unique_ptr<node_visit>> open(const agent_plan& plan,
                                                                agent_host host,
                                                                std::size_t examiners);
  /// By any means; what the node's processes report goes to `box`.
  node_visit(std::shared_ptr<visit_mailbox> box, visit_means means);
  node_visit(const node_visit&) = delete;
  node_visit& operator=(const node_visit&) = delete;
  ~node_visit();

  /// What is harmless and yet to be changed: see process_watch.
  [[nodiscard]] std::vector<std::string> warnings() const;

  /// Has one of the examiners serve a request to its end, which must come within `limit`.
  [[nodiscard]] answer ask(const request& what, std::chrono::milliseconds limit,
                           std::size_t examiner = 0);
  /// Has one begin to, and returns when it has said its facts; it goes on until `end` or the
  /// visit's.
  [[nodiscard]] answer begin(const request& what, std::chrono::milliseconds limit);
  /// Ends what `begin` has begun and goes on, and waits for that.
  void end();

 private:
  [[nodiscard]] answer serve(const std::string& process, const request& what,
                             std::chrono::milliseconds limit, bool to_its_end);
  [[nodiscard]] result<void> start(const std::string& process, const request& what);
  void kill(const std::string& process);

  const std::shared_ptr<visit_mailbox> box_;
  const visit_means means_;
};

}  // namespace troupe::cluster::doctor
