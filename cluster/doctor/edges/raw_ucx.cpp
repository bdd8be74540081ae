#include "cluster/doctor/edges/raw_ucx.hpp"

#include <utility>

#include "messages/base/printable.hpp"

namespace troupe::cluster::doctor {
namespace {

using messages::ucx::raw_peer;

result<void> reach_digits(raw_peer& peer, const std::string& text) {
  const auto bytes = from_hexadecimal(text);
  if (!bytes || bytes->empty()) return fail(errc::bad_frame, "that is no address of UCX's");
  return peer.reach(*bytes);
}

}  // namespace

raw_ucx_listener::raw_ucx_listener(std::unique_ptr<raw_peer> peer)
    : peer_(std::move(peer)), address_(to_hexadecimal(peer_->address())) {
  thread_ = std::thread([this] { peer_->serve(stop_); });
}

raw_ucx_listener::~raw_ucx_listener() {
  stop_ = true;
  thread_.join();
}

result<std::unique_ptr<raw_ucx_listener>> raw_ucx_listener::open(
    const messages::link_options& options, const std::string& client) {
  auto peer = raw_peer::make(options);
  if (!peer) return tl::unexpected(peer.error());
  if (auto reached = reach_digits(**peer, client); !reached) return tl::unexpected(reached.error());
  return std::unique_ptr<raw_ucx_listener>(new raw_ucx_listener(std::move(*peer)));
}

result<std::unique_ptr<raw_ucx>> raw_ucx::make(messages::link_options options) {
  auto peer = raw_peer::make(std::move(options));
  if (!peer) return tl::unexpected(peer.error());
  return std::unique_ptr<raw_ucx>(new raw_ucx(std::move(*peer)));
}

std::string raw_ucx::address() const {
  return to_hexadecimal(peer_->address());
}

result<void> raw_ucx::reach(const std::string& listener) {
  return reach_digits(*peer_, listener);
}

}  // namespace troupe::cluster::doctor
