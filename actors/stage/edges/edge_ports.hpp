#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <caf/actor_addr.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "actors/interfaces.hpp"
#include "actors/messages/flow.hpp"
#include "actors/messages/pipeline.hpp"
#include "engine/collective/port.hpp"
#include "engine/device/device_streams.hpp"
#include "engine/step/edge.hpp"
#include "messages/base/error.hpp"

namespace troupe::actors {

/// The ports by which a stage's activations and gradients go to stages of other processes and come
/// from there. The sender begins to send and announces the tensor by a message; its receiver begins
/// to receive when it hears of it, whatever it does meanwhile. So both ends submit the same in one
/// order, which no plan has to say, and nothing that is sent waits for anything but what was sent
/// before it by the same port (docs/gpu.md). Of one thread, but for the callbacks.
class edge_ports {
 public:
  edge_ports() = default;

  /// Begins to join all of them. Errors: those of the port.
  [[nodiscard]] static result<edge_ports> join(const std::vector<edge_port>& places,
                                               const engine::collective_maker& by, c10::Device on);

  /// Called on a thread of the port, where it must not block.
  using failed = std::function<void(const error&)>;
  using received = std::function<void(engine::edge, const result<at::Tensor>&)>;

  /// Begins to send a tensor, there once `made` is past, and holds it until it is sent. Returns
  /// what its receiver is to be told, in the order of these calls; nullopt: no port leads there, or
  /// the tensor has no elements. `told`: why it will never be sent. Throws as torch does.
  [[nodiscard]] std::optional<announced_tensor> send(
      engine::edge on, const stage_actor& to, const microbatch_key& key, const at::Tensor& tensor,
      const engine::ready_event& made, const engine::device_streams& streams, const failed& told);

  /// Begins to receive what was announced, and tells `ended` its edge and the tensor, or why it
  /// never comes. What was announced for a port of an earlier connection of the stage, where nobody
  /// sends any more, is left out, and `ended` hears nothing. Errors, after which nothing comes by
  /// this port: bad_frame for what does not fit, handler_failed without memory for it.
  [[nodiscard]] result<void> receive(const announced_tensor& what,
                                     const engine::device_streams& streams, received ended);

  /// A stage is gone: what is under way between it and this one fails.
  void lose(const caf::actor_addr& whose);

  /// A tensor was lost: none of the steps to come can succeed.
  void note_failure(const error& why) { failure_ = why; }
  [[nodiscard]] const std::optional<error>& failure() const noexcept { return failure_; }

 private:
  struct member {
    edge_port place;
    stage_actor other;
    std::shared_ptr<engine::collective_port> port;
    std::uint64_t next = 0;  // place among what is sent
  };

  [[nodiscard]] member* find_way_to(engine::edge on, const stage_actor& to);
  [[nodiscard]] member* find_way_of(const announced_tensor& what);

  std::vector<member> all_;
  std::optional<error> failure_;
};

}  // namespace troupe::actors
