#include "cluster/doctor/edges/raw_ucx.hpp"

#include <utility>

namespace troupe::cluster::doctor {
namespace {

using messages::ucx::raw_peer;

constexpr std::string_view digits = "0123456789abcdef";

std::string to_digits(const std::vector<std::byte>& bytes) {
  std::string out;
  for (const auto each : bytes) {
    out += digits[std::to_integer<unsigned>(each) >> 4];
    out += digits[std::to_integer<unsigned>(each) & 15];
  }
  return out;
}

result<void> reach_digits(raw_peer& peer, const std::string& text) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    const auto high = digits.find(text[i]);
    const auto low = digits.find(text[i + 1]);
    if (high == digits.npos || low == digits.npos) break;
    bytes.push_back(static_cast<std::byte>(high << 4 | low));
  }
  if (bytes.empty() || bytes.size() * 2 != text.size())
    return fail(errc::bad_frame, "that is no address of UCX's");
  return peer.reach(bytes);
}

}  // namespace

raw_ucx_listener::raw_ucx_listener(std::unique_ptr<raw_peer> peer)
    : peer_(std::move(peer)), address_(to_digits(peer_->address())) {
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
  return to_digits(peer_->address());
}

result<void> raw_ucx::reach(const std::string& listener) {
  return reach_digits(*peer_, listener);
}

}  // namespace troupe::cluster::doctor
