#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/base/deadlines.hpp"
#include "cluster/config/files/secret_file.hpp"
#include "cluster/config/sources/command_line.hpp"
#include "cluster/hosts/host_addresses.hpp"
#include "cluster/launch/agents/secret_pipe.hpp"
#include "cluster/launch/child_process.hpp"
#include "cluster/launch/open_files.hpp"
#include "cluster/launch/process_group.hpp"
#include "cluster/membership/launchers/held_up_core.hpp"
#include "cluster/membership/log_end.hpp"
#include "cluster/membership/node_launcher.hpp"
#include "cluster/membership/outliving/invitation.hpp"
#include "messages/base/log.hpp"
#include "messages/link/door/listener.hpp"
#include "messages/link/link_options.hpp"
#include "messages/link/meeting_place.hpp"

namespace troupe::cluster {
namespace {

/// What the children's ends were, shared with the process group's thread.
class child_ends {
 public:
  void note(const child_exit& ended) {
    const std::scoped_lock lock(mutex_);
    log_end(ended, expected_);
    over_.insert(ended.name);
    const auto word = words_.take(ended.name);
    if (expected_) {
      if (!word.empty()) print_line(ended.name, output_stream::err, word);
    } else {
      const bool is_told = !word.empty() && !is_reason(ended.name, failures_);
      failures_.push_back({ended.name, loss_of(ended, word), is_told});
      if (is_told) log::warning(failures_.back().how.text);
    }
    changed_.notify_all();
  }

  /// A line that a child has written.
  void heard(std::string_view name, output_stream stream, std::string_view line) {
    const std::scoped_lock lock(mutex_);
    if (!words_.heard(name, stream, line)) print_line(name, stream, line);
  }

  /// All were told to end: what comes now is no failure.
  void expect() {
    const std::scoped_lock lock(mutex_);
    expected_ = true;
  }

  /// Waits for the end of one, which is no failure any more. False if it has not ended by then.
  bool forgive(const std::string& name, held_up_core::clock::time_point until) {
    std::unique_lock lock(mutex_);
    const bool ended = changed_.wait_until(lock, until, [&] { return over_.contains(name); });
    std::erase_if(failures_, [&](const auto& each) { return each.node == name; });
    return ended;
  }

  /// Those of these that have not ended.
  std::vector<std::string> missing(const std::set<std::string>& names) {
    const std::scoped_lock lock(mutex_);
    std::vector<std::string> out;
    std::ranges::set_difference(names, over_, std::back_inserter(out));
    return out;
  }

  std::vector<node_end> failures() {
    const std::scoped_lock lock(mutex_);
    return failures_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool expected_ = false;
  std::set<std::string> over_;
  std::vector<node_end> failures_;
  last_words words_;
};

class process_launcher final : public node_launcher {
 public:
  process_launcher(process_link link, bool verbose, std::shared_ptr<child_ends> ended,
                   process_group group)
      : link_(std::move(link)),
        verbose_(verbose),
        ends_(std::move(ended)),
        group_(std::move(group)) {}

  actors::link_factory trainer_link() override { return process_link_factory(link_); }

  result<void> start(const std::string& name, const std::string& trainer) override {
    if (auto room = allow_open_files(own_files + (started_.size() + 1) * files_a_child); !room)
      return room;
    const auto secret = secret_pipe(link_.secret);
    if (!secret) return tl::unexpected(secret.error());
    return group_
        .start({.name = name,
                .arguments = to_arguments({.join = trainer,
                                           .name = name,
                                           .transport = link_.transport,
                                           .network = link_.network,
                                           .verbose = verbose_,
                                           .secret_descriptor = handed_over_as,
                                           .secret_file = {}}),
                .environment = {{started_by, std::to_string(::getpid())}},
                .handed_over = secret->get(),
                .joins = true})
        .map([&] { started_.insert(name); });
  }

  result<void> invite(int socket, const std::string& trainer) override {
    return invite_over(link_, socket, trainer);
  }

  result<void> give_up(const std::string& name) override {
    if (!started_.contains(name)) return {};  // the system had no process for it
    group_.kill(name);
    const auto wait = held_up_.asked(name, held_up_core::clock::now());
    if (!ends_->forgive(name, wait.told)) {
      if (wait.is_first)
        log::warning(name +
                     " was killed, and has not ended: a disk may hold it up; it is waited for "
                     "another minute");
      if (!ends_->forgive(name, wait.over))
        return fail(errc::io_failed, name + " was killed, and has not ended");
    }
    held_up_.ended(name);
    started_.erase(name);
    return {};
  }

  std::vector<node_end> ends() const override { return ends_->failures(); }

  void expect_ends() override { ends_->expect(); }

