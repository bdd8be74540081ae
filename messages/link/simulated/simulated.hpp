#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "messages/codec/limits.hpp"
#include "messages/link/link.hpp"

namespace troupe::messages {

/// The disturbances of a simulated network. Probabilities are from 0 to 1.
struct simulated_options {
  std::uint64_t seed = 1;

  /// Each piece of a frame takes a time of its own between these, so pieces overtake each other.
  std::chrono::nanoseconds least_delay = std::chrono::microseconds{5};
  std::chrono::nanoseconds most_delay = std::chrono::microseconds{200};
  std::uint64_t bytes_per_second = std::uint64_t{4} << 30;  ///< Of each direction of a connection.

  double losses = 0;   ///< Of a piece: it is lost, and the connection breaks.
  double repeats = 0;  ///< Of a piece: it comes twice, and must count once.
  /// A side notices within this time that its connection broke; pieces may still arrive until then.
  std::chrono::nanoseconds notice = std::chrono::milliseconds{1};
  /// How long a connection survives when its pieces cannot pass a partition.
  std::chrono::nanoseconds patience = std::chrono::seconds{5};
  std::chrono::nanoseconds linger = std::chrono::seconds{2};  ///< As link_options::linger.

  std::uint64_t in_flight_bytes = std::uint64_t{16} << 20;  ///< As link_options'.
  std::uint64_t chunk_bytes = std::uint64_t{8} << 20;
  std::uint32_t inline_bytes = 8 << 10;
};

/// A network that exists in one thread, with a clock of its own: nothing happens but in `step`, and
/// the same seed and calls give the same run. Its links keep the contract of real ones and use the
/// same codec, numbering and reassembly; their events are called from within `step`. A value to be
/// wired by whoever makes the links; copies are the same network. One thread.
class simulated_network {
 public:
  explicit simulated_network(simulated_options options = {});

  /// Lets the next event happen; false if there is none.
  bool step();

  /// Steps until nothing is left to happen. Returns how many were made.
  std::size_t run_until_idle();

  [[nodiscard]] std::chrono::nanoseconds now() const;

  /// When the next step happens; nullopt if nothing is left to happen.
  [[nodiscard]] std::optional<std::chrono::nanoseconds> due() const;

  /// Has something happen in `step`, like what the network itself does.
  void after(std::chrono::nanoseconds delay, std::function<void()> what);

  /// Until `heal`, nothing passes between these links and all others; it is delivered afterwards,
  /// unless the connection lost its patience. A second call replaces the first.
  void partition(const std::vector<const link*>& side);
  void heal();

  /// The process of this link dies: it is told nothing any more, not even of its sends, and what it
  /// was sending may or may not arrive. The link itself is still its owner's.
  void crash(link& which);

  class state;

 private:
  friend result<std::unique_ptr<link>> make_simulated_link(const simulated_network&, link_events,
                                                           limits);
  std::shared_ptr<state> state_;
};

/// A link over a simulated network. It may outlive the network's handle. Its destructor completes
/// what is in flight; it must not run inside one of the link's own events.
[[nodiscard]] result<std::unique_ptr<link>> make_simulated_link(const simulated_network& network,
                                                                link_events events,
                                                                limits bounds = {});

}  // namespace troupe::messages
