#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "messages/link/frames/outbox.hpp"
#include "messages/link/listeners.hpp"
#include "messages/link/seal/format.hpp"
#include "messages/link/simulated/simulated.hpp"

namespace troupe::messages {

class simulated_node;

/// The clock, chance and places of a simulated network. One thread.
class simulated_network::state : public std::enable_shared_from_this<simulated_network::state> {
 public:
  using time = std::chrono::nanoseconds;

  explicit state(simulated_options options) : options_(options), random_(options.seed) {}

  bool step();
  void at(time when, std::function<void()> what);
  void after(time delay, std::function<void()> what) { at(now_ + delay, std::move(what)); }
  [[nodiscard]] time now() const { return now_; }
  [[nodiscard]] std::optional<time> due() const {
    return agenda_.empty() ? std::nullopt : std::optional(agenda_.begin()->first.first);
  }

  [[nodiscard]] time a_delay() { return between(options_.least_delay, options_.most_delay); }
  [[nodiscard]] time between(time least, time most);
  [[nodiscard]] bool happens(double chance);
  [[nodiscard]] std::uint64_t random_word() { return random_(); }

  [[nodiscard]] messages::listeners<simulated_node>& listeners() { return listeners_; }

  /// Nothing that is planned happens any more.
  void forget_all();

  void partition(std::set<const simulated_node*> side);
  void heal();
  void forget(const simulated_node* node) { side_.erase(node); }
  [[nodiscard]] bool parted(const simulated_node* one, const simulated_node* other) const {
    return side_.contains(one) != side_.contains(other);
  }
  /// Calls `what` when the partition that is now has healed.
  void when_healed(std::function<void()> what) { parked_.push_back(std::move(what)); }

  [[nodiscard]] const simulated_options& options() const { return options_; }

 private:
  const simulated_options options_;
  std::mt19937_64 random_;
  time now_{0};
  std::uint64_t next_ = 0;  // those of one time happen in the order they were asked for
  std::map<std::pair<time, std::uint64_t>, std::function<void()>> agenda_;
  messages::listeners<simulated_node> listeners_;
  std::set<const simulated_node*> side_;
  std::vector<std::function<void()>> parked_;
};

/// What one end of a connection sends the other.
struct simulated_message {
  wire::message_id id = wire::handshake_id;
  std::vector<std::byte> header;
  std::span<const std::byte> data;  ///< In `bytes`, or in what the piece holds.
  std::vector<std::byte> bytes;
  std::vector<outbox::piece> pieces;
  std::vector<outgoing::large_tensor>
      held;                  ///< What a chunk lies in, also when its frame has ended.
  std::uint64_t ticket = 0;  ///< The sender's.
  bool is_receipt = false;   ///< The chunk of this ticket of yours has arrived.

  /// Whether it keeps its place among others that do.
  [[nodiscard]] bool passes_the_door() const {
    return !is_receipt && pieces.empty() && id != wire::returns_id;
  }
};

/// A connection between two nodes: 0 made it, 1 took it.
class simulated_connection : public std::enable_shared_from_this<simulated_connection> {
 public:
  explicit simulated_connection(std::shared_ptr<simulated_network::state> network)
      : network_(std::move(network)) {}

  void join(unsigned end, const std::shared_ptr<simulated_node>& node, peer_id peer);

  /// Asks the node that listens at `address`, which is named so in errors.
  void open(const std::string& address);

  /// Sends from one end to the other. Returns when the message has left.
  simulated_network::state::time send(unsigned from, std::shared_ptr<const simulated_message> what);

  /// That end is gone; the other will hear of it.
  void close(unsigned end);

  [[nodiscard]] simulated_network::state& network() const { return *network_; }

 private:
  struct side {
    std::weak_ptr<simulated_node> node;
    peer_id peer;
    simulated_network::state::time free_at{0};                  // when what it sent has left
    std::deque<std::shared_ptr<const simulated_message>> door;  // what comes, in order
    std::set<const simulated_message*> at_door;                 // of these, what is here
    bool joined = false;
    bool closed = false;
  };

  void arrive(unsigned to, const std::shared_ptr<const simulated_message>& what);
  void lose();
  void notify(unsigned end);
  void tell_broken(unsigned end);
  void park(std::function<void()> again);
  [[nodiscard]] bool parted() const;

  const std::shared_ptr<simulated_network::state> network_;
  side ends_[2];
  bool broken_ = false;
  std::vector<std::shared_ptr<const simulated_message>> early_;  // for an end that has not joined
  std::uint64_t parked_ = 0;
  simulated_network::state::time parked_since_{0};
};

}  // namespace troupe::messages
