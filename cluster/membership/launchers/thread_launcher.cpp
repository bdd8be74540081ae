#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "cluster/membership/node_launcher.hpp"
#include "cluster/membership/stage_node.hpp"
#include "messages/link/loopback/loopback.hpp"

namespace troupe::cluster {
namespace {

class thread_launcher final : public node_launcher {
 public:
  explicit thread_launcher(registries known)
      : known_(std::move(known)), spawn_(stage_host(known_)) {}
  ~thread_launcher() override { join(true); }

  actors::link_factory trainer_link() override {
    return [network = network_](messages::link_events events) {
      return messages::make_loopback_link(network, std::move(events));
    };
  }

  result<void> start(const std::string& name, const std::string& trainer) override try {
    threads_.emplace_back(
        [this,
         settings = joined_node_settings{
             .name = name, .trainer = trainer, .make_link = trainer_link(), .known = known_}] {
          const auto ended = run_node(settings, spawn_);
          const std::scoped_lock lock(mutex_);
          if (!ended && ended.error().code != errc::cancelled)
            ends_.push_back(
                {settings.name, {errc::peer_lost, settings.name + ": " + ended.error().text}});
        });
    return {};
  } catch (const std::system_error& refused) {
    return fail(errc::io_failed, name + ": no thread can be started: " + refused.code().message());
  }

  result<void> give_up(const std::string& name) override {
    return fail(errc::bad_config, name + " is a thread of this process, and cannot be replaced");
  }

  std::vector<node_end> ends() const override {
    const std::scoped_lock lock(mutex_);
    return ends_;
  }

  void expect_ends() override {}  // one in order is none of `ends`
  void join(bool) override {
    for (auto& thread : std::exchange(threads_, {})) thread.join();
  }

 private:
  const messages::loopback_network network_;
  const registries known_;
  const host_spawner spawn_;
  mutable std::mutex mutex_;
  std::vector<node_end> ends_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<node_launcher> make_thread_launcher(registries known) {
  return std::make_unique<thread_launcher>(std::move(known));
}

}  // namespace troupe::cluster
