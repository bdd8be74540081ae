#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cluster/membership/node_group.hpp"
#include "cluster/membership/node_launcher.hpp"
#include "cluster/membership/stage_node.hpp"
#include "messages/link/loopback/loopback.hpp"

namespace troupe::tests {

/// Nodes in threads, whose end counts as a failure unless it is expected by then.
class watched_threads final : public cluster::node_launcher {
 public:
  ~watched_threads() override {
    join(true);
    if (outliving_.joinable()) outliving_.join();
  }

  /// Of what outlives the trainer, which is not waited for before the trainer has left.
  std::function<result<void>(const std::string& trainer)> on_invite =
      [this](const std::string& trainer) {
        return start(cluster::node_group::outliving, trainer).map([this] {
          outliving_ = std::move(threads_.back());
          threads_.pop_back();
        });
      };
  std::atomic<int> ended = 0;
  std::atomic<int> failures = 0;
  bool others_start = false;    // those in the places of lost ones
  std::string build = {};       // of the trainer's program, and of that of its nodes
  std::string stranger = {};    // of a node that tries each name first; empty: none does
  std::vector<error> refusals;  // of those; no thread changes it once all have joined
  cluster::host_spawner spawn = cluster::stage_host({});
  std::function<void(const error&)> on_failure = [](const error&) {};
  std::function<void(const std::string& name)> on_give_up = [](const std::string&) {};
  std::function<std::string(const std::string& name)> on_host_of = [](const std::string&) {
    return std::string();
  };
  std::function<void(const std::string& name)> on_give_up_unanswered = [](const std::string&) {};
  std::optional<error> not_ended;            // what `give_up` answers; none: it has ended
  std::vector<cluster::node_end> told_ends;  // what `ends` says
  /// Of one in the place of a lost one, or an understudy.
  std::function<result<void>(const std::string& name, const std::string& trainer)> start_another =
      [](const std::string&, const std::string&) -> result<void> {
    return fail(errc::bad_config, "no test does that");
  };

  actors::link_factory trainer_link() override {
    return [network = network_](messages::link_events events) {
      return messages::make_loopback_link(network, std::move(events));
    };
  }
  result<void> start(const std::string& name, const std::string& trainer) override {
    threads_.emplace_back(
        [this, settings = cluster::joined_node_settings{
                   .name = name, .trainer = trainer, .make_link = trainer_link(), .build = build}] {
          if (!stranger.empty()) try_as_stranger(settings);
          const auto how = cluster::run_node(settings, spawn);
          if (!how || !expected_) ++failures;
          if (!how) on_failure(how.error());
          ++ended;
        });
    return {};
  }
  result<void> start_on(const std::string&, const std::string& name,
                        const std::string& trainer) override {
    return start_another(name, trainer);
  }
  bool starts_none() const override { return others_start; }
  result<void> invite(int, const std::string& trainer) override { return on_invite(trainer); }
  result<void> give_up(const std::string& name) override {
    on_give_up(name);
    if (not_ended) return tl::unexpected(*not_ended);
    return {};
  }
  void give_up_unanswered(const std::string& name) override { on_give_up_unanswered(name); }
  std::string host_of(const std::string& name) const override { return on_host_of(name); }
  std::vector<cluster::node_end> ends() const override { return told_ends; }
  std::string required_build() const override { return build; }
  void expect_ends() override { expected_ = true; }
  void join(bool) override {
    for (auto& each : std::exchange(threads_, {})) each.join();
  }

 private:
  void try_as_stranger(cluster::joined_node_settings settings) {
    settings.build = stranger;
    if (const auto how = cluster::run_node(settings, spawn); !how) refusals.push_back(how.error());
  }

  const messages::loopback_network network_;
  std::atomic<bool> expected_ = false;
  std::vector<std::thread> threads_;
  std::thread outliving_;
};

}  // namespace troupe::tests
