#include "engine/collective/nccl/maker.hpp"

#include <charconv>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "engine/collective/nccl/port.hpp"
#include "engine/collective/nccl/sockets.hpp"
#include "engine/collective/nccl/torch_device.hpp"
#include "messages/base/printable.hpp"

namespace troupe::engine::nccl {
namespace {

/// "22809:2:" and what is left behind it.
std::optional<int> take_number(std::string_view& text) {
  const auto colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  int number = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + colon, number);
  if (wrong != std::errc() || end != text.data() + colon) return std::nullopt;
  text.remove_prefix(colon + 1);
  return number;
}

result<std::shared_ptr<device>> usual_device(c10::Device on) {
  auto made = torch_device::make(on);
  if (!made) return tl::unexpected(made.error());
  return std::shared_ptr<device>(std::move(*made));
}

}  // namespace

std::string to_text(const invitation& from) {
  return std::to_string(from.version) + ":" + std::to_string(from.ranks) + ":" +
         to_hexadecimal(std::as_bytes(std::span(from.id.bytes)));
}

result<invitation> parse_invitation(const std::string& text) {
  std::string_view rest = text;
  const auto version = take_number(rest);
  const auto ranks = version ? take_number(rest) : std::nullopt;
  const auto id = ranks ? from_hexadecimal(rest) : std::nullopt;
  invitation made;
  if (!id || *ranks < 1 || id->size() != sizeof made.id.bytes)
    return fail(errc::bad_frame, "what a replica was invited to NCCL by is no invitation");
  made.version = *version;
  made.ranks = *ranks;
  std::memcpy(&made.id.bytes, id->data(), id->size());
  return made;
}

maker::library maker::loaded() const {
  const std::scoped_lock lock(mutex_);
  if (!library_) library_ = load(how_.places);
  return *library_;
}

result<std::string> maker::library_for(c10::Device on) const {
  if (on.type() != how_.type)
    return fail(errc::transport_missing, on.is_cpu()
                                             ? "NCCL is for GPUs, and the stage computes on the CPU"
                                             : "NCCL knows no device " + on.str());
  const auto found = loaded();
  if (!found) return tl::unexpected(found.error());
  return "NCCL " + version_text((*found)->version);
}

std::optional<socket_reach> maker::sockets() const {
  return sockets_of_process();
}

result<std::string> maker::invite(std::uint32_t ranks, socket_reach sockets, c10::Device) const {
  const auto found = loaded();
  if (!found) return tl::unexpected(found.error());
  const auto made = nccl::invite(**found, static_cast<int>(ranks), sockets);
  if (!made) return tl::unexpected(made.error());
  return to_text(*made);
}

result<std::shared_ptr<collective_port>> maker::join(const collective_place& place) const {
  const auto found = loaded();
  if (!found) return tl::unexpected(found.error());
  const auto invited = parse_invitation(place.invitation);
  if (!invited) return tl::unexpected(invited.error());
  if (invited->ranks != static_cast<int>(place.ranks) || place.rank >= place.ranks)
    return fail(errc::bad_frame, place.name + ": an invitation for " +
                                     std::to_string(invited->ranks) + " ranks, but this is rank " +
                                     std::to_string(place.rank) + " of " +
                                     std::to_string(place.ranks));
  auto on = how_.device_for ? how_.device_for(place.on) : usual_device(place.on);
  if (!on) return tl::unexpected(on.error());
  return std::make_shared<port>(terms{.name = place.name,
                                      .library = *found,
                                      .invited = *invited,
                                      .rank = static_cast<int>(place.rank),
                                      .on = std::move(*on),
                                      .sockets = place.sockets,
                                      .waits = how_.waits,
                                      .hung = how_.hung},
                                place.order);
}

}  // namespace troupe::engine::nccl
