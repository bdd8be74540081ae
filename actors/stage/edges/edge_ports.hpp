#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <caf/actor_addr.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "actors/interfaces.hpp"
#include "actors/messages/flow.hpp"
#include "actors/messages/pipeline.hpp"
#include "actors/stage/edges/device_libraries.hpp"
#include "engine/collective/port.hpp"
#include "engine/device/device_streams.hpp"
#include "engine/step/edge.hpp"
#include "messages/base/error.hpp"

namespace troupe::actors {

/// The ports by which a stage's activations and gradients go to stages of other processes and come
/// from there. The sender announces each tensor by a message, and its receiver begins to receive
/// when that message arrives, whatever it does meanwhile. So both ends submit the same in one
/// order, which no plan has to say, and nothing that is sent waits for anything but what was sent
/// before it by the same port. edge_port says which end gives its device a transfer first: the
/// sender, and announces it after that; or the receiver, and answers after that, and then the
/// sender begins (docs/gpu.md). Of one thread, but for the callbacks.
class edge_ports {
 public:
  edge_ports() = default;

  /// Begins to join all of them. Errors: those of the port. Throws as torch does.
  [[nodiscard]] static result<edge_ports> join(const std::vector<edge_port>& places,
                                               const device_libraries& by, c10::Device on);

  /// Called on a thread of the port, where it must not block; `failed` also on the one that calls.
  using failed = std::function<void(const error&)>;
  using received = std::function<void(engine::edge, const result<at::Tensor>&)>;
  /// Sends the stage at the other end its message; called also on the thread that calls the port.
  using announcing = std::function<void(const announced_tensor&)>;
  using awaiting = std::function<void(const stage_actor&, const awaited_tensor&)>;

  /// Sends a tensor, there once `made` is past, and holds it until it is sent. Its receiver is told
  /// by `announce`, in the order of these calls. False, and nothing happens: no port leads there,
  /// or the tensor has no elements. `told`: why it will never be sent, except where the other stage
  /// fails its step before it has answered. Throws as torch does.
  [[nodiscard]] bool send(engine::edge on, const stage_actor& to, const microbatch_key& key,
                          const at::Tensor& tensor, const engine::ready_event& made,
                          const engine::device_streams& streams, const announcing& announce,
                          failed told);

  /// The receiver has begun: begins to send what was announced. An answer to an earlier connection
  /// of the stage, or from a stage that is gone, is left out. Errors: bad_frame for one that is not
  /// due. Throws as torch does.
  [[nodiscard]] result<void> send_awaited(const awaited_tensor& what,
                                          const engine::device_streams& streams);

  /// Begins to receive what was announced, and tells `ended` its edge and the tensor, or why it
  /// never comes. The sender that waits for that is told by `answer`. What was announced for a port
  /// of an earlier connection of the stage, where nobody sends any more, is left out, and `ended`
  /// is not called. Errors, after which nothing comes by this port: bad_frame for what does not
  /// fit, handler_failed without memory for it.
  [[nodiscard]] result<void> receive(const announced_tensor& what,
                                     const engine::device_streams& streams, const awaiting& answer,
                                     received ended);

  /// A stage is gone: what is under way between it and this one fails, and what comes later.
  void lose(const caf::actor_addr& whose);

  /// A tensor was lost: none of the steps to come can succeed.
  void note_failure(const error& why) { failure_ = why; }
  [[nodiscard]] const std::optional<error>& failure() const noexcept { return failure_; }

 private:
  /// A tensor that its receiver has not asked for yet.
  struct outgoing {
    at::Tensor tensor;
    engine::ready_event made;
    failed told;
  };
  struct member {
    edge_port place;
    stage_actor other;
    std::shared_ptr<engine::collective_port> port;
    std::uint64_t next = 0;             // place among what is announced
    std::deque<outgoing> waiting = {};  // the last that were announced
    std::optional<error> gone = {};     // why the stage at the other end answers nothing any more
  };

  [[nodiscard]] member* find_way_to(engine::edge on, const stage_actor& to);
  [[nodiscard]] member* find_way(std::uint64_t number, bool sends);
  static void begin_send(const member& way, const outgoing& what,
                         const engine::device_streams& streams,
                         engine::collective_port::started begun);

  std::vector<member> all_;
  std::optional<error> failure_;
};

}  // namespace troupe::actors