  void join(bool in_order) override {
    if (!(in_order ? wait_for_ends() : group_.wait(std::chrono::milliseconds{0})))
      group_.terminate_all(actors::usual_deadlines.terminate);
    messages::door::sweep_left_sockets();  // a process that is killed leaves its own
  }

  void kill() override { group_.kill(); }
  void kill(const std::string& name) override { group_.kill(name); }
  void suspend() override { group_.suspend(); }
  void resume() override { group_.resume(); }

 private:
  /// False: not all have ended in time.
  [[nodiscard]] bool wait_for_ends() const {
    if (group_.wait(actors::usual_deadlines.tell_of_end)) return true;
    for (const auto& name : ends_->missing(started_)) log::warning(words_on_late_end(name));
    return group_.wait(actors::usual_deadlines.end - actors::usual_deadlines.tell_of_end);
  }

  process_link link_;
  bool verbose_;
  std::set<std::string> started_;  // and not given up
  held_up_core held_up_{actors::usual_deadlines.end, actors::usual_deadlines.held_up};
  std::shared_ptr<child_ends> ends_;
  process_group group_;
};

/// Whoever names a port wants one to be open.
transport chosen_transport(const link_config& config) noexcept {
  const bool names_port = config.transport == transport::automatic && !config.listen.empty();
  return names_port ? transport::tcp : config.transport;
}

}  // namespace

result<void> node_launcher::invite(int, const std::string&) {
  return fail(errc::bad_config, "nodes are threads of this process");
}

result<void> invite_over(const process_link& link, int socket, const std::string& trainer_address) {
  return send_invitation(socket, {.trainer = trainer_address,
                                  .transport = static_cast<std::uint8_t>(link.transport),
                                  .network = static_cast<std::uint8_t>(link.network),
                                  .secret = link.secret});
}

result<process_link> process_link_of(const link_config& config) {
  auto secret = config.secret_file.empty()
                    ? result<messages::cluster_secret>(messages::cluster_secret::random())
                    : read_secret_file(config.secret_file);
  if (!secret) return tl::unexpected(secret.error());
  return process_link{.transport = chosen_transport(config),
                      .network = config.network,
                      .secret = std::move(*secret),
                      .beyond_loopback = !is_loopback(config.listen)};
}

result<process_link> process_link_of(const node_options& options) {
  auto secret = result<messages::cluster_secret>();
  if (options.secret_descriptor >= 0)
    secret = read_inherited_secret(options.secret_descriptor);
  else if (!options.secret_file.empty())
    secret = read_secret_file(options.secret_file);
  if (!secret) return tl::unexpected(secret.error());
  return process_link{
      .transport = options.transport,
      .network = options.network,
      .secret = std::move(*secret),
      .beyond_loopback = !is_loopback(messages::meeting_place::parse(options.join).outside)};
}

result<std::unique_ptr<node_launcher>> make_process_launcher(process_link link, bool verbose,
                                                             std::size_t processes) {
  if (was_launched())
    return fail(errc::bad_config,
                "this process was started as a node, with --join, and would start nodes of its "
                "own without end: where read_command_line gives node_options, main must serve with "
                "them (run_node, as troupe::main does) before it starts any");
  if (auto room = allow_open_files(own_files + processes * files_a_child); !room)
    return tl::unexpected(room.error());
  auto ended = std::make_shared<child_ends>();
  auto group = process_group::create(
      {.on_exit = [ended](const child_exit& child) { ended->note(child); },
       .on_line = [ended](std::string_view name, output_stream stream,
                          std::string_view line) { ended->heard(name, stream, line); }});
  if (!group) return tl::unexpected(group.error());
  return std::make_unique<process_launcher>(std::move(link), verbose, std::move(ended),
                                            std::move(*group));
}

messages::link_transport transport_of(const process_link& link) noexcept {
  if (!opens_port(link.transport)) return messages::link_transport::shm;
  return link.network == network::trusted ? messages::link_transport::trusted
                                          : messages::link_transport::tcp;
}

messages::link_transport transport_of(const link_config& config) noexcept {
  return transport_of(
      process_link{.transport = chosen_transport(config), .network = config.network});
}

messages::link_options link_options_of(const process_link& link) {
  return {.transport = transport_of(link),
          .secret = link.secret,
          .beyond_loopback = link.beyond_loopback};
}

actors::link_factory process_link_factory(const process_link& link) {
  auto options = link_options_of(link);
  options.has_inside_door = link.transport == transport::mixed;
  if (options.transport == messages::link_transport::trusted) {
    log::warning(
        "the network is trusted: whoever reaches the ports that UCX opens can write this process's "
        "memory");
  }
  return [options](messages::link_events events) {
    return messages::make_link(options, std::move(events));
  };
}

}  // namespace troupe::cluster
