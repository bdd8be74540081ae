#include "actors/stage/edges/edge_ports.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

#include <caf/actor_cast.hpp>
#include <exception>
#include <string>
#include <utility>

#include "actors/base/same_actor.hpp"
#include "actors/wire/tensors.hpp"
#include "engine/base/torch_error.hpp"
#include "messages/codec/codec.hpp"

namespace troupe::actors {
namespace {

constexpr std::uint32_t sending_rank = 0, receiving_rank = 1;

/// Room for what was announced, on the stage's device. Errors: bad_frame, handler_failed.
result<at::Tensor> room_for(const announced_tensor& what, const engine::device_streams& streams) {
  const messages::tensor_descriptor form{
      .type = what.type, .shape = what.shape, .strides = what.strides, .device = {}};
  if (const auto bytes = messages::checked_bytes(form); !bytes)
    return tl::unexpected(bytes.error());
  try {
    return at::empty_strided(what.shape, what.strides,
                             at::TensorOptions(scalar_type(what.type)).device(streams.device()));
  } catch (const std::exception& problem) {
    return fail(errc::handler_failed, engine::reason_of(problem));
  }
}

}  // namespace

result<edge_ports> edge_ports::join(const std::vector<edge_port>& places,
                                    const engine::collective_maker& by, c10::Device on) {
  edge_ports made;
  for (const auto& each : places) {
    auto joined = by.join({.name = each.name,
                           .invitation = each.invitation,
                           .rank = each.sends ? sending_rank : receiving_rank,
                           .ranks = 2,
                           .on = on,
                           .sockets = each.sockets});
    if (!joined) return tl::unexpected(joined.error());
    made.all_.push_back({each, caf::actor_cast<stage_actor>(each.other), std::move(*joined)});
  }
  return made;
}

edge_ports::member* edge_ports::find_way_to(engine::edge on, const stage_actor& to) {
  for (auto& each : all_)
    if (each.place.sends && each.place.on == on && is_same_actor(each.other, to)) return &each;
  return nullptr;
}

edge_ports::member* edge_ports::find_way_of(const announced_tensor& what) {
  for (auto& each : all_)
    if (!each.place.sends && each.place.number == what.port) return &each;
  return nullptr;
}

std::optional<announced_tensor> edge_ports::send(
    engine::edge on, const stage_actor& to, const microbatch_key& key, const at::Tensor& tensor,
    const engine::ready_event& made, const engine::device_streams& streams, const failed& told) {
  auto* const way = find_way_to(on, to);
  if (way == nullptr || !tensor.defined() || tensor.numel() == 0) return std::nullopt;
  const at::NoGradGuard unrecorded;
  const auto on_device = streams.sending();
  auto dense = streams.take_for_sends(tensor.detach(), made);
  if (!dense.is_non_overlapping_and_dense()) dense = dense.contiguous();
  announced_tensor what{.port = way->place.number,
                        .place = way->next,
                        .key = key,
                        .type = wire_type(dense.scalar_type()),
                        .shape = dense.sizes().vec(),
                        .strides = dense.strides().vec()};
  ++way->next;
  std::vector<engine::collective_operation> group;
  group.push_back(
      {.what = engine::collective::send, .from = std::move(dense), .peer = receiving_rank});
  way->port->submit(std::move(group), [told](const result<void>& how) {
    if (!how) told(how.error());
  });
  return what;
}

result<void> edge_ports::receive(const announced_tensor& what,
                                 const engine::device_streams& streams, received ended) {
  auto* const way = find_way_of(what);
  if (way == nullptr) return {};
  const auto& name = way->place.name;
  if (what.place != way->next)
    return fail(errc::bad_frame, name + ": tensor " + std::to_string(what.place) +
                                     " was announced where " + std::to_string(way->next) +
                                     " is the next");
  // What was given to this stream before the room's memory was free is past when it is written.
  const auto on_device = streams.copying();
  auto room = room_for(what, streams);
  if (!room) return fail(room.error().code, name + ": " + room.error().text);
  ++way->next;
  std::vector<engine::collective_operation> group;
  group.push_back({.what = engine::collective::receive, .to = *room, .peer = sending_rank});
  way->port->submit(std::move(group), [on = way->place.on, tensor = *room,
                                       ended = std::move(ended)](const result<void>& how) {
    if (how)
      ended(on, tensor);
    else
      ended(on, tl::unexpected(how.error()));
  });
  return {};
}

void edge_ports::lose(const caf::actor_addr& whose) {
  for (const auto& each : all_)
    if (each.other.address() == whose)
      each.port->lose({errc::peer_lost, each.place.name + ": the stage at its other end is gone"});
}

}  // namespace troupe::actors
