#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace troupe::messages {

inline constexpr std::uint16_t protocol_version = 4;

/// Element types a tensor may have on the wire.
enum class dtype : std::uint8_t { f32, f64, f16, bf16, i64, i32, i16, i8, u8, boolean };

[[nodiscard]] std::size_t item_bytes(dtype type) noexcept;
[[nodiscard]] bool is_floating(dtype type) noexcept;

/// A device of one process: its host's memory, or a GPU by its number.
struct device_ref {
  enum class kind : std::uint8_t { cpu, cuda };
  kind type = kind::cpu;
  std::int8_t index = -1;

  [[nodiscard]] bool is_host() const noexcept { return type == kind::cpu; }
  bool operator==(const device_ref&) const = default;
};

/// "cpu", "cuda:1".
[[nodiscard]] std::string to_string(const device_ref& device);

/// Shape and layout of a tensor. `strides` are in elements; the layout is dense (no gaps, no
/// overlaps), so the byte count is the product of `shape` times the item size.
struct tensor_descriptor {
  dtype type = dtype::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  device_ref device;  ///< Of the tensor at its sender, though its bytes may travel from the host.

  bool operator==(const tensor_descriptor&) const = default;
};

/// Tensor bytes by reference. `owner` keeps `data` alive; nobody writes them once they are sent.
/// `device`: whose memory they lie in; a link that does not move it refuses them.
struct payload {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<void> owner;
  bool read_only = false;  ///< It is another process's memory, and a write ends in SIGSEGV.
  device_ref device = {};
};

struct wire_tensor {
  tensor_descriptor descriptor;
  payload bytes;
};

/// The address of an actor anywhere in the cluster.
struct actor_ref {
  std::string node;     ///< Name of the process that hosts the actor.
  std::string address;  ///< Where that process listens ("host:port"), for a first connection.
  std::uint64_t id = 0;

  bool operator==(const actor_ref&) const = default;
};

/// A field of a message. Tensors are named by their index in `frame::tensors`.
struct value {
  struct tensor_index {
    std::uint32_t index = 0;
    bool operator==(const tensor_index&) const = default;
  };
  using list = std::vector<value>;

  std::variant<std::monostate, std::int64_t, double, std::string, tensor_index, actor_ref, list> of;

  bool operator==(const value&) const = default;
};

/// One element of a message: its registered type name and its fields in order.
struct element {
  std::string type;
  std::vector<value> fields;

  bool operator==(const element&) const = default;
};

enum class frame_kind : std::uint8_t {
  hello,      ///< First frame each way on a new link: who I am.
  message,    ///< To an actor; no answer expected.
  request,    ///< To an actor; answered by `response` with the same request id.
  response,   ///< The answer to a request; an error answer is a body of one `error` element.
  link,       ///< My actor `sender` and your actor `target` end together: see `unlink`.
  monitor,    ///< Tell me when actor `target` ends.
  down,       ///< Actor `sender` of mine has ended: body is the reason, an `error` element.
  lookup,     ///< Which actor has this name? Answered by `response`.
  heartbeat,  ///< I am alive.
  goodbye,    ///< I am leaving in order; do not count me as lost.
  unlink,     ///< Takes a `link` back.
};

/// Frames keep their order within a lane of one peer. `control` overtakes tensors in `data`.
enum class lane : std::uint8_t { control, data };

/// What one process sends another: a small header, a body of typed elements, and tensors whose
/// bytes travel beside them. A value type; tensors are shared by reference.
struct frame {
  frame_kind kind = frame_kind::message;
  messages::lane lane = lane::data;
  std::uint64_t sender = 0;       ///< Actor id at the sending process; 0: the process itself.
  std::uint64_t target = 0;       ///< Actor id at the receiving process; 0: the process itself.
  std::uint64_t request_id = 0;   ///< Unique per sending process; 0 when no answer is expected.
  std::uint64_t deadline_us = 0;  ///< Time the sender still waits, from sending; 0: no limit.
  std::vector<element> body = {};
  std::vector<wire_tensor> tensors = {};
};

}  // namespace troupe::messages
