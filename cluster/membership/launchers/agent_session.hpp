#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/remote/ticker.hpp"
#include "cluster/launch/agents/session_core.hpp"
#include "cluster/launch/agents/stream_seal.hpp"
#include "cluster/launch/node_logs.hpp"
#include "cluster/launch/process_group.hpp"
#include "cluster/membership/launchers/agent_launcher.hpp"
#include "cluster/membership/log_end.hpp"
#include "cluster/membership/node_launcher.hpp"
#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"

/// For the sources of make_agent_launcher alone.
namespace troupe::cluster {

/// One agent. Guarded by the launcher's mutex.
struct agent_session {
  agent_host what;
  session_core core;
  std::unique_ptr<stream_seal> seal;  // where a scheduler carries the stream
  descriptor input;                   // of the agent; non-blocking
  std::string unsent = {};            // to it
  last_words words = {};
  std::map<std::string, std::string> last_error = {};  // of each process: its last line on stderr
  std::uint32_t cores = 0;
  // Since when it is given up as soon as its silence permits.
  std::optional<std::chrono::steady_clock::time_point> in_doubt = {};
};

/// See make_agent_launcher.
class agent_launcher final : public node_launcher {
 public:
  agent_launcher(process_link link, agent_settings settings, node_logs logs)
      : link_(std::move(link)), settings_(std::move(settings)), logs_(std::move(logs)) {}
  agent_launcher(const agent_launcher&) = delete;
  agent_launcher& operator=(const agent_launcher&) = delete;
  ~agent_launcher() override {
    ticker_.reset();
    group_.reset();  // kills what is left; its thread calls into this object
  }

  /// Starts the agents and waits until all of them take orders.
  result<void> open();

  actors::link_factory trainer_link() override { return process_link_factory(link_); }
  result<void> start(const std::string& name, const std::string& trainer) override;
  result<void> start_on(const std::string& host, const std::string& name,
                        const std::string& trainer) override;
  result<void> invite(int socket, const std::string& trainer) override {
    return invite_over(link_, socket, trainer);
  }
  result<void> give_up(const std::string& name) override;
  void ask_agents() override;
  void give_up_unanswered(const std::string& name) override;
  std::vector<node_end> ends() const override;
  std::string host_of(const std::string& name) const override;
  std::string place_of(const std::string& name) const override;
  void expect_ends() override;
  void join(bool in_order) override;
  void kill() override;
  void kill(const std::string& name) override;
  void suspend() override;
  void resume() override;

 private:
  using clock = std::chrono::steady_clock;

  result<void> start_agent(const agent_host& host, const std::string& build);
  [[nodiscard]] std::vector<std::string> arguments_of(const agent_session& at,
                                                      const std::string& name,
                                                      const std::string& trainer) const;
  void heard(std::string_view agent, output_stream stream, std::string_view line);
  void ended(const child_exit& how);
  void tick();

  // Under the lock:
  [[nodiscard]] agent_session* find(std::string_view agent);
  [[nodiscard]] agent_session* host_of_process(const std::string& name) const;
  [[nodiscard]] agent_session* roomiest() const;
  [[nodiscard]] bool has_others_than(const agent_session& one, clock::time_point since) const;
  void start_on(agent_session& at, const std::string& name, const std::string& trainer);
  void give_up_if_unanswered(agent_session& at, clock::time_point now);
  void note_loss(agent_session& at, const error& why);
  void heard_sealed(agent_session& at, std::string_view line);
  void perform(agent_session& at, session_core::effects what);
  void flush(agent_session& to) const;
  void note_ready(agent_session& at, const events::hello& who);
  void show_line(agent_session& at, const session_core::show& what);
  static void show_word(const agent_session& at, const std::string& process,
                        const std::string& word);
  void note_end(agent_session& at, const child_exit& how);
  void tell_left(std::chrono::milliseconds time) const;

  const process_link link_;
  const agent_settings settings_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<agent_session>> sessions_;
  node_logs logs_;
  std::vector<node_end> losses_;              // of what was not replaced, in their order
  bool expected_ = false;                     // told to end: what comes now is no failure
  bool is_joining_ = false;                   // in order: what comes now is no failure, but is told
  const agent_session* giving_up_ = nullptr;  // is waited for to end a process
  std::optional<process_group> group_;
  std::unique_ptr<actors::ticker> ticker_;
};

}  // namespace troupe::cluster
