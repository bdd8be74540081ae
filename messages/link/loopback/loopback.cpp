#include "messages/link/loopback/loopback.hpp"

#include <fmt/format.h>

#include <system_error>
#include <thread>
#include <utility>

#include "messages/link/loopback/loopback_engine.hpp"

namespace troupe::messages {

loopback_network::loopback_network() : state_(std::make_shared<state>()) {}

namespace {

class loopback_link final : public link {
 public:
  loopback_link(std::shared_ptr<loopback_network::state> network, link_events events, limits bounds)
      : network_(std::move(network)),
        engine_(std::make_shared<loopback_engine>(std::move(events), bounds)),
        thread_([engine = engine_] { engine->run(); }) {}

  ~loopback_link() override {
    if (!listening_at_.empty()) network_->remove(listening_at_);
    engine_->stop();
    thread_.join();
  }

  result<std::string> listen(const std::string& address) override {
    auto bound = network_->add(address, engine_);
    if (!bound) return bound;
    if (!listening_at_.empty()) network_->remove(listening_at_);
    listening_at_ = *bound;
    return bound;
  }

  void connect(const std::string& address, std::chrono::milliseconds, connected done) override {
    const std::shared_ptr<loopback_engine> other = network_->find(address);
    if (other && loopback_engine::join(engine_, other, done)) return;
    engine_->refuse(
        std::move(done),
        {errc::address_unavailable, fmt::format("cannot connect to {}: nobody listens", address)});
  }

  void send(peer_id peer, frame message, completion done) override {
    engine_->send(peer, std::move(message), std::move(done));
  }

  void close(peer_id peer, error reason) override { engine_->close(peer, reason); }

  void post(std::function<void()> what) override { engine_->post(std::move(what)); }

  link_stats stats() const override { return engine_->counters().read(); }

  bool moves(const device_ref&) const override { return true; }  // by reference, in one process

 private:
  const std::shared_ptr<loopback_network::state> network_;
  const std::shared_ptr<loopback_engine> engine_;
  std::string listening_at_;
  std::thread thread_;
};

}  // namespace

result<std::unique_ptr<link>> make_loopback_link(const loopback_network& network,
                                                 link_events events, limits bounds) try {
  bounds.device_memory = true;
  return std::make_unique<loopback_link>(network.state_, std::move(events), bounds);
} catch (const std::system_error& problem) {
  return fail(errc::io_failed, fmt::format("the link cannot start its thread: {}; see ulimit -u",
                                           problem.code().message()));
}

}  // namespace troupe::messages
