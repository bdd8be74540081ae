#include <utility>

#include "cluster/doctor/edges/link_channel.hpp"
#include "cluster/doctor/edges/raw_socket.hpp"
#include "cluster/doctor/edges/raw_ucx.hpp"
#include "cluster/doctor/edges/words.hpp"
#include "cluster/hosts/host_addresses.hpp"
#include "cluster/launch/agents/wall_clock.hpp"

namespace troupe::cluster::doctor {

using messages::frame;
using messages::frame_kind;
using messages::value;

/// Used on the link's thread; the link, last, is destroyed first.
struct link_listener::state {
  messages::link_options options;
  other_peers others;
  std::string address;
  std::unique_ptr<raw_socket_listener> socket;
  std::unique_ptr<raw_ucx_listener> ucx;
  std::unique_ptr<messages::link> link;

  void hear(peer_id peer, frame message) {
    if (message.kind != frame_kind::request) {
      if (others.on_frame) others.on_frame(*link, peer, message);
      return;
    }
    if (message.body.size() != 1) return;
    auto& asked = message.body.front();
    if (asked.type == words::clock) {
      asked.fields = {value{wall_clock_ns()}};
    } else if (asked.type == words::raw) {
      asked.fields =
          options.transport == messages::link_transport::tcp ? offer_socket() : offer_ucx(asked);
    }
    message.kind = frame_kind::response;
    message.tensors.clear();
    link->send(peer, std::move(message), {});
  }

  static value::list none(const error& why) {
    return {value{std::string()}, value{why.text}, value{std::int64_t{0}}};
  }

  value::list offer_ucx(const messages::element& asked) {
    const auto* const client =
        asked.fields.empty() ? nullptr : std::get_if<std::string>(&asked.fields.front().of);
    ucx.reset();  // of a client before
    auto opened = raw_ucx_listener::open(options, client == nullptr ? "" : *client);
    if (!opened) return none(opened.error());
    ucx = std::move(*opened);
    return {value{std::string("UCX")}, value{ucx->address()}, value{std::int64_t{0}}};
  }

  value::list offer_socket() {
    if (!socket) {
      auto opened = raw_socket_listener::open(host_of(address));
      if (!opened) return none(opened.error());
      socket = std::move(*opened);
    }
    return {value{std::string("socket")}, value{socket->address()},
            value{static_cast<std::int64_t>(socket->token())}};
  }
};

link_listener::link_listener(std::unique_ptr<state> of) : state_(std::move(of)) {}
link_listener::~link_listener() = default;

const std::string& link_listener::address() const noexcept {
  return state_->address;
}

messages::link& link_listener::link() noexcept {
  return *state_->link;
}

result<std::unique_ptr<link_listener>> link_listener::open(messages::link_options options,
                                                           const std::string& address,
                                                           other_peers others) {
  auto own = std::make_unique<state>();
  state* const at = own.get();
  own->options = options;
  own->others = std::move(others);
  auto made = messages::make_link(
      std::move(options),
      {.on_peer_up = [](peer_id) {},
       .on_frame = [at](peer_id peer, frame message) { at->hear(peer, std::move(message)); },
       .on_peer_down =
           [at](peer_id peer, const error& why) {
             if (at->others.on_gone) at->others.on_gone(peer, why);
           },
       .on_refused = own->others.on_refused});
  if (!made) return tl::unexpected(made.error());
  own->link = std::move(*made);
  auto bound = own->link->listen(address);
  if (!bound) return tl::unexpected(bound.error());
  own->address = std::move(*bound);
  return std::unique_ptr<link_listener>(new link_listener(std::move(own)));
}

}  // namespace troupe::cluster::doctor
