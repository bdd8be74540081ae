#include "actors/stage/edges/edge_ports.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/strides.h>

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

/// Of the tensor, or of a dense copy of it.
std::vector<std::int64_t> dense_strides(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  const auto strides = c10::contiguous_strides(tensor.sizes());
  return {strides.begin(), strides.end()};
}

/// Moves one element, which both ends begin as soon as they have joined. NCCL connects two ranks at
/// their first transfer, and that takes both of them, so from then on neither must wait for the
/// other's begin. Why it fails is why all that follows does.
void meet(engine::collective_port& port, bool sends, c10::Device on) {
  const auto element = at::empty({1}, at::TensorOptions(at::kByte).device(on));  // [1] u8
  std::vector<engine::collective_operation> group;
  if (sends)
    group.push_back({.what = engine::collective::send, .from = element, .peer = receiving_rank});
  else
    group.push_back({.what = engine::collective::receive, .to = element, .peer = sending_rank});
  port.submit(std::move(group), [](const result<void>&) {});
}

}  // namespace

result<edge_ports> edge_ports::join(const std::vector<edge_port>& places,
                                    const device_libraries& by, c10::Device on) {
  edge_ports made;
  for (const auto& each : places) {
    auto joined = by.of(each.by)->join({.name = each.name,
                                        .invitation = each.invitation,
                                        .rank = each.sends ? sending_rank : receiving_rank,
                                        .ranks = 2,
                                        .on = on,
                                        .sockets = each.sockets});
    if (!joined) return tl::unexpected(joined.error());
    meet(**joined, each.sends, on);
    made.all_.push_back({each, caf::actor_cast<stage_actor>(each.other), std::move(*joined)});
  }
  return made;
}

edge_ports::member* edge_ports::find_way_to(engine::edge on, const stage_actor& to) {
  for (auto& each : all_)
    if (each.place.sends && each.place.on == on && is_same_actor(each.other, to)) return &each;
  return nullptr;
}

edge_ports::member* edge_ports::find_way(std::uint64_t number, bool sends) {
  for (auto& each : all_)
    if (each.place.sends == sends && each.place.number == number) return &each;
  return nullptr;
}

bool edge_ports::send(engine::edge on, const stage_actor& to, const microbatch_key& key,
                      const at::Tensor& tensor, const engine::ready_event& made,
                      const engine::device_streams& streams, const announcing& announce,
                      failed told) {
  auto* const way = find_way_to(on, to);
  if (way == nullptr || !tensor.defined() || tensor.numel() == 0) return false;
  if (way->gone) {
    told(*way->gone);
    return true;
  }
  const announced_tensor what{.port = way->place.number,
                              .place = way->next,
                              .key = key,
                              .type = wire_type(tensor.scalar_type()),
                              .shape = tensor.sizes().vec(),
                              .strides = dense_strides(tensor)};
  ++way->next;
  outgoing output{tensor.detach(), made, std::move(told)};
  if (way->place.receiver_first) {
    way->waiting.push_back(std::move(output));
    announce(what);
  } else {
    begin_send(*way, output, streams, [announce, what] { announce(what); });
  }
  return true;
}

void edge_ports::begin_send(const member& way, const outgoing& what,
                            const engine::device_streams& streams,
                            engine::collective_port::started begun) {
  const at::NoGradGuard unrecorded;
  const auto on_device = streams.sending();
  auto dense = streams.take_for_sends(what.tensor, what.made);
  if (!what.tensor.is_non_overlapping_and_dense()) dense = dense.contiguous();
  if (dense.is_neg()) dense = dense.clone();  // its strides were announced
  std::vector<engine::collective_operation> group;
  group.push_back(
      {.what = engine::collective::send, .from = std::move(dense), .peer = receiving_rank});
  way.port->submit(
      std::move(group),
      [told = what.told](const result<void>& how) {
        if (!how) told(how.error());
      },
      std::move(begun));
}

result<void> edge_ports::send_awaited(const awaited_tensor& what,
                                      const engine::device_streams& streams) {
  auto* const way = find_way(what.port, true);
  if (way == nullptr || way->gone) return {};
  const auto due = way->next - way->waiting.size();
  if (way->waiting.empty() || what.place != due)
    return fail(errc::bad_frame,
                way->place.name + ": tensor " + std::to_string(what.place) + " is awaited, " +
                    (way->waiting.empty() ? "and none is announced"
                                          : "where " + std::to_string(due) + " is the next"));
  const auto output = std::move(way->waiting.front());
  way->waiting.pop_front();
  begin_send(*way, output, streams, {});
  return {};
}

result<void> edge_ports::receive(const announced_tensor& what,
                                 const engine::device_streams& streams, const awaiting& answer,
                                 received ended) {
  auto* const way = find_way(what.port, false);
  if (way == nullptr) return {};
  const auto& name = way->place.name;
  if (what.place != way->next)
    return fail(errc::bad_frame, name + ": tensor " + std::to_string(what.place) +
                                     " was announced where " + std::to_string(way->next) +
                                     " is the next");
  // What was given to this stream before the room's memory was free is past when it is written.
  // The allocator may wait here for all that the device was given, sends of our own too: none of
  // them waits for this receive to begin (docs/gpu.md, "When memory runs short").
  const auto on_device = streams.copying();
  auto room = room_for(what, streams);
  if (!room) return tl::unexpected(error_about(name, room.error()));
  ++way->next;
  std::vector<engine::collective_operation> group;
  group.push_back({.what = engine::collective::receive, .to = *room, .peer = sending_rank});
  engine::collective_port::started begun;
  if (way->place.receiver_first)
    begun = [answer, to = way->other, awaited = awaited_tensor{what.port, what.place}] {
      answer(to, awaited);
    };
  way->port->submit(
      std::move(group),
      [on = way->place.on, tensor = *room, ended = std::move(ended)](const result<void>& how) {
        if (how)
          ended(on, tensor);
        else
          ended(on, tl::unexpected(how.error()));
      },
      std::move(begun));
  return {};
}

void edge_ports::lose(const caf::actor_addr& whose) {
  for (auto& each : all_) {
    if (each.other.address() != whose) continue;
    each.gone = error{errc::peer_lost, each.place.name + ": the stage at its other end is gone"};
    each.port->lose(*each.gone);
    for (const auto& output : std::exchange(each.waiting, {})) output.told(*each.gone);
  }
}

}  // namespace troupe::actors
