#include "actors/stage/edges/ucx_maker.hpp"

#include <c10/core/DeviceGuard.h>

#include <utility>
#include <vector>

#include "engine/collective/nccl/torch_device.hpp"
#include "messages/base/printable.hpp"
#include "messages/link/ucx/version.hpp"

namespace troupe::actors {
namespace {

error bad_invitation(const std::string& name) {
  return {errc::bad_frame, name + ": what it was invited to UCX by is no invitation"};
}

}  // namespace

ucx_maker::library ucx_maker::opened(c10::Device on) const {
  const std::scoped_lock lock(mutex_);
  const c10::DeviceGuard current(on);
  if (!library_) library_ = messages::ucx::open_for(how_.memory);
  return *library_;
}

result<std::string> ucx_maker::library_for(c10::Device on) const {
  if (on.type() != how_.type)
    return fail(errc::transport_missing,
                on.is_cpu() ? "UCX would move the memory of GPUs, and the stage computes on the CPU"
                            : "UCX knows no memory of " + on.str());
  if (const auto found = opened(on); !found) return tl::unexpected(found.error());
  return "UCX " + messages::ucx::library_version();
}

result<ucx_terms> ucx_maker::terms_for(std::string name, c10::Device on) const {
  auto found = opened(on);
  if (!found) return tl::unexpected(found.error());
  ucx_terms made{.name = std::move(name),
                 .library = std::move(*found),
                 .memory = how_.memory,
                 .on = nullptr,
                 .hold = how_.hold,
                 .waits = how_.waits};
  if (on.is_cpu()) return made;
  auto device = engine::nccl::torch_device::make(on);
  if (!device) return tl::unexpected(device.error());
  made.on = std::move(*device);
  return made;
}

result<std::string> ucx_maker::invite(std::uint32_t ranks, engine::socket_reach,
                                      c10::Device on) const {
  if (ranks != 2) return fail(errc::transport_missing, "UCX joins two stages, and no more");
  auto terms = terms_for("an edge", on);
  if (!terms) return tl::unexpected(terms.error());
  auto sender = ucx_port::open(std::move(*terms));
  if (!sender) return tl::unexpected(sender.error());
  auto invitation = to_hexadecimal((*sender)->address());
  const auto now = std::chrono::steady_clock::now();
  std::vector<std::shared_ptr<ucx_port>> unused;  // ended after the lock
  const std::scoped_lock lock(mutex_);
  for (auto& [text, each] : invited_)
    if (now - each.since > how_.waits.join) unused.push_back(std::move(each.port));
  std::erase_if(invited_, [](const auto& each) { return !each.second.port; });
  invited_[invitation] = {std::move(*sender), now};
  return invitation;
}

result<std::shared_ptr<engine::collective_port>> ucx_maker::join(
    const engine::collective_place& place) const {
  if (place.ranks != 2) return tl::unexpected(bad_invitation(place.name));
  if (place.rank == 0) {
    const std::scoped_lock lock(mutex_);
    auto own = invited_.extract(place.invitation);
    if (own.empty()) return tl::unexpected(bad_invitation(place.name));
    own.mapped().port->rename(place.name);
    return std::move(own.mapped().port);
  }
  auto sender = from_hexadecimal(place.invitation);
  if (!sender || sender->empty()) return tl::unexpected(bad_invitation(place.name));
  auto terms = terms_for(place.name, place.on);
  if (!terms) return tl::unexpected(terms.error());
  terms->sender = std::move(*sender);
  auto made = ucx_port::open(std::move(*terms));
  if (!made) return tl::unexpected(error_about(place.name, made.error()));
  return std::shared_ptr<engine::collective_port>(std::move(*made));
}

}  // namespace troupe::actors
