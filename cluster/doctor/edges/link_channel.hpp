#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cluster/doctor/edges/channel.hpp"
#include "messages/base/ids.hpp"
#include "messages/frame.hpp"
#include "messages/link/link_options.hpp"

namespace troupe::cluster::doctor {

/// A listener's clock against ours.
struct clock_difference {
  std::int64_t ahead_ns = 0;
  std::int64_t error_ns = 0;  ///< At most.
};

/// Where a listener offers what is below our link.
struct raw_offer {
  std::string kind;     ///< "socket" or "UCX"
  std::string address;  ///< HOST:PORT, or UCX's address in hexadecimal digits.
  std::uint64_t token = 0;
};

/// Our own link, connected to a listener.
class link_channel final : public channel {
 public:
  /// Errors: those of connecting.
  [[nodiscard]] static result<std::unique_ptr<link_channel>> connect(messages::link_options options,
                                                                     const std::string& address);
  ~link_channel() override;

  result<void> round_trips(int count) override;
  result<void> push(std::size_t bytes, int count) override;

  /// The shortest of some exchanges. Errors: timed_out, peer_lost.
  [[nodiscard]] result<clock_difference> compare_clocks();
  /// Errors: as above; transport_missing with why there is none.
  [[nodiscard]] result<raw_offer> ask_for_raw(const std::string& own_address);

 private:
  struct state;
  explicit link_channel(std::unique_ptr<state> of);
  [[nodiscard]] result<messages::frame> ask(messages::frame what);

  const std::unique_ptr<state> state_;
};

/// For peers that are no link_channels. All are called on the link's thread and may not wait; each
/// may be empty.
struct other_peers {
  /// One has sent what is no request.
  std::function<void(messages::link& by, peer_id, const messages::frame&)> on_frame = {};
  std::function<void(peer_id, const error&)> on_gone = {};
  std::function<void(const error&)> on_refused = {};  ///< See link_events.
};

/// Answers link_channels until it is destroyed.
class link_listener {
 public:
  /// Listens at an address (see make_link). Errors: those of the link.
  [[nodiscard]] static result<std::unique_ptr<link_listener>> open(messages::link_options options,
                                                                   const std::string& address,
                                                                   other_peers others = {});
  link_listener(const link_listener&) = delete;
  link_listener& operator=(const link_listener&) = delete;
  ~link_listener();

  [[nodiscard]] const std::string& address() const noexcept;
  /// To send by, or to close a peer.
  [[nodiscard]] messages::link& link() noexcept;

 private:
  struct state;
  explicit link_listener(std::unique_ptr<state> of);

  const std::unique_ptr<state> state_;
};

}  // namespace troupe::cluster::doctor
